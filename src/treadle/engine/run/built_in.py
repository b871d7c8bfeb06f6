"""Built-in types: items that every worker settles, without a handler and without room in a doer.

A dependency queues its works. An item that closes a nested group ends with the value of the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from treadle.backend import Backend
from treadle.dependency import DEPENDENCY
from treadle.engine.core import Core
from treadle.engine.registry import Registry
from treadle.engine.submit.build_children import silenced
from treadle.engine.submit.build_item import read_stored
from treadle.engine.wait.wait_result import group_value
from treadle.errors import DecodeError
from treadle.item import GROUP_TYPE, GroupState, Item, Lease, Ref
from treadle.result_plan import NOTHING, PlannedContribution, ResultPlan

from .decide import GiveBack, Succeed, undecodable
from .pending import PendingSettlement
from .settle import Settler

BUILT_IN: Final = (DEPENDENCY.name, GROUP_TYPE)
UNREAD_DELAY: Final = 1.0
"""Seconds after which an item that closes a group is tried again, if the group could not be read."""

_decoder = msgspec.json.Decoder(tuple[Item, ...])


def met_dependency(lease: Lease) -> PendingSettlement:
    """The settlement of a dependency that was met: its works become its children. `DecodeError` if they
    cannot be read."""
    try:
        items = _decoder.decode(lease.input)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DecodeError(str(error)) from error
    children = [_with_workflow_of(lease, item) for item in items]
    if lease.options and read_stored(lease.options).compensates:
        children = silenced(children)
    return PendingSettlement(lease, Succeed(NOTHING), children=tuple(children))


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
    lease: Lease, group: GroupState | None, registry: Registry, *, announced: bool
) -> PendingSettlement:
    """The settlement of an item that closes a nested group: the value of the group is its result, and its
    contribution to the group around it. announced: an event will show the value."""
    value = None if group is None or not group.contributed else group.value
    if group is None or not isinstance(value, bytes):
        return PendingSettlement(lease, Succeed(NOTHING))
    plan = ResultPlan(group_value(registry, group)) if announced else NOTHING
    compensates = lease.options and read_stored(lease.options).compensates
    contributions = () if compensates else (PlannedContribution(None, encoded=value),)
    return PendingSettlement(lease, Succeed(plan), value, contributions=contributions)


async def close_groups(core: Core, settler: Settler, leases: Sequence[Lease]) -> None:
    """Read the values of nested groups that have ended, and settle the items that close them. Their leases
    are known to the worker."""
    try:
        groups = await read_closed(core.backend, leases)
    except Exception as error:  # noqa: BLE001  after any error: the leases must be settled
        core.hooks.report(error, "claim", "could not read the values of groups; trying again")
        for lease in leases:
            settler.add(PendingSettlement(lease, GiveBack(UNREAD_DELAY)))
        return
    announced = core.hooks.listening(GROUP_TYPE)
    for lease in leases:
        try:
            group = groups.get((lease.tenant, lease.id))
            settler.add(closed_group(lease, group, core.registry, announced=announced))
        except Exception as error:  # noqa: BLE001  a user's codec may raise anything
            settler.add(PendingSettlement(lease, undecodable(error)))
