"""Settle: how attempts end, in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import asyncpg
from msgspec.structs import replace

from treadle.errors import StoreUnavailable
from treadle.item import Contribution, Effects, EndedGroup, Item, Outcome, ReleasedItem, Settled, Settlement
from treadle.retry import Retry

from .base import Verbs
from .calls import Record
from .codes import KINDS, LOSSES, REASON_CODES, SETTLED
from .columns import NAMES, call_of, data, names, numbers, parted
from .failures import is_conflict
from .rows import COLUMNS, circular, rows_of
from .states import text_bytes
from .submitting import marks, refused

_SETTLEMENTS: Final = (
    *("bigint[]", "bigint[]", NAMES, "smallint[]", "smallint[]", "smallint[]", "bytea[]"),
    *("float8[]", "float8[]", "int[]", "int[]", "bytea[]", "int[]", "bytea[]", "bytea[]", "bytea[]"),
    *("boolean", "boolean"),
)
SETTLE: Final = call_of("settle", *_SETTLEMENTS, *COLUMNS, NAMES, "boolean", "boolean")
NO_CHILDREN: Final = (*(None,) * (len(COLUMNS) + 1), True, False)

CONTRIBUTES: Final = 1
FINAL: Final = 2
GIVEN: Final = 4
GROUPED: Final = 8
ENDS: Final = frozenset(("success", "dead", "cancelled"))

NO_MARKS: Final[tuple[set[object], set[object]]] = (set(), set())
BRIEF: Final = Retry(attempts=2, base=0.005, factor=3.0, max=0.1, jitter=1.0)
"""For what stands in the way for a moment."""
PATIENCE: Final = 20
"""How often more something is tried that somebody holds for longer: about a second each."""
FREE: Final = "select treadle.free_items($1::bigint[])"

APPLIED: Final = Outcome(verb="applied")
AGAIN: Final = Outcome(verb="applied", again=True)

RELEASED: Final = ("id", "tenant", "type", "group", "queue", "parent", "after")
CLOSED: Final = ("id", "tenant", "value", "type")


class Settling(Verbs):
    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await Settler(settlements, self._settle, self._free).settle()

    async def _settle(self, arguments: tuple[object, ...]) -> Record:
        return (await self._calls.rows(SETTLE, *arguments, vital=True, conflict=BRIEF))[0]

    async def _free(self, numbers: Sequence[int]) -> set[int]:
        return set(await self._calls.value(FREE, list(numbers), vital=True))


class Settler:
    """One settle: as few calls as it takes, each with settlements that do not depend on each other."""

    def __init__(
        self,
        settlements: Sequence[Settlement],
        call: Callable[[tuple[object, ...]], Awaitable[Record]],
        free: Callable[[Sequence[int]], Awaitable[set[int]]],
    ) -> None:
        self._settlements = settlements
        self._call = call
        self._free = free
        self._outcomes: dict[int, Outcome] = {}
        self._following = Following()

    async def settle(self) -> Settled:
        held: list[int] = []
        waves = deque(_waves(self._settlements))
        while waves:
            wave = waves.popleft()
            try:
                rest = await self._try(wave)
            except StoreUnavailable as error:
                if not is_conflict(error.__cause__):
                    raise
                if len(wave) > 1:
                    waves.extendleft(reversed(await self._part(wave)))
                else:
                    held += wave
            else:
                if rest:
                    waves.appendleft(rest)
        for n in held:
            await self._insist(n)
        outcomes = tuple(self._outcomes[n] for n in range(len(self._settlements)))
        return Settled(outcomes, self._following.effects())

    async def _try(self, wave: list[int]) -> list[int]:
        """One call. The rest is to be tried again, because others were refused."""
        request = Request([self._settlements[n] for n in wave])
        try:
            record = await self._call(request.arguments)
        except asyncpg.PostgresError as error:
            for row, rejected in refused(error).items():
                self._outcomes[wave[row - 1]] = Outcome(verb="rejected", rejected=rejected)
            return [n for n in wave if n not in self._outcomes]
        self._outcomes.update(zip(wave, request.read(record, self._following), strict=True))
        return []

    async def _part(self, wave: list[int]) -> list[list[int]]:
        """Somebody holds something that one of these needs: the others shall not wait for it."""
        free = await self._free([self._settlements[n].lease.ref for n in wave])
        able = [n for n in wave if self._settlements[n].lease.ref in free]
        middle = len(wave) // 2
        if 0 < len(able) < len(wave):
            return [able, [n for n in wave if n not in set(able)]]
        return [wave[:middle], wave[middle:]]

    async def _insist(self, n: int) -> None:
        """Nothing else is left to do but to wait for whoever holds this one."""
        for patience in range(PATIENCE, -1, -1):
            try:
                await self._try([n])
            except StoreUnavailable as error:
                if not patience or not is_conflict(error.__cause__):
                    raise
            else:
                return


def _waves(settlements: Sequence[Settlement]) -> Iterator[list[int]]:
    """Which settlements may go in one call. A token's second one, and one whose children have an id or a key
    that came before, must see what became of the first."""
    wave: list[int] = []
    seen: set[object] = set()
    for n, settlement in enumerate(settlements):
        before, after = marks(settlement.children) if settlement.children else NO_MARKS
        token = settlement.lease.token
        if token in seen or not before.isdisjoint(seen):
            yield wave
            wave, seen = [], set()
        seen |= after
        seen.add(token)
        wave.append(n)
    if wave:
        yield wave


class Request:
    """Some settlements on their way, as one call. Rows count from 1."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self._settlements = settlements
        contributions = [_contribution(one) for one in settlements]
        folds = any(one is not None and one.version is not None for one in contributions)
        given = any(one is not None and one.value is not None for one in contributions)
        self._children = [
            (row, _child(one, item)) for row, one in enumerate(settlements, 1) for item in one.children
        ]
        returns = any(one.kind not in ENDS for one in settlements)
        self.arguments: tuple[object, ...] = (
            numbers([one.lease.ref for one in settlements], whole=True),
            numbers([one.lease.token for one in settlements], whole=True),
            names([one.lease.tenant for one in settlements]),
            numbers([KINDS[one.kind] for one in settlements]),
            numbers([_flags(one) for one in settlements]),
            numbers([REASON_CODES[one.reason] for one in settlements]),
            data([one.result if one.kind == "success" else None for one in settlements]),
            numbers([one.run_at for one in settlements]) if returns else None,
            numbers([one.delay for one in settlements]) if returns else None,
            numbers([None if one is None else one.version for one in contributions]) if folds else None,
            numbers(self._groups()) if folds else None,
            data([None if one is None else one.value for one in contributions]) if given else None,
            *self._failures(),
            folds,
            returns,
            *(self._new_rows() if self._children else NO_CHILDREN),
        )

    def _groups(self) -> list[int]:
        numbers: dict[tuple[str, str], int] = {}
        return [
            numbers.setdefault((one.lease.tenant, one.lease.group_id), len(numbers))
            for one in self._settlements
        ]

    def _failures(self) -> tuple[object, ...]:
        failed = [
            (row, one.failure)
            for row, one in enumerate(self._settlements, 1)
            if one.failure is not None and one.kind in ("retry", "dead")
        ]
        if not failed:
            return (None, None, None, None)
        return (
            numbers([row for row, _ in failed], whole=True),
            [text_bytes(failure.type) for _, failure in failed],
            [text_bytes(failure.message) for _, failure in failed],
            [text_bytes(failure.traceback) for _, failure in failed],
        )

    def _new_rows(self) -> tuple[object, ...]:
        rows = rows_of([item for _, item in self._children], [row for row, _ in self._children])
        self._order = rows.order
        groups = [self._settlements[row - 1].lease.group_id if row > 0 else None for row in rows.owners]
        check = any(circular(family) for family in self._families())
        return (*rows.columns, names(groups), rows.plain, check)

    def _families(self) -> Iterator[Sequence[Item]]:
        """The children of each settlement, where they wait for others."""
        for row, one in enumerate(self._settlements, 1):
            if any(item.after for item in one.children):
                yield [item for owner, item in self._children if owner == row]

    # -- reading the answer ----------------------------------------------------------------------------

    def read(self, record: Record, following: Following) -> list[Outcome]:
        outcomes: list[Outcome] = [APPLIED] * len(self._settlements)
        self._read_ended(record, outcomes, following)
        self._read_refused(record, outcomes)
        self._read_existing(record, outcomes)
        following.add(record)
        return outcomes

    def _read_ended(self, record: Record, outcomes: list[Outcome], following: Following) -> None:
        """Who ended. A lone item's group ended with it, and is not in the store's answer."""
        versions = dict(zip(record["v_row"] or (), record["v_version"] or (), strict=True))
        for row, group in zip(record["x_row"] or (), record["x_grp"] or (), strict=True):
            settlement = self._settlements[row - 1]
            contribution = _contribution(settlement)
            value = None
            if contribution is not None:
                value = settlement.result if contribution.value is None else contribution.value
                version = versions.get(row, 0) if group is not None else 1
                if version:
                    outcomes[row - 1] = Outcome(verb="applied", version=version, value=value)
            if group is None:
                lease = settlement.lease
                following.closed.append(EndedGroup(lease.id, lease.tenant, value, lease.type))

    def _read_refused(self, record: Record, outcomes: list[Outcome]) -> None:
        for row, loss in zip(record["l_row"] or (), record["l_loss"] or (), strict=True):
            outcomes[row - 1] = AGAIN if loss == SETTLED else Outcome(verb="stale", loss=LOSSES[loss])
        if record["m_row"] is not None:
            columns = (record[name] for name in ("m_row", "m_version", "m_value", "m_final"))
            for row, version, value, final in zip(*columns, strict=True):
                outcomes[row - 1] = Outcome(verb="moved", version=version, value=value, final=final)

    def _read_existing(self, record: Record, outcomes: list[Outcome]) -> None:
        found: dict[int, dict[str, str]] = {}
        for row, id in zip(record["e_row"] or (), record["e_id"] or (), strict=True):
            owner, child = self._children[self._order[row - 1]]
            found.setdefault(owner, {})[child.id] = id
        for owner, existing in found.items():
            outcomes[owner - 1] = replace(outcomes[owner - 1], existing=existing)


