"""The reference for requeue: which items are open again, and what they wait for."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.reference import ReferenceItem, ReferenceStore, must
from treadle.item import GROUP_MARK, Ref


class ReferenceRepair(ReferenceStore):
    def repaired(self, asked: Iterable[ReferenceItem], *, alone: bool) -> list[ReferenceItem]:
        """The items that a requeue opens, those asked for first: try all until no more can be opened."""
        wanted = list(dict.fromkeys(asked))
        opened: dict[ReferenceItem, None] = {}
        names: set[Ref] = set()
        while True:
            candidates = [*wanted, *(() if alone else self._unsatisfiable(names))]
            more = [one for one in candidates if one not in opened and self._can_run(one, names)]
            if not more:
                return [
                    *(one for one in wanted if one in opened),
                    *(one for one in opened if one not in wanted),
                ]
            for one in more:
                opened[one] = None
                names |= self._names(one)

    def _names(self, expected: ReferenceItem) -> set[Ref]:
        return {expected.ref, (expected.ref[0], GROUP_MARK + expected.group.ref[1])}

    def _unsatisfiable(self, names: set[Ref]) -> list[ReferenceItem]:
        return [
            one
            for one in self.items.values()
            if one.reason == "unsatisfiable" and any((one.ref[0], name) in names for name in one.after)
        ]

    def _can_run(self, expected: ReferenceItem, names: set[Ref]) -> bool:
        statuses = [self.status_of(expected, name, names) for name in expected.after]
        good = [status in (None, "success") or expected.item.counting == "done" for status in statuses]
        return sum(good) >= expected.item.need

    def requeue(
        self,
        opened: list[ReferenceItem],
        asked: Iterable[ReferenceItem],
        now: float,
        *,
        alone: bool,
        from_step: str | None = None,
    ) -> None:
        """Open these items again, and block again what is blocked or doomed because of them."""
        named = {*asked}
        for one in opened:
            if one in named:
                one.recorded.forget(dead=one.status == "dead", from_step=from_step)
        ends = {ref: self._ended(ref) for one in opened for ref in self._names(one)}
        lost = {ref for ref, status in ends.items() if status in ("dead", "cancelled")}
        released = {one for one in opened if not one.unreleased}
        for one in opened:
            self._open(one, now if one in named else one.due_at, now)
        for one in opened:
            # What is gone counts as met for an item that was released before.
            one.ended_at = now if one in released else None
            self.block(one, one.after)
            one.ended_at = None
        for one in [one for one in self.open_items() if one not in opened and one.status == "blocked"]:
            self._wait_again(one, lost, alone=alone)

    def _ended(self, ref: Ref) -> str | None:
        tenant, name = ref
        if not name.startswith(GROUP_MARK):
            return self.items[ref].status
        group = self.groups[tenant, name[1:]]
        if group.open:
            return None
        return group.status

    def _open(self, expected: ReferenceItem, due_at: float, now: float) -> None:
        must(expected.ended and expected.status != "success", f"{expected} was requeued")
        group = expected.group
        group.open += 1
        group.ended_at = None
        group.failed -= expected.failed_group
        group.cancelled -= expected.status == "cancelled"
        expected.failed_group = False
        expected.status = "waiting"
        expected.attempt = expected.failures = expected.losses = 0
        expected.reason = expected.ended_at = expected.doom = expected.deadline = None
        expected.due_at = due_at
        expected.ready_at = now if due_at <= now else None

    def _wait_again(self, expected: ReferenceItem, lost: set[Ref], *, alone: bool) -> None:
        if expected.item.counting == "done":
            return
        for name in dict.fromkeys(expected.after):
            ref = (expected.ref[0], name)
            if ref in lost and name not in expected.pending:
                expected.pending[name] = expected.after.count(name)
                expected.open += expected.pending[name]
                self.waiters[ref][expected] = None
        can_run = expected.met + expected.open >= expected.item.need
        if expected.doom == "unsatisfiable" and can_run and not alone:
            self.drop_lease(expected)
            expected.doom = None
            if expected.deadline is not None:
                expected.watched = True
                self.watched[expected] = None
