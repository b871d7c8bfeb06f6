"""Repair: which items a requeue opens again."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

from treadle.item import Counting, Ref, Status

from .submission import counts

R = TypeVar("R", bound=Hashable)


class Condition(NamedTuple):
    """What an item waits for: see `Item`."""

    tenant: str
    after: tuple[str, ...]
    need: int
    counting: Counting


class RepairLookups(NamedTuple, Generic[R]):
    """What a store knows about its items before the requeue."""

    condition: Callable[[R], Condition]
    ended: Callable[[R, str], Status | None]
    """How a prerequisite of an item has ended, by its name in `after`; None if it is open. For one that no
    longer exists: see `gone_prerequisite`."""
    names: Callable[[R], Iterable[Ref]]
    """The names by which others wait for an item: its id, and the name of its group."""
    dependents: Callable[[Ref], Iterable[R]]
    """The items that died `unsatisfiable` and wait for this name."""


class RepairPlan(Generic[R]):
    """Opens items one by one, and with each the items that it was in the way of."""

    def __init__(self, lookups: RepairLookups[R]) -> None:
        self._lookups = lookups
        self.opened: dict[R, None] = {}
        self.names: dict[Ref, None] = {}
        """What is open again."""
        self._news: deque[Ref] = deque()
        self._lacking: dict[R, int] = {}
        """Items whose condition cannot be met yet: how many more of their prerequisites must open."""
        self._in_the_way: defaultdict[Ref, list[R]] = defaultdict(list)

    def open_all(self, asked: Iterable[R]) -> None:
        for row in asked:
            self._consider(row)
        # With a queue: chains may be longer than Python can recurse.
        while self._news:
            name = self._news.popleft()
            for row in self._in_the_way.pop(name, ()):
                if row in self._lacking:
                    self._lacking[row] -= 1
                    if not self._lacking[row]:
                        del self._lacking[row]
                        self._open(row)
            for row in self._lookups.dependents(name):
                self._consider(row)

    def _consider(self, row: R) -> None:
        """Open an item, unless too many of its prerequisites have ended without counting."""
        if row in self.opened or row in self._lacking:
            return
        tenant, after, need, counting = self._lookups.condition(row)
        lacking = need
        in_the_way: list[Ref] = []
        for name in after:
            status = None if (tenant, name) in self.names else self._lookups.ended(row, name)
            if status is None or counts(counting, status):
                lacking -= 1
            else:
                in_the_way.append((tenant, name))
        if lacking <= 0:
            self._open(row)
            return
        self._lacking[row] = lacking
        for ref in in_the_way:
            self._in_the_way[ref].append(row)

    def _open(self, row: R) -> None:
        self.opened[row] = None
        for name in self._lookups.names(row):
            if name not in self.names:
                self.names[name] = None
                self._news.append(name)


def plan_repair(asked: Iterable[R], lookups: RepairLookups[R]) -> tuple[list[R], set[Ref]]:
    """The items that a requeue of `asked` opens, those asked for first; and the names of items and groups
    that are open again.

    An item is opened if its condition can be met once all of them are open. So is an item that died
    `unsatisfiable` and waits for one of them. Items that wait for each other stay as they are.
    """
    wanted = list(asked)
    plan = RepairPlan(lookups)
    plan.open_all(wanted)
    first = [row for row in wanted if row in plan.opened]
    return list(dict.fromkeys([*first, *plan.opened])), {*plan.names}


def gone_prerequisite(*, was_released: bool) -> Status | None:
    """How a prerequisite that no longer exists counts for an item that is opened again. `was_released`:
    whether the item's condition was met before. None: it is open."""
    return "success" if was_released else None
