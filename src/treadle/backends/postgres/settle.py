"""Settle: end attempts, in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

import asyncpg
from msgspec.structs import replace

from treadle.errors import StoreUnavailable
from treadle.item import (
    Contribution,
    Effects,
    EndedGroup,
    Item,
    Outcome,
    Rejected,
    ReleasedItem,
    Settled,
    Settlement,
    SettlementKind,
)
from treadle.retry import Retry
from treadle.store.rules.settlement import LONE_VERSION, next_version

from .columns import (
    KIND_CODES,
    LOSSES,
    REASON_CODES,
    SETTLED,
    data,
    durations,
    encoded,
    names,
    numbers,
    split,
)
from .connection import PostgresVerbs, Record
from .errors import is_conflict, is_locked
from .item_columns import (
    NO_COLUMNS,
    NO_POLICIES,
    bytes_of,
    circular,
    fit_in_one_call,
    marks,
    portions,
    rows_of,
    waves,
)
from .statements import statement, text
from .steps import NO_STEPS, bytes_of_steps, log_columns, step_columns
from .submit import refused

_FRAGMENTS: Final = {name: text("submit", name) for name in ("item_columns", "policy_columns")}
SETTLE: Final = statement("settle", "settle", **_FRAGMENTS)
SUSPEND: Final = statement("settle", "suspend", new_steps=text("steps", "new_steps"), **_FRAGMENTS)
"""For calls in which a settlement suspends its item."""
_RECORDS: Final = {name: text("steps", name) for name in ("new_steps", "new_logs")}
LOGGED: Final = statement("settle", "logged", **_FRAGMENTS, **_RECORDS)
"""For calls in which a settlement has a log."""
UNLOCKED_ITEMS: Final = statement("settle", "unlocked_items")
NO_CHILDREN: Final = (*NO_COLUMNS, None, None, None, *NO_POLICIES), (True, False)

CONTRIBUTES: Final = 1
FINAL: Final = 2
HAS_VALUE: Final = 4
GROUPED: Final = 8
ENDS: Final = frozenset(("success", "dead", "cancelled"))

_log: Final = attrgetter("log")
BRIEF: Final = Retry(attempts=2, base=0.005, factor=3.0, max=0.1, jitter=1.0)
"""For locks that are held for a moment."""
LOCKED_RETRIES: Final = 100
"""Extra attempts for a row that another transaction holds (about 0.2 s each)."""

APPLIED: Final = Outcome(verb="applied")
READY: Final = Outcome(verb="applied", ready=True)
LOCKED: Final = Outcome(verb="rejected", rejected=Rejected("locked", ()))
APPLIED_BEFORE: Final = Outcome(verb="applied", again=True)

MOVED: Final = tuple(f"moved_{name}" for name in ("row", "version", "value", "final"))
RELEASED: Final = tuple(
    f"released_{name}" for name in ("id", "tenant", "type", "group", "queue", "parent", "after")
)
ENDED_GROUP: Final = tuple(f"ended_group_{name}" for name in ("id", "tenant", "value", "type"))


class PostgresSettle(PostgresVerbs):
    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        wait = True in [one.wait for one in settlements]
        return await PostgresSettler(settlements, self._settle, self._unlocked, wait=wait).settle()

    async def _settle(self, sql: str, arguments: tuple[object, ...]) -> Record:
        return (await self._calls.rows(sql, *arguments, vital=True, conflict=BRIEF, locks=False))[0]

    async def _unlocked(self, numbers: Sequence[int]) -> set[int]:
        return set(await self._calls.value(UNLOCKED_ITEMS, list(numbers), vital=True))


class PostgresSettler:
    """One settle: as few calls as possible, each with settlements that do not depend on each other.

    unlocked: answers which items no other transaction has locked.
    wait: whether to wait for other transactions. Otherwise settlements that have to wait are answered.
    """

    def __init__(
        self,
        settlements: Sequence[Settlement],
        call: Callable[[str, tuple[object, ...]], Awaitable[Record]],
        unlocked: Callable[[Sequence[int]], Awaitable[set[int]]],
        *,
        wait: bool,
    ) -> None:
        self._settlements = settlements
        self._call = call
        self._unlocked = unlocked
        self._wait = wait
        self._outcomes: dict[int, Outcome] = {}
        self._effects = EffectsReader()
        self._at = 0.0

    async def settle(self) -> Settled:
        locked: list[int] = []
        left = deque(self._portions())
        while left:
            wave = left.popleft()
            try:
                rest = await self._try(wave)
            except StoreUnavailable as error:
                if not is_conflict(error.__cause__):
                    raise
                if len(wave) > 1:
                    left.extendleft(reversed(await self._separate(wave, error)))
                elif self._wait:
                    locked += wave
                elif is_locked(error.__cause__):
                    self._outcomes[wave[0]] = LOCKED
                else:
                    raise
            else:
                if rest:
                    left.appendleft(rest)
        for n in locked:
            await self._wait_for(n)
        outcomes = tuple([self._outcomes[n] for n in range(len(self._settlements))])
        return Settled(outcomes, self._effects.effects(), self._at)

    def _portions(self) -> Iterator[list[int]]:
        """What goes in one call each."""
        # Lists in this class are built without generators: those take twice as long for each settlement.
        sizes = [0 if one.result is None else len(one.result) for one in self._settlements]
        for n, one in enumerate(self._settlements):
            if one.children:
                sizes[n] += bytes_of(one.children)
            if one.steps:
                sizes[n] += bytes_of_steps(one.steps)
            if one.log is not None:
                sizes[n] += len(one.log)
            if one.contribution is not None and one.contribution.value is not None:
                sizes[n] += len(one.contribution.value)
        is_small = fit_in_one_call(sizes)
        for wave in _waves(self._settlements):
            yield from (wave,) if is_small else portions(wave, sizes.__getitem__)

    async def _try(self, wave: list[int]) -> list[int]:
        """Make one call. Returns those to try again, because others of the call were refused."""
        call = SettleCall([self._settlements[n] for n in wave])
        try:
            record = await self._call(call.sql, call.arguments)
        except asyncpg.PostgresError as error:
            for row, rejected in refused(error).items():
                self._outcomes[wave[row - 1]] = Outcome(verb="rejected", rejected=rejected)
            return [n for n in wave if n not in self._outcomes]
        self._at = record["settled_at"]
        self._outcomes.update(zip(wave, call.read(record, self._effects), strict=True))
        return []

    async def _separate(self, wave: list[int], error: StoreUnavailable) -> list[list[int]]:
        """Another transaction holds a row that one of these needs: split the wave, so that the others do not
        wait for it. Those whose own row is locked are not tried again."""
        unlocked = await self._unlocked([self._settlements[n].lease.ref for n in wave])
        able = [n for n in wave if self._settlements[n].lease.ref in unlocked]
        rest = [n for n in wave if self._settlements[n].lease.ref not in unlocked]
        if rest and not self._wait and is_locked(error.__cause__):
            self._outcomes.update(dict.fromkeys(rest, LOCKED))
            return [able] if able else []
        if able and rest:
            return [able, rest]
        middle = len(wave) // 2
        return [wave[:middle], wave[middle:]]

    async def _wait_for(self, n: int) -> None:
        """Settle one whose rows another transaction holds, once that lets them go."""
        for retries in range(LOCKED_RETRIES, -1, -1):
            try:
                await self._try([n])
            except StoreUnavailable as error:
                if not retries or not is_conflict(error.__cause__):
                    raise
            else:
                return


def _waves(settlements: Sequence[Settlement]) -> Iterable[list[int]]:
    """Which settlements may go in one call: see `marks`. A second one of the same token must see what became
    of the first."""
    tokens = {one.lease.token for one in settlements}
    parents = [one for one in settlements if one.children]
    if len(settlements) == 1 or (0 < len(tokens) == len(settlements) and not parents):
        return [list(range(len(settlements)))]
    marked = ((marks(one.children), {one.lease.token}) for one in settlements)
    return waves((before | token, after | token) for (before, after), token in marked)


class SettleCall:
    """Some settlements as one call. Rows count from 1."""

    def __init__(self, settlements: Sequence[Settlement]) -> None:
        self._settlements = settlements
        kinds: list[SettlementKind] = [one.kind for one in settlements]
        contributions = [one.contribution if one.kind == "success" else None for one in settlements]
        distinct = {id(one): one for one in contributions}  # most settlements share one
        folds = any(one is not None and one.version is not None for one in distinct.values())
        has_values = any(one is not None and one.value is not None for one in distinct.values())
        self._children = [
            (row, _child(one, item))
            for row, one in enumerate(settlements, 1)
            if one.children
            for item in one.children
        ]
        flags = {key: _flags(one) for key, one in distinct.items()}
        returns = not ENDS.issuperset(kinds)
        columns, plainness = self._child_rows() if self._children else NO_CHILDREN
        self.arguments: tuple[object, ...] = (
            numbers([one.lease.ref for one in settlements], whole=True),
            numbers([one.lease.token for one in settlements], whole=True),
            names([one.lease.tenant for one in settlements]),
            numbers([KIND_CODES[kind] for kind in kinds]),
            numbers(
                [
                    flags[id(given)] | GROUPED if one.children else flags[id(given)]
                    for one, given in zip(settlements, contributions, strict=True)
                ]
            ),
            numbers([REASON_CODES[one.reason] for one in settlements]),
            data([one.result if one.kind == "success" else None for one in settlements]),
            numbers([one.run_at for one in settlements]) if returns else None,
            numbers([one.delay for one in settlements]) if returns else None,
            numbers([None if one is None else one.version for one in contributions]) if folds else None,
            numbers(self._group_indexes()) if folds else None,
            data([None if one is None else one.value for one in contributions]) if has_values else None,
            *self._failures(),
            durations([one.ran for one in settlements]),
            *columns,
            folds,
            returns,
            *plainness,
            self._marks() if "dead" in kinds else None,
        )
        self.sql = SETTLE
        if "suspend" in kinds:
            self.sql, self.arguments = SUSPEND, (*self.arguments, *self._steps())
        if any(map(_log, settlements)):
            none = NO_STEPS if self.sql is SETTLE else ()
            rows = enumerate(settlements, 1)
            logs = {row: (one.lease, one.log) for row, one in rows if one.log is not None}
            self.sql, self.arguments = LOGGED, (*self.arguments, *none, *log_columns(logs))

    def _group_indexes(self) -> list[int]:
        indexes: dict[tuple[str, str], int] = {}
        return [
            indexes.setdefault((one.lease.tenant, one.lease.group_id), len(indexes))
            for one in self._settlements
        ]

    def _failures(self) -> tuple[object, ...]:
        failed = [
            (row, one.failure)
            for row, one in enumerate(self._settlements, 1)
            if one.failure is not None and one.kind in ("retry", "dead", "cancelled")
        ]
        if not failed:
            return (None, None, None, None)
        return (
            numbers([row for row, _ in failed], whole=True),
            [encoded(failure.type) for _, failure in failed],
            [encoded(failure.message) for _, failure in failed],
            [encoded(failure.traceback) for _, failure in failed],
        )

    def _steps(self) -> tuple[object, ...]:
        suspending = ((n, one) for n, one in enumerate(self._settlements, 1) if one.kind == "suspend")
        return step_columns((row, step) for row, one in suspending for step in one.steps)

    def _marks(self) -> list[str | None] | None:
        """None if no item dies with a mark."""
        marks = [one.mark or None if one.kind == "dead" else None for one in self._settlements]
        return marks if any(marks) else None

    def _child_rows(self) -> tuple[tuple[object, ...], tuple[bool, bool]]:
        """The columns of the children; whether they are plain, and whether to look for cycles."""
        rows = rows_of([item for _, item in self._children], [row for row, _ in self._children])
        self._order = rows.order
        groups = [self._group_of(n) for n in rows.order]
        cycles = any(circular(family, group) for family, group in self._blocked_families())
        closes = None
        if any(item.closes_group for _, item in self._children):
            count = len(self._children)
            closes = numbers([n < count and self._children[n][1].closes_group for n in rows.order])
        columns = (*rows.columns, names(groups), rows.contributes, closes, *rows.policies)
        return columns, (rows.plain, cycles)

    def _group_of(self, n: int) -> str | None:
        """The group that a child joins; None for a placeholder."""
        if n >= len(self._children):
            return None
        row, item = self._children[n]
        return self._settlements[row - 1].lease.group_id if item.group_id is None else item.group_id

    def _blocked_families(self) -> Iterator[tuple[Sequence[Item], str]]:
        """The children of each settlement that has blocked ones, and the group that they join."""
        for row, one in enumerate(self._settlements, 1):
            if any(item.after for item in one.children):
                yield [item for owner, item in self._children if owner == row], one.lease.group_id

    def read(self, record: Record, effects: EffectsReader) -> list[Outcome]:
        """The outcomes in an answer. Its effects are added to `effects`."""
        outcomes: list[Outcome] = [APPLIED] * len(self._settlements)
        self._read_ended(record, outcomes, effects)
        if self.sql is not SETTLE:
            for row in record["ready_row"] or ():
                outcomes[row - 1] = READY
        self._read_not_applied(record, outcomes)
        self._read_existing(record, outcomes)
        effects.add(record)
        return outcomes

    def _read_ended(self, record: Record, outcomes: list[Outcome], effects: EffectsReader) -> None:
        """The items that ended. The group of an item without a group row ended with it, and is not in the
        store's answer."""
        contributed = frozenset(record["contributed_row"] or ())
        silent = frozenset(record["silent_row"] or ())
        settlements, ended_groups = self._settlements, effects.ended_groups
        for row, group in zip(record["ended_row"] or (), record["ended_group"] or (), strict=True):
            settlement = settlements[row - 1]
            contribution = settlement.contribution
            if row in silent or settlement.kind != "success":
                contribution = None
            value = None
            if contribution is not None:
                value = settlement.result if contribution.value is None else contribution.value
                if group is None:
                    outcomes[row - 1] = Outcome(verb="applied", version=LONE_VERSION, value=value)
                elif row in contributed:
                    version = next_version(settlement.lease.token, contribution.version)
                    outcomes[row - 1] = Outcome(verb="applied", version=version, value=value)
            if group is None:
                lease = settlement.lease
                failed = None if settlement.kind == "dead" else 0
                ended_groups.append(EndedGroup(lease.id, lease.tenant, value, lease.type, failed))

    def _read_not_applied(self, record: Record, outcomes: list[Outcome]) -> None:
        for row, loss in zip(record["lost_row"] or (), record["lost_code"] or (), strict=True):
            outcomes[row - 1] = (
                APPLIED_BEFORE if loss == SETTLED else Outcome(verb="stale", loss=LOSSES[loss])
            )
        if record["moved_row"] is not None:
            columns = (record[name] for name in MOVED)
            for row, version, value, final in zip(*columns, strict=True):
                outcomes[row - 1] = Outcome(verb="moved", version=version, value=value, final=final)

    def _read_existing(self, record: Record, outcomes: list[Outcome]) -> None:
        found: dict[int, dict[str, str]] = {}
        for row, id in zip(record["existing_row"] or (), record["existing_id"] or (), strict=True):
            owner, child = self._children[self._order[row - 1]]
            found.setdefault(owner, {})[child.id] = id
        for owner, existing in found.items():
            outcomes[owner - 1] = replace(outcomes[owner - 1], existing=existing)


