"""Built-in types: items that every worker settles, without a handler of the user and without room in a doer.

A dependency queues its works. An item that closes a nested group ends with the value of the group. An item of
a bulk action changes other items: see `treadle.operate.bulk_portion`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from treadle.backend import Backend
from treadle.bulk_action import BULK_RETRY
from treadle.codec import unreadable
from treadle.define.dependency import DEPENDENCY
from treadle.engine.core import Core, PortionRunner
from treadle.engine.hooks import Hooks
from treadle.engine.registry import Registry
from treadle.engine.submit.build_children import silenced
from treadle.engine.submit.build_item import read_stored
from treadle.engine.submit.carry import carry_on
from treadle.engine.wait.wait_result import group_value
from treadle.handler.result_plan import NOTHING, PlannedContribution, ResultPlan
from treadle.item import GROUP_TYPE, GroupState, Item, Lease, Ref

from .decide import NOT_STARTED_DELAY, GiveBack, Succeed, judged, lost_too_often, unbegun
from .pending import PendingSettlement

SETTLED_AT_ONCE: Final = (DEPENDENCY.name, GROUP_TYPE)
"""Built-in types whose items need nothing but a settlement."""

_decoder = msgspec.json.Decoder(tuple[Item, ...])


def met_dependency(lease: Lease) -> PendingSettlement:
    """The settlement of a dependency that was met: its works become its children. `DecodeError` if they
    cannot be read."""
    try:
        items = _decoder.decode(lease.input)
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(error) from error
    children = [_with_workflow_of(lease, item) for item in items]
    if lease.options and read_stored(lease.options).compensates:
        children = silenced(children)
    carrying = tuple(carry_on(children, lease, checked=False))
    return PendingSettlement(lease, Succeed(NOTHING), children=carrying)


def _with_workflow_of(lease: Lease, item: Item) -> Item:
    return msgspec.structs.replace(
        item,
        workflow=item.workflow or lease.workflow,
        workflow_type=item.workflow_type or lease.workflow_type,
    )


async def read_closed(backend: Backend, leases: Sequence[Lease]) -> Mapping[Ref, GroupState]:
    """The groups that the items of these leases close: one read for each tenant."""
    ids: dict[str, list[str]] = {}
    for lease in leases:
        ids.setdefault(lease.tenant, []).append(lease.id)
    found: dict[Ref, GroupState] = {}
    for tenant, wanted in ids.items():
        for group in await backend.group(wanted, tenant=tenant):
            if group is not None:
                found[tenant, group.id] = group
    return found


def closed_group(
    lease: Lease, group: GroupState | None, registry: Registry, hooks: Hooks
) -> PendingSettlement:
    """The settlement of an item that closes a nested group: the value of the group is its result, and its
    contribution to the group around it."""
    value = None if group is None or not group.contributed else group.value
    if group is None or not isinstance(value, bytes):
        return PendingSettlement(lease, Succeed(NOTHING))
    plan = ResultPlan(_announced_value(registry, hooks, group)) if hooks.listening(GROUP_TYPE) else NOTHING
    compensates = lease.options and read_stored(lease.options).compensates
    contributions = () if compensates else (PlannedContribution(None, encoded=value),)
    return PendingSettlement(lease, Succeed(plan), value, contributions=contributions)


def _announced_value(registry: Registry, hooks: Hooks, group: GroupState) -> Any:
    """The value that an event shows. None if it cannot be read here: the item ends all the same."""
    try:
        return group_value(registry, group)
    except Exception as error:  # noqa: BLE001  a user's codec may raise anything
        hooks.report(error, "hook", f"cannot read the value of the group {group.id}")
        return None


async def bulk_settlement(core: Core, run: PortionRunner, lease: Lease) -> PendingSettlement:
    """Run an item of a bulk action, and return its settlement. One that was lost too often dies.
    `DecodeError`."""
    if lost_too_often(lease, BULK_RETRY):
        return PendingSettlement(unbegun(lease), judged(lease, "lease_lost"))
    try:
        if not lease.begun and await core.backend.begin([lease]):
            return PendingSettlement(lease, GiveBack())  # the lease is lost: this changes nothing
    except Exception as error:  # noqa: BLE001  the lease must be settled
        core.hooks.report(error, "claim", "could not begin a portion of a bulk action; trying again")
        return PendingSettlement(lease, GiveBack(NOT_STARTED_DELAY))
    pending: PendingSettlement = await run(core, lease)
    return pending
