"""`treadle tail`: what happens to items, as it happens.

The store keeps items, not events. So this looks at it after a wake-up, and once a second: at new items, at
those that run, at those that were open before, and at those that a wake-up named. What has changed since the
last look is what happened. The looks are bounded: if more happens than they show, a line says so.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args

import msgspec
import typer

from treadle.base.timing import iso
from treadle.base.wording import duration, first_line, plain
from treadle.errors import InputError
from treadle.item import DEFAULT_TENANT, NEVER, TERMINAL, Filter, ItemState, Ref, Status, Wake
from treadle.operate.filters import OPEN_STATUSES, attempt_words, names_in
from treadle.store.reads import get_refs

from .filters import QueueOption, TypeOption
from .names import remark_filters
from .shell import PatientReader, Shell, operator_command
from .shown import ASCII_SHAPES, SHAPES, STATUS_STYLES
from .text import columns, cut, speaks_unicode, styled, terminal_width

EventName = Literal[
    "queued", "started", "suspended", "resumed", "failed", "lost", "succeeded", "dead", "cancelled"
]
EVENT_NAMES: Final[tuple[EventName, ...]] = get_args(EventName)
CONFIRMED: Final = 0.2
"""Seconds until the next look if items were claimed: a worker may give them back before they start."""
EVERY: Final = 1.0
"""Seconds between two looks if no wake-up comes."""
SOONEST: Final = 0.1
"""Seconds between two looks at least."""
LOOKED_AT: Final = 1000
"""Items of each kind per look."""
REMEMBERED: Final = 20_000
OVERLAP: Final = 2.0
"""Seconds. An item that was queued by a transaction may appear this much later."""


class Happened(NamedTuple):
    """One event."""

    name: EventName
    at: float
    item: ItemState
    """As it was seen: later than the event."""
    attempt: int
    error: str = ""


class LastSeen(NamedTuple):
    """What is compared with the next look."""

    status: Status
    attempt: int
    """The last attempt that was told."""
    failures: int
    losses: int
    claimed_at: float | None = None
    suspended: bool = False
    """Whether it was suspended, and has not gone on for sure."""


def register(commands: typer.Typer) -> None:
    operator_command(commands, "tail")(tail)


async def tail(
    shell: Shell,
    type: TypeOption = None,
    queue: QueueOption = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event", metavar="EVENT", help=f"only these, separated by commas: {', '.join(EVENT_NAMES)}"
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="stop after this many events")] = None,
) -> int | None:
    """Print what happens to items, as it happens, until Ctrl-C.

    An event between two looks at the store may be missed: one per second, and one after each wake-up.
    """
    wanted = names_in(event)
    for name in wanted:
        if name not in EVENT_NAMES:
            raise InputError.of("--event", name, f"does not exist: it is one of {', '.join(EVENT_NAMES)}")
    where = Filter(tenant=shell.tenant, type=type, queue=queue)
    await remark_filters(shell, type, queue)
    watcher = Watcher(shell, where)
    left = count
    try:
        async for happened in _events(shell, watcher):
            if not wanted or happened.name in wanted:
                _tell(shell, happened)
                if left is not None:
                    left -= 1
                    if left == 0:
                        return None
    except asyncio.CancelledError:  # Ctrl-C
        return None
    return None


async def _events(shell: Shell, watcher: Watcher) -> AsyncGenerator[Happened]:
    woken = asyncio.Event()

    def receive(wake: Wake) -> None:
        watcher.named.update(wake.items)
        woken.set()

    unsubscribe = await shell.backend.subscribe(receive)
    try:
        await watcher.look()  # what was there before
        reader = PatientReader(shell)
        while True:
            for happened in await reader.read(watcher.look) or ():
                yield happened
            shell.flush()
            if watcher.missed:
                shell.warn("more has happened than one look shows")
            await asyncio.sleep(SOONEST)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), CONFIRMED if watcher.claimed else EVERY)
            woken.clear()
    finally:
        unsubscribe()


class Watcher:
    """Remembers items, and finds what has changed."""

    def __init__(self, shell: Shell, where: Filter) -> None:
        self._shell = shell
        self._where = where
        self._seen: OrderedDict[Ref, LastSeen] = OrderedDict()
        """The items of earlier looks: those looked at last come last."""
        self._start = 0.0
        self._looked_at: float | None = None
        self.named: set[Ref] = set()
        """Items that wake-ups named."""
        self.missed = False
        """Whether the last look had no room for everything."""
        self.claimed = False
        """Whether the last look saw items that were claimed just before, and may not start."""

    async def look(self) -> list[Happened]:
        """Return what has happened since the last look, in order. The first look returns nothing."""
        now, last = await self._shell.now(), self._looked_at
        self.missed = self.claimed = False
        states: dict[Ref, ItemState] = {}
        if last is None:
            self._start = now
            await self._list(states, status=OPEN_STATUSES)
            self.missed = False
        else:
            await self._list(states, since=last - OVERLAP)
            await self._list(states, status=("running",))
            await self._get(states)
        happened: list[Happened] = []
        for ref, state in states.items():
            if last is not None:
                happened += compare(self._seen.get(ref), state, now, self._start)
            self._remember(ref, state)
        self._looked_at = now
        return sorted(happened, key=lambda each: each.at)

    async def _list(self, states: dict[Ref, ItemState], **conditions: Any) -> None:
        where = msgspec.structs.replace(self._where, **conditions)
        page = await self._shell.backend.list(where, limit=LOOKED_AT, history=True)
        self.missed = self.missed or page.cursor is not None
        for state in page.items:
            states[state.tenant, state.id] = state

    async def _get(self, states: dict[Ref, ItemState]) -> None:
        """Read the items that wake-ups named, those that ran at the last look, and some of the others."""
        named, self.named = self.named, set()
        open_before = [ref for ref, seen in self._seen.items() if seen.status not in TERMINAL]
        ran = [ref for ref in open_before if self._seen[ref].status == "running"]
        wanted = [ref for ref in dict.fromkeys((*named, *ran, *open_before)) if ref not in states]
        self.missed = self.missed or len({*named, *ran}) > LOOKED_AT
        own = [(tenant, id) for tenant, id in wanted[:LOOKED_AT] if self._where.tenant in (None, tenant)]
        found = await get_refs(self._shell.backend, own)
        for ref in own:
            state = found.get(ref)
            if state is None:
                self._seen.pop(ref, None)  # deleted, or pruned
            elif self._where.type in (None, state.type) and self._where.queue in (None, state.queue):
                states[ref] = state

    def _remember(self, ref: Ref, state: ItemState) -> None:
        before, attempt, suspended = self._seen.get(ref), state.attempt, state.suspended
        if not has_started(before, state):
            self.claimed = True
            attempt = 0 if before is None else min(before.attempt, attempt)
            suspended = before is not None and before.suspended
        self._seen[ref] = LastSeen(
            state.status, attempt, state.failures, state.losses, state.claimed_at, suspended
        )
        self._seen.move_to_end(ref)
        while len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)


def has_started(before: LastSeen | None, state: ItemState) -> bool:
    """Whether the attempts of an item have started for sure. A worker may give back what it has just claimed:
    so an item that runs has started only if it was seen before, with the same claim."""
    return state.status != "running" or (before is not None and before.claimed_at == state.claimed_at)


def compare(before: LastSeen | None, state: ItemState, now: float, start: float) -> Iterator[Happened]:
    """What has happened to an item since it was seen. Not what happened before `start`."""
    yield from (each for each in _changes(before, state, now) if each.at >= start)


def _changes(before: LastSeen | None, state: ItemState, now: float) -> Iterator[Happened]:
    was = before or LastSeen("blocked", 0, 0, 0)
    if before is None:
        yield Happened("queued", state.queued_at, state, 0)
    suspends = state.suspended and not _is_suspended_still(was, state)
    # The attempt of a suspended item was given back.
    attempt = state.attempt + 1 if suspends else state.attempt
    if attempt > was.attempt and has_started(before, state):
        began = state.started_at or state.claimed_at or now
        if was.suspended:
            yield Happened("resumed", began, state, attempt)
        yield Happened("started", began, state, attempt)
    yield from _failures(was, state, now)
    if suspends:
        yield Happened("suspended", now, state, attempt)
    if state.status in TERMINAL and was.status not in TERMINAL:
        end, error = state.ended_at or now, state.error or ""
        yield Happened(ENDS[state.status], end, state, state.attempt, error)


def _is_suspended_still(was: LastSeen, state: ItemState) -> bool:
    return was.suspended and was.status != "running" and was.claimed_at == state.claimed_at


def _failures(was: LastSeen, state: ItemState, now: float) -> Iterator[Happened]:
    """The attempts that failed since, as far as the history has them."""
    failed = state.failures - was.failures
    lost = max(state.losses - was.losses, 0)
    if failed + lost <= 0:
        return
    for entry in state.history[-(failed + lost) :]:
        name: EventName = "lost" if entry.error_type == "LeaseLost" else "failed"
        error = f"{entry.error_type}: {entry.message}" if entry.message else entry.error_type
        yield Happened(name, entry.at, state, entry.attempt, error)
    if not state.history:
        at = min(now, state.ended_at or now)
        yield Happened("failed" if failed > 0 else "lost", at, state, state.attempt, state.error or "")


ENDS: Final[dict[Status, EventName]] = {"success": "succeeded", "dead": "dead", "cancelled": "cancelled"}
LOOKS: Final[dict[EventName, Status]] = {
    "queued": "ready",
    "started": "running",
    "suspended": "scheduled",
    "resumed": "running",
    "failed": "dead",
    "lost": "dead",
    "succeeded": "success",
    "dead": "dead",
    "cancelled": "cancelled",
}
"""The status whose shape an event has."""


# ------------------------------------------------------------------------------------------------ telling


def _tell(shell: Shell, happened: Happened) -> None:
    item = happened.item
    if shell.json:
        shell.emit(
            {
                "event": happened.name,
                "at": iso(happened.at),
                "id": item.id,
                "type": item.type,
                "tenant": item.tenant,
                "queue": item.queue,
                "attempt": happened.attempt,
                "status": item.status,
                "reason": item.reason,
                "error": happened.error or None,
                "due_at": iso(item.due_at),
            }
        )
        return
    shell.lines([event_line(happened, terminal_width(), tenant=shell.tenant is None)])


def event_line(happened: Happened, width: int | None, *, tenant: bool = False) -> str:
    """An event as one line. tenant: also whose it is, unless it is the default one's."""
    item, look = happened.item, LOOKS[happened.name]
    shape = (SHAPES if speaks_unicode() else ASCII_SHAPES)[look] if happened.name != "failed" else "!"
    time = (iso(happened.at) or "")[11:23]
    word = f"{shape} {happened.name}".ljust(11)
    style = "yellow" if happened.name in ("failed", "lost") else STATUS_STYLES[look]
    whose = f"({item.tenant})" if tenant and item.tenant != DEFAULT_TENANT else ""
    rest = "  ".join(plain(part) for part in (item.id, item.type, whose, _note(happened)) if part)
    room = None if width is None else max(width - columns(f"{time}  {word}  "), 10)
    return f"{styled(time, 'dim')}  {styled(word, style)}  {rest if room is None else cut(rest, room)}"


def _note(happened: Happened) -> str:
    item = happened.item
    error = first_line(happened.error)
    match happened.name:
        case "queued":
            later = item.queued_at + 1 < item.due_at < NEVER and not item.suspended
            return f"due in {duration(item.due_at - item.queued_at)}" if later else ""
        case "suspended":
            known = item.suspended and happened.at < item.due_at < NEVER
            return f"goes on in {duration(item.due_at - happened.at)} at the latest" if known else ""
        case "resumed":
            return ""
        case "started" | "cancelled":
            return attempt_words(item) if happened.name == "started" else error
        case "succeeded":
            return f"after {duration((item.ended_at or 0.0) - item.queued_at)}"
        case "failed" | "lost":
            waits = item.status == "scheduled" and not item.held
            again = f", again in {duration(item.due_at - happened.at)}" if waits else ""
            return f"attempt {happened.attempt}{again}: {error}"
        case "dead":
            return f"{item.reason}: {error}" if error else item.reason or ""