class EffectsReader:
    """Collects the effects of several calls, from rows with the columns of `treadle.effects`."""

    def __init__(self) -> None:
        self.ended_groups: list[EndedGroup] = []
        self._released: list[ReleasedItem] = []
        self._doomed = 0

    def add(self, record: Record) -> None:
        if record["released_id"] is not None:
            columns = (record[name] for name in RELEASED)
            for id, tenant, type, group, queue, parent, after in zip(*columns, strict=True):
                self._released.append(ReleasedItem(id, tenant, type, group, queue, parent, split(after)))
        if record["ended_group_id"] is not None:
            columns = (record[name] for name in ENDED_GROUP)
            for id, tenant, value, type in zip(*columns, strict=True):
                self.ended_groups.append(EndedGroup(id, tenant, value, type))
        self._doomed += record["doomed"] or 0

    def effects(self) -> Effects:
        return Effects(tuple(self._released), tuple(self.ended_groups), self._doomed)


def _flags(contribution: Contribution | None) -> int:
    if contribution is None:
        return 0
    flags = CONTRIBUTES
    if contribution.final:
        flags |= FINAL
    if contribution.value is not None:
        flags |= HAS_VALUE | GROUPED
    return flags


def _child(settlement: Settlement, item: Item) -> Item:
    """A child as it is stored: in the tenant of the settled item, which is its parent unless it names
    another."""
    lease = settlement.lease
    if item.tenant == lease.tenant and item.parent is not None and item.lease_to is None:
        return item
    parent = lease.id if item.parent is None else item.parent
    return replace(item, tenant=lease.tenant, parent=parent, lease_to=None)