class Following:
    """What follows from a settle, collected over its calls."""

    def __init__(self) -> None:
        self.closed: list[EndedGroup] = []
        self._released: list[ReleasedItem] = []
        self._doomed = 0

    def add(self, record: Record) -> None:
        """What the functions that end items answer in `r_*`, `c_*` and `doomed`."""
        if record["r_id"] is not None:
            columns = (record[f"r_{name}"] for name in RELEASED)
            for id, tenant, type, group, queue, parent, after in zip(*columns, strict=True):
                self._released.append(ReleasedItem(id, tenant, type, group, queue, parent, parted(after)))
        if record["c_id"] is not None:
            columns = (record[f"c_{name}"] for name in CLOSED)
            for id, tenant, value, type in zip(*columns, strict=True):
                self.closed.append(EndedGroup(id, tenant, value, type))
        self._doomed += record["doomed"] or 0

    def effects(self) -> Effects:
        return Effects(tuple(self._released), tuple(self.closed), self._doomed)


def _contribution(settlement: Settlement) -> Contribution | None:
    return settlement.contribution if settlement.kind == "success" else None


def _flags(settlement: Settlement) -> int:
    flags = GROUPED if settlement.children else 0
    contribution = _contribution(settlement)
    if contribution is not None:
        flags |= CONTRIBUTES
        if contribution.final:
            flags |= FINAL
        if contribution.value is not None:
            flags |= GIVEN | GROUPED
    return flags


def _child(settlement: Settlement, item: Item) -> Item:
    """A child as it is stored: in the tenant of the item, which is its parent unless it names another."""
    lease = settlement.lease
    if item.tenant == lease.tenant and item.parent is not None and item.lease_to is None:
        return item
    parent = lease.id if item.parent is None else item.parent
    return replace(item, tenant=lease.tenant, parent=parent, lease_to=None)
