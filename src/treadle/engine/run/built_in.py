"""Items that every worker settles without an attempt: of built-in types, doomed, or not decodable.

A dependency queues its works. An item that closes a nested group ends with the value of the group. An item of
a bulk action changes other items: see `treadle.operate.bulk_portion`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from treadle.backend import Backend
from treadle.bulk_action import BULK_RETRY, BULK_TYPE
from treadle.codec import unreadable
from treadle.define.dependency import DEPENDENCY
from treadle.engine.core import Core, PortionRunner
from treadle.engine.hooks import Hooks
from treadle.engine.registry import Registry
from treadle.engine.submit.build_children import carry_on, silenced
from treadle.engine.submit.build_item import read_stored
from treadle.engine.wait.wait_result import group_value
from treadle.errors import PayloadError
from treadle.handler.result_plan import NOTHING, PlannedContribution, ResultPlan
from treadle.item import GROUP_TYPE, JOIN_TYPE, GroupState, Item, Lease, Ref
from treadle.store.rules.steps import children_ended

from .decide import (
    NOT_STARTED_DELAY,
    Decision,
    Die,
    GiveBack,
    PendingSettlement,
    Succeed,
    judged,
    lost_too_often,
    unbegun,
    undecodable,
)
from .held import HeldLeases
from .settle import Settler
from .undecodable import UndecodableItems
from .unsatisfied import read_causes

SETTLED_AT_ONCE: Final = (DEPENDENCY.name, GROUP_TYPE, JOIN_TYPE)
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


UNREAD_DELAY: Final = 1.0
"""Seconds after which an item that closes a group is tried again, if the group could not be read."""


class ItemsWithoutAttempt:
    def __init__(
        self, core: Core, held: HeldLeases, settler: Settler, undecodable_items: UndecodableItems
    ) -> None:
        self._core = core
        self._held = held
        self._settler = settler
        self._undecodable = undecodable_items
        self.runs_bulk = False
        """Whether it runs a portion of a bulk action: one at a time."""

    def settle(self, lease: Lease, decision: Decision) -> None:
        self._settler.settle_without_attempt(PendingSettlement(lease, decision))

    def settle_all(self, leases: Iterable[Lease]) -> None:
        """Settle leases that have a verdict, or whose type has no handler here."""
        closing: list[Lease] = []
        joining: list[Lease] = []
        unsatisfied: list[Lease] = []
        for lease in leases:
            if lease.verdict == "unsatisfiable" and lease.after:
                self._held.take_without_attempt(lease)
                unsatisfied.append(lease)
            elif lease.verdict is not None:
                self.settle(lease, judged(lease, lease.verdict))
            elif lease.type == GROUP_TYPE:
                self._held.take_without_attempt(lease)
                closing.append(lease)
            elif lease.type == JOIN_TYPE:
                self._held.take_without_attempt(lease)
                joining.append(lease)
            elif lease.type == DEPENDENCY.name:
                try:
                    self._settler.settle_without_attempt(met_dependency(lease))
                except PayloadError as error:
                    self.leave(lease, error)
            elif lease.type == BULK_TYPE and self._core.run_portion is not None:
                self._held.take_without_attempt(lease)
                self.runs_bulk = True
                self._settler.start_apart(self._run_portion(self._core.run_portion, lease))
            else:
                # It was not asked for. A worker that has the type will claim it.
                self.settle(lease, GiveBack())
        if closing:
            self._settler.start_apart(self._close_groups(closing))
        if joining:
            self._settler.start_apart(self._join(joining))
        if unsatisfied:
            self._settler.start_apart(self._end_unsatisfied(unsatisfied))

    async def _run_portion(self, run: PortionRunner, lease: Lease) -> None:
        """Change a portion of the items of a bulk action."""
        try:
            self._settler.add(await bulk_settlement(self._core, run, lease))
        except PayloadError as error:
            self.leave(lease, error)
        finally:
            self.runs_bulk = False

    async def _end_unsatisfied(self, leases: list[Lease]) -> None:
        """Settle items that cannot run, with the name of the item that made it so."""
        causes: Mapping[int, Die] = {}
        try:
            causes = await read_causes(self._core.backend, leases)
        except Exception as error:  # noqa: BLE001  the leases must be settled all the same
            self._core.hooks.report(error, "claim", "could not read why items cannot run")
        for lease in leases:
            self._settler.add(
                PendingSettlement(lease, causes.get(lease.token) or judged(lease, "unsatisfiable"))
            )

    async def _close_groups(self, leases: list[Lease]) -> None:
        """Read the values of nested groups that have ended, and settle the items that close them."""
        hooks = self._core.hooks
        try:
            groups = await read_closed(self._core.backend, leases)
        except Exception as error:  # noqa: BLE001  after any error: the leases must be settled
            hooks.report(error, "claim", "could not read the values of groups; trying again")
            for lease in leases:
                self.settle(lease, GiveBack(UNREAD_DELAY))
            return
        for lease in leases:
            try:
                group = groups.get((lease.tenant, lease.id))
                self._settler.add(closed_group(lease, group, self._core.registry, hooks))
            except PayloadError as error:  # its options cannot be read
                self.settle(lease, undecodable(error))

    async def _join(self, leases: list[Lease]) -> None:
        """Tell suspended items that their children have ended, and settle the items that waited for that."""
        by_tenant: dict[str, list[Lease]] = {}
        for lease in leases:
            by_tenant.setdefault(lease.tenant, []).append(lease)
        for tenant, joining in by_tenant.items():
            try:
                answers = await self._core.backend.signal(list(map(children_ended, joining)), tenant=tenant)
            except Exception as error:  # noqa: BLE001  after any error: the leases must be settled
                self._core.hooks.report(error, "claim", "could not tell that children ended; trying again")
                for lease in joining:
                    self._settler.add(PendingSettlement(lease, GiveBack(UNREAD_DELAY)))
                continue
            self._core.wakeups.ready(answer.woken for answer in answers if answer.woken is not None)
            for lease, answer in zip(joining, answers, strict=True):
                full = answer.verb == "full"
                decision = GiveBack(UNREAD_DELAY) if full else Succeed(NOTHING)
                self._settler.add(PendingSettlement(lease, decision))

    def leave(self, lease: Lease, error: BaseException) -> None:
        """Leave an item that cannot be decoded to other workers, or end it."""
        self._held.take_without_attempt(lease)
        self._settler.start_apart(self._undecodable.settle(lease, error, self._settler.add))
