"""Watch: why an item waits, how the store stands, what has died, which lines wait.

Lines are put together here: scripts know kinds, which are the items of one type in a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from treadle.item import Counting, WorkerState
from treadle.item_facts import (
    DeadMark,
    Explanation,
    MarkRelease,
    Overview,
    QueueAge,
    Release,
    UnservedType,
    mark_releases,
)
from treadle.records import Line, Related, RelatedItem
from treadle.store.fleet import Fleet
from treadle.store.rules.watching import (
    MOST_AGED_LINES,
    MOST_WORKERS,
    shown_counts,
    shown_prerequisites,
    unserved_since,
    why_again,
)

from .item_bytes import STATUSES, Argument, item_state, read_double, read_item
from .kinds import KindCounts, kind_names
from .read import NOT_COUNTED, RedisRead, full_state, portions
from .scripts import RedisScript
from .workers import read_workers

_EXPLAIN: Final = RedisScript("explain")
_OVERVIEW: Final = RedisScript("overview")
_HEADS: Final = RedisScript("heads")
_READY_KINDS: Final = RedisScript("ready_kinds")
_MARKS: Final = RedisScript("marks")
_RELATED: Final = RedisScript("related")

_MOST_KINDS: Final = 300
"""Of one call."""
_MOST_MARKS: Final = 150
_MOST_AGED: Final = 400
"""Kinds that are looked at for the ages of all queues. Each queue has its share."""
_LEAST_AGED: Final = 20
_ALL: Final = 2**53


class ReadyHead(NamedTuple):
    """The ready items of some kinds."""

    size: int
    """As far as they were counted."""
    place: bytes
    """Of the first of them: the lowest goes first."""
    ready_at: float
    id: str
    kind: bytes
    """Its number."""


class RedisWatch(RedisRead):
    # -- one item --------------------------------------------------------------------------------------

    async def explain(self, id: str, *, tenant: str | None = None) -> Explanation | None:
        answer = await self._link.run(_EXPLAIN, [tenant or "", id], on="read")
        return None if answer is None else _explanation(*answer)

    async def related(self, id: str, *, tenant: str | None = None, count: int = 100) -> Related | None:
        answer = await self._link.run(_RELATED, [tenant or "", id, max(0, count)], on="read")
        if answer is None:
            return None
        children, dependents = answer
        return Related(children=_in_short(children), dependents=_in_short(dependents))

    # -- a queue ---------------------------------------------------------------------------------------

    async def lines(
        self, queue: str, *, tenant: str | None = None, count: int = 200, cap: int = 1000
    ) -> Sequence[Line]:
        found = await self._link.run(_READY_KINDS, [queue, tenant or ""], on="read")
        lines = sorted(
            (kind.tenant, kind.lane, kinds)
            for kind, kinds in zip(map(kind_names, found[::2]), found[1::2], strict=True)
        )
        shown: list[Line] = []
        for some in portions(lines, max(1, min(count, _MOST_KINDS))):
            if len(shown) >= count:
                break
            numbers = [[kinds[at : at + 4] for at in range(0, len(kinds), 4)] for _, _, kinds in some]
            heads = await self._heads(numbers, most=cap + 1)
            shown += (
                _line(tenant, lane, head, cap)
                for (tenant, lane, _), head in zip(some, heads, strict=True)
                if head is not None
            )
        return shown[: max(0, count)]

    # -- the store -------------------------------------------------------------------------------------

    async def overview(
        self, *, tenant: str | None = None, quick: bool = False, brief: bool = False
    ) -> Overview:
        answer = await self._link.run(_OVERVIEW, on="read")
        now, unknown, rows, began, doomed, counts, kinds = answer
        at, workers = read_double(now), _by_id(rows)
        lost = {
            type.decode(): read_double(since) for type, since in zip(unknown[::2], unknown[1::2], strict=True)
        }
        counted = await self._counted() if counts is None else self._kind_counts.read(counts, kinds)
        found = counted.sums(tenant, without=NOT_COUNTED)
        ready = {key: count for key, count in found.items() if key[3] == "ready"}
        queues = dict.fromkeys(queue for _, queue, _, _ in ready)
        most = max(_LEAST_AGED, _MOST_AGED // max(1, len(queues)))
        lines = {queue: _at_most(most, counted.lines(queue, tenant)) for queue in queues}
        fleet, unserved = Fleet(workers, at), Counter[str]()
        for (_, _, type, _), count in ready.items():
            if type in unserved or not fleet.serves(type=type):
                unserved[type] += count
        # Doomed items count as ready, and are in no line.
        kinds = counted.ready(unserved, tenant) if doomed else {}
        if kinds:
            heads = await self._heads(list(kinds.values()), most=_ALL)
            unserved = Counter(
                {type: head.size for type, head in zip(kinds, heads, strict=True) if head is not None}
            )
        return Overview(
            now=at,
            counts=shown_counts(found),
            ages=tuple(await self._ages(lines, counted)),
            unserved=tuple(
                UnservedType(type, number, unserved_since(type, workers, lost, at))
                for type, number in sorted(unserved.items())
            ),
            workers=tuple(workers),
            releases=_releases(began),
        )

    async def _ages(self, queues: Mapping[str, Sequence[list[bytes]]], counted: KindCounts) -> list[QueueAge]:
        """queues: the kinds of their lines."""
        names = [queue for queue, lines in queues.items() for _ in lines]
        heads = await self._heads([line for lines in queues.values() for line in lines])
        oldest: dict[str, ReadyHead] = {}
        for queue, head in zip(names, heads, strict=True):
            if head is not None and (queue not in oldest or head.ready_at < oldest[queue].ready_at):
                oldest[queue] = head
        found: list[QueueAge] = []
        for queue, head in sorted(oldest.items()):
            kind = counted.kind(head.kind)
            if kind is None:
                found.append(QueueAge(queue, head.ready_at))
            else:
                found.append(QueueAge(queue, head.ready_at, kind.tenant, kind.type))
        return found

    async def marks(
        self,
        *,
        tenant: str | None = None,
        count: int = 100,
        cap: int = 10_000,
        release: str | None = None,
    ) -> Sequence[DeadMark]:
        found: list[tuple[int, DeadMark]] = []
        behind = 0
        while len(found) < count:
            asked: list[Argument] = [tenant or "", behind, _MOST_MARKS, max(0, cap)]
            asked += () if release is None else (release,)
            looked, marks = await self._link.run(_MARKS, asked, on="read")
            found += [_dead_mark(cap, *mark) for mark in marks]
            behind += looked
            if looked < _MOST_MARKS:
                break
        shown = found[: max(0, count)]
        shown.sort(key=lambda each: (each[1].last_at, each[0]), reverse=True)
        return [mark for _, mark in shown]

    async def _heads(self, lists: Sequence[Sequence[bytes]], *, most: int = 0) -> list[ReadyHead | None]:
        """The heads of lists of kinds. None: none of them has an item in line. `most`: they are counted until
        there are that many."""
        found: list[ReadyHead | None] = [None] * len(lists)
        for some in _in_portions(lists):
            asked: list[Argument] = [most]
            for _, numbers in some:
                asked += (len(numbers), *numbers)
            heads = await self._link.run(_HEADS, asked, on="read")
            for (at, _), head in zip(some, heads, strict=True):
                if head is not None:
                    found[at] = _first(found[at], *head)
        return found


def _releases(values: Sequence[bytes]) -> tuple[Release, ...]:
    """From names and instants, one after the other."""
    found = [
        Release(name.decode(), read_double(at)) for name, at in zip(values[::2], values[1::2], strict=True)
    ]
    return tuple(sorted(found, key=lambda each: (each.began_at, each.name), reverse=True))


def _by_id(rows: Sequence[Any]) -> list[WorkerState]:
    return sorted(read_workers(rows), key=lambda worker: worker.id)


# --------------------------------------------------------------------------------------------------- one item


def _explanation(
    now: bytes,
    raw: Sequence[Any],
    waits: Sequence[int],
    prerequisites: Sequence[bytes],
    unknown: Sequence[bytes],
    ahead: int,
    lanes: int,
    lane_holder: bytes,
    rows: Sequence[Any],
) -> Explanation:
    found, state = read_item(raw[:6]), full_state(raw)
    at, workers = read_double(now), _by_id(rows)
    blocked = found.status == "blocked"
    counting: Counting = "done" if found.extra.d else "success"
    lost = {name: read_double(since) for name, since in zip((state.type, ""), unknown, strict=True) if since}
    again = why_again(state, found.verdict, keeps_place=found.place != 0)
    need, met, open = waits
    return Explanation(
        now=at,
        item=state,
        verdict=found.verdict,
        need=need,
        met=met,
        open=open,
        counting=counting if blocked else "success",
        prerequisites=shown_prerequisites(
            state,
            counting,
            {name: (STATUSES[status], type) for name, status, type in _by_three(prerequisites)},
        )
        if blocked or found.verdict is not None
        else (),
        begun=found.begun or found.status != "running",
        freed=again.freed,
        given_back=again.given_back,
        unknown_since=unserved_since(state.type, workers, lost, at) if found.ended_at is None else None,
        ahead=ahead,
        lanes=lanes,
        lane_holder=lane_holder.decode() or None,
        workers=tuple(workers[:MOST_WORKERS]),
    )


def _by_three(values: Sequence[bytes]) -> Iterator[tuple[str, bytes, str]]:
    """Names, letters of statuses, and types."""
    for first in range(0, len(values), 3):
        name, status, type = values[first : first + 3]
        yield name.decode(), status, type.decode()


def _in_short(values: Sequence[bytes]) -> tuple[RelatedItem, ...]:
    return tuple(RelatedItem(id, type, STATUSES[status]) for id, status, type in _by_three(values))


# -------------------------------------------------------------------------------------------- lines and marks


def _at_most(most: int, lines: Iterable[list[bytes]]) -> list[list[bytes]]:
    """The first lines, with as many kinds in all, and one line at least."""
    found: list[list[bytes]] = []
    for line in lines:
        most -= len(line)
        if found and (most < 0 or len(found) >= MOST_AGED_LINES):
            break
        found.append(line)
    return found


def _in_portions(lists: Sequence[Sequence[bytes]]) -> Iterator[list[tuple[int, Sequence[bytes]]]]:
    """The lists, each with its place, in portions of `_MOST_KINDS`. A longer one is in several."""
    found: list[tuple[int, Sequence[bytes]]] = []
    left = _MOST_KINDS
    for at, numbers in enumerate(lists):
        for some in portions(numbers, _MOST_KINDS):
            if len(some) > left:
                yield found
                found, left = [], _MOST_KINDS
            found.append((at, some))
            left -= len(some)
    if found:
        yield found


def _first(
    known: ReadyHead | None, size: int, place: bytes, ready_at: bytes, id: bytes, kind: bytes
) -> ReadyHead:
    """The head of two lists together."""
    if known is not None and known.place < place:
        return known._replace(size=known.size + size)
    return ReadyHead(size + (known.size if known else 0), place, read_double(ready_at), id.decode(), kind)


def _line(tenant: str, lane: str, head: ReadyHead, cap: int) -> Line:
    return Line(
        tenant=tenant,
        lane=lane,
        count=min(head.size, cap),
        capped=head.size > cap,
        oldest_ready=head.ready_at,
        first=head.id,
    )


def _dead_mark(
    cap: int, mark: bytes, total: int, oldest: bytes | None, raw: Sequence[bytes] | None, died: Sequence[Any]
) -> tuple[int, DeadMark]:
    """A mark, and the number of the item that died last. Without its row: no more than the counts."""
    releases = mark_releases(
        MarkRelease(name.decode(), count, read_double(first), read_double(began) if began else None)
        for name, count, first, began in zip(*(died[n::4] for n in range(4)), strict=True)
    )
    counts = min(total, cap), total > cap
    if raw is None or oldest is None:
        return 0, DeadMark(mark.decode(), "", "", "", *counts, 0.0, 0.0, "", "", releases)
    newest = read_item(raw)
    state = item_state(newest, history=True)
    last = state.history[-1] if state.history else None
    return newest.number, DeadMark(
        mark.decode(),
        state.type,
        "" if last is None else last.error_type,
        "" if last is None else last.message,
        *counts,
        read_double(oldest),
        state.ended_at or 0.0,
        state.id,
        state.tenant,
        releases,
    )
