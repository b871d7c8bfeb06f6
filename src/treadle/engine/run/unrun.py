"""Items that a worker settles without a handler: doomed, of built-in types, or not decodable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from treadle.bulk_action import BULK_TYPE
from treadle.define.dependency import DEPENDENCY
from treadle.engine.core import Core, PortionRunner
from treadle.errors import PayloadError
from treadle.item import GROUP_TYPE, Lease

from .built_in import bulk_settlement, closed_group, met_dependency, read_closed
from .decide import Decision, Die, GiveBack, judged, undecodable
from .held import HeldLeases
from .pending import PendingSettlement
from .settle import Settler
from .undecodable import UndecodableItems
from .unsatisfied import read_causes

UNREAD_DELAY: Final = 1.0
"""Seconds after which an item that closes a group is tried again, if the group could not be read."""


class UnrunItems:
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
        self._settler.settle_unrun(PendingSettlement(lease, decision))

    def settle_all(self, leases: Iterable[Lease]) -> None:
        """Settle leases that have a verdict, or whose type has no handler here."""
        closing: list[Lease] = []
        unsatisfied: list[Lease] = []
        for lease in leases:
            if lease.verdict == "unsatisfiable" and lease.after:
                self._held.take_unrun(lease)
                unsatisfied.append(lease)
            elif lease.verdict is not None:
                self.settle(lease, judged(lease, lease.verdict))
            elif lease.type == GROUP_TYPE:
                self._held.take_unrun(lease)
                closing.append(lease)
            elif lease.type == DEPENDENCY.name:
                try:
                    self._settler.settle_unrun(met_dependency(lease))
                except PayloadError as error:
                    self.leave(lease, error)
            elif lease.type == BULK_TYPE and self._core.run_portion is not None:
                self._held.take_unrun(lease)
                self.runs_bulk = True
                self._settler.start_apart(self._run_portion(self._core.run_portion, lease))
            else:
                # It was not asked for. A worker that has the type will claim it.
                self.settle(lease, GiveBack())
        if closing:
            self._settler.start_apart(self._close_groups(closing))
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

    def leave(self, lease: Lease, error: BaseException) -> None:
        """Leave an item that cannot be decoded to other workers, or end it."""
        self._held.take_unrun(lease)
        self._settler.start_apart(self._undecodable.settle(lease, error, self._settler.add))
