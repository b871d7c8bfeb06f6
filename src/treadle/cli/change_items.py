"""Change items: what all commands share that change many: which items, a question, progress, what is said.

Items that are named are changed at once. What filters find is fixed at the start, counted up to a bound, and
changed after a question. `--yes` skips count and question: they must not be needed where the
store is in trouble. Ctrl-C ends it between two portions.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, cast

import msgspec
import typer

from treadle.base.ids import check_id, check_name
from treadle.base.wording import capped, duration, listed, plural
from treadle.bulk_action import PORTION, ActionVerb, BulkProgress, BulkState
from treadle.client import Client, bound_to
from treadle.errors import InputError, NotFound, TreadleError
from treadle.item import Filter, ItemState, Status
from treadle.operate.changes import (
    MEANWHILE,
    VERBS,
    CanaryEnd,
    ItemChanges,
    ItemCount,
    NamedSource,
    Portion,
    PortionChanger,
    PortionOutcome,
    Refusal,
    Source,
    WantedItem,
    after_canary,
    allowed,
    filter_source,
    names_bulk_actions,
    refuse_status,
)
from treadle.operate.filters import WhereCondition, filter_text, read_condition, read_rate
from treadle.operate.fleet_json import bulk_json
from treadle.operate.item_json import ref_json
from treadle.operate.why.wording import command, tenant_option
from treadle.options import UpdateOptions
from treadle.store.audit_note import about
from treadle.store.reads import by_tenant

from .exit_codes import INTERRUPTED, REFUSED
from .filters import ItemFilters, WhereOption, filter_of
from .fleet import read_fleet
from .names import remark_filters
from .shell import Shell
from .shown import item_lines
from .text import styled

EXAMPLES: Final = 3
"""Items that a question shows."""
FIRST_LOOK: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two looks at the canary: they get longer."""


# ------------------------------------------------------------------------------------------ which items

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="the ids of items. -: read them from standard input, one per line, or lines of --json",
    ),
]


@dataclass(frozen=True)
class Selection:
    """The options of commands that change items, besides the filters."""

    ids: IdsArgument = None
    everything: Annotated[
        bool, typer.Option("--all", help="all items that can be changed so, if no filter is given")
    ] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not count and do not ask")] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would happen, and change nothing")] = (
        False
    )
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="the most items, oldest first")] = None
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="RATE", help="the most items in a time: 50/s, 600/min, 1000/h"),
    ] = None

    background: Annotated[
        bool,
        typer.Option(
            "--background",
            help="start a bulk action, which workers carry out, and print its id: `treadle bulk`",
        ),
    ] = False

    where: WhereOption = None

    def __post_init__(self) -> None:
        read_rate(self.rate, "--rate")
        self.conditions()

    def conditions(self) -> list[WhereCondition]:
        """What has to hold inside the items, besides the filters."""
        return [read_condition(text) for text in self.where or ()]


CanaryOption = Annotated[
    int,
    typer.Option(
        "--canary", metavar="N", min=0, help="change N items, and the others only if all of those succeed"
    ),
]
CanaryWaitOption = Annotated[
    str, typer.Option("--canary-wait", metavar="DURATION", help="how long to wait for them")
]


def read_wanted(shell: Shell, given: Iterable[str]) -> list[WantedItem]:
    """The items that arguments name. `-` stands for what standard input names."""
    wanted: list[WantedItem] = []
    for text in given:
        if text == "-":
            wanted += (_wanted(shell, line) for line in map(str.strip, sys.stdin) if line)
        else:
            wanted.append(WantedItem(check_id(text), shell.tenant))
    return list(dict.fromkeys(wanted))


class _Line(msgspec.Struct):
    """A line of `--json`."""

    id: str
    tenant: str | None = None


def _wanted(shell: Shell, line: str) -> WantedItem:
    if not line.startswith("{"):
        return WantedItem(check_id(line), shell.tenant)
    try:
        read = msgspec.json.decode(line.encode("utf-8", "replace"), type=_Line)
    except msgspec.DecodeError as error:
        raise InputError(f"a line of standard input is no item: {error}") from None
    tenant = None if read.tenant is None else check_name(read.tenant, "tenant")
    if shell.tenant is not None and tenant not in (None, shell.tenant):
        raise NotFound(check_id(read.id))
    return WantedItem(check_id(read.id), tenant or shell.tenant)


# ------------------------------------------------------------------------------------------------ verbs


class Preview:
    """What would be changed with the items that are asked for. Items are added portion by portion."""

    def __init__(self) -> None:
        self.asked = 0
        self.count = 0
        """With the others."""
        self.more = False
        """Whether there are more: it was counted up to a bound."""
        self.refused: Counter[str] = Counter()
        self.others = ""
        """What the others have to do with those asked for."""

    async def add(self, shell: Shell, client: Client, items: Sequence[ItemState]) -> None:
        """Count items of one tenant."""
        self.asked += len(items)
        self.count += len(items)


class BulkVerb(NamedTuple):
    """One way to change items."""

    name: str
    past: str
    change: Callable[[Client, Sequence[ItemState]], Awaitable[PortionOutcome]]
    """Called with items of one tenant, and a client of that tenant."""
    statuses: tuple[Status, ...] = ()
    """Items in other statuses cannot be changed so. Empty: all can."""
    advice: str = ""
    """What is said of an item in another status."""
    others: str = "belong to them"
    """What further items that are changed with those asked for have to do with them."""
    along: str = ""
    """What is changed with them, for the question: ", and what they have queued"."""
    preview: Callable[[], Preview] = Preview
    remedy: Callable[[], str] = str
    """What to do about those that were refused."""
    check: Callable[[ItemState], TreadleError | None] = allowed
    """Why an item cannot be changed, apart from its status. None: it can."""
    foreground: str = ""
    """The option with which it cannot be a bulk action. Empty: it can."""
    changes: UpdateOptions | None = None
    """For an update: what it changes."""

    def refusal(self, item: ItemState) -> Refusal | None:
        """Why an item cannot be changed, as far as it is known before."""
        if (why := self.check(item)) is not None:
            return Refusal(item.id, item.tenant, why)
        return refuse_status(item, self.statuses, self.advice)


# ------------------------------------------------------------------------------------------ the command


async def change_items(
    shell: Shell,
    verb: BulkVerb,
    selection: Selection,
    filters: ItemFilters,
    *,
    canary: int = 0,
    canary_wait: float = 0.0,
) -> int | None:
    """Carry out a command that changes items. Returns its exit code.

    canary: how many to change first. The others follow only if all of these succeed within `canary_wait`
    seconds.
    """
    if selection.background:
        check_background(verb, selection)
    bulk = PortionedChange(shell, verb, named=bool(selection.ids), rate=read_rate(selection.rate, "--rate"))
    if selection.ids:
        if not filters.is_empty or selection.everything or selection.where:
            raise InputError("ids and filters exclude each other: give ids, or say which items by filters")
        wanted = read_wanted(shell, selection.ids)[: selection.limit]
        named = NamedSource(shell.backend, wanted)
        if selection.dry_run:
            return await _dry_run_named(shell, verb, named)
        if selection.background:
            return await start_background(shell, verb, wanted, selection, filters, canary, canary_wait)
        return await bulk.run(named, len(wanted), canary=canary, canary_wait=canary_wait)
    where = await _fixed(shell, verb, selection, filters)
    total: int | None = None
    if selection.dry_run or not selection.yes:
        if not selection.dry_run:
            _check_terminal(verb)
        preview = verb.preview()
        counted = await _count(shell, where, selection, preview)
        if selection.dry_run:
            _say_counted(shell, verb, counted, preview)
        agreed = not selection.dry_run and await _agreed(shell, verb, counted, preview)
        if not counted.count:
            await remark_filters(shell, filters.type, filters.queue)
        if not agreed:
            return None if not counted.count or (selection.dry_run and preview.count) else REFUSED
        total = None if counted.more else counted.count
    if selection.background:
        return await start_background(shell, verb, where, selection, filters, canary, canary_wait)
    text = " ".join((filter_text(where), *(selection.where or ())))
    shell.note_about(f"{about(verb.changes)} for {text}" if verb.changes else text)
    code = await bulk.run(_source(shell, where, selection), total, canary=canary, canary_wait=canary_wait)
    if not bulk.matched:
        await remark_filters(shell, filters.type, filters.queue)
    return code


async def _fixed(shell: Shell, verb: BulkVerb, selection: Selection, filters: ItemFilters) -> Filter:
    """The filter, so that what it finds is fixed: what is queued from now on is left out."""
    if filters.is_empty and not selection.everything and not selection.where:
        raise InputError(
            f"say which items: ids, filters as for `treadle list`, or --all to {verb.name} all of them"
        )
    where = await filter_of(shell, filters, verb.statuses)
    if verb.name == "unhold":
        where = msgspec.structs.replace(where, held=True)
    if verb.statuses and (wrong := [each for each in where.status if each not in verb.statuses]):
        raise InputError.of("--status", ",".join(wrong), f"cannot be given here: {verb.advice}")
    now = await shell.now()
    return msgspec.structs.replace(where, until=now if where.until is None else min(where.until, now))


def _source(shell: Shell, where: Filter, selection: Selection) -> Source:
    bulk, conditions = names_bulk_actions(msgspec.structs.asdict(where)), selection.conditions()
    if not conditions:
        return filter_source(shell.backend, where, bulk=bulk, limit=selection.limit)

    def holds(item: ItemState) -> bool:
        fields = shell.client.values.item(item, reveal=True)
        return all(condition.holds(fields) for condition in conditions)

    return ConditionSource(filter_source(shell.backend, where, bulk=bulk), holds, selection.limit)


class ConditionSource:
    """Items of a source inside which conditions hold: each is read and compared.

    limit: the most items in all.
    """

    def __init__(self, source: Source, holds: Callable[[ItemState], bool], limit: int | None) -> None:
        self._source = source
        self._holds = holds
        self._left = limit
        self._found: list[ItemState] = []
        """Those that were not handed out yet."""
        self._cursor: str | None = None
        self._is_read = False

    async def take(self, count: int, cursor: str | None) -> Portion:
        while not self._found and not self._is_read:
            portion = await self._source.take(PORTION, self._cursor)
            self._found = [item for item in portion.items if self._holds(item)]
            self._cursor, self._is_read = portion.cursor, portion.cursor is None
        if self._left is not None:
            count = min(count, self._left)
            self._left -= min(count, len(self._found))
        items, self._found = self._found[:count], self._found[count:]
        ended = self._left == 0 or (self._is_read and not self._found)
        return Portion(items, [], None if ended else self._cursor or "last")


async def _count(shell: Shell, where: Filter, selection: Selection, preview: Preview) -> ItemCount:
    """Count what a filter finds, and what would be changed with it."""

    async def look(items: Sequence[ItemState]) -> None:
        await _look(shell, preview, items)

    counted = ItemCount(EXAMPLES)
    await counted.read(_source(shell, where, selection), page=PORTION, bounded=False, look=look)
    return counted


async def _look(shell: Shell, preview: Preview, items: Sequence[ItemState]) -> None:
    for tenant, own in by_tenant(items).items():
        await preview.add(shell, bound_to(shell.client, tenant), own)


def _check_terminal(verb: BulkVerb) -> None:
    """InputError if there is no terminal to ask on."""
    if not sys.stdin.isatty():
        raise InputError(
            f"{verb.name} by filters asks before it changes anything, and standard input is no terminal: "
            "give --yes, or look first with --dry-run"
        )


async def _dry_run_named(shell: Shell, verb: BulkVerb, source: Source) -> int | None:
    counted, cursor = ItemCount(), None
    refused: list[Refusal] = []
    preview = verb.preview()
    while counted.more:
        portion = await source.take(PORTION, cursor)
        refusals = [(item, verb.refusal(item)) for item in portion.items]
        items = [item for item, refusal in refusals if refusal is None]
        refused += [*portion.missing, *(refusal for _, refusal in refusals if refusal is not None)]
        await _look(shell, preview, items)
        counted.count += len(items)
        counted.examples += items[: EXAMPLES - len(counted.examples)]
        cursor = portion.cursor
        counted.more = cursor is not None
    for each in refused:
        tell_refusal(shell, each)
    preview.refused.update(type(each.error).__name__ for each in refused)
    _say_counted(shell, verb, counted, preview)
    return REFUSED if preview.refused else None


def _say_counted(shell: Shell, verb: BulkVerb, counted: ItemCount, preview: Preview) -> None:
    if shell.json:
        skipped = preview.refused.total()
        shell.emit(
            summary_json(verb.name, counted.count, 0, skipped, dry_run=True, more=counted.more)
            | {
                "would_change": preview.count,
                "would_change_more": preview.more or counted.more,
                "examples": [ref_json(each) for each in counted.examples],
            }
        )
        return
    shell.print(f"would {_would(verb, counted, preview)}; nothing was changed")
    _say_remedy(shell, verb)


def _say_remedy(shell: Shell, verb: BulkVerb) -> None:
    if remedy := verb.remedy():
        shell.print(remedy, "yellow")


def _would(verb: BulkVerb, counted: ItemCount, preview: Preview) -> str:
    """What the command is about to do: delete 5 items (3 asked for; the others are in their groups)."""
    more = preview.more or counted.more
    text = f"{verb.name} {plural(preview.count, 'item', more)}{verb.along if preview.count else ''}"
    if preview.count > preview.asked or preview.more:
        text += f" ({capped(preview.asked, counted.more)} asked for; the others {preview.others})"
    return text + skipped_text(", and skip", preview.refused)


async def _agreed(shell: Shell, verb: BulkVerb, counted: ItemCount, preview: Preview) -> bool:
    """Show what would be changed, and ask."""
    if not counted.count:
        if shell.json:
            shell.emit(summary_json(verb.name, 0, 0, 0))
        shell.print("no items match")
        return False
    lines = item_lines(counted.examples, await shell.now())
    if counted.more or counted.count > len(counted.examples):
        rest = counted.count - len(counted.examples)
        lines.append(styled(f"and {plural(rest, 'more item', counted.more)}", "dim"))
    return ask("\n".join([*lines, "", f"{_would(verb, counted, preview)}? [y/N] "]))


# ------------------------------------------------------------------------------------------- the change


class PortionedChange:
    """Changes items, portion by portion, and counts."""

    def __init__(self, shell: Shell, verb: BulkVerb, *, named: bool, rate: float | None) -> None:
        """named: items that are refused are told one by one."""
        self._shell = shell
        self._verb = verb
        self._named = named
        self._rate = rate
        self._stop = asyncio.Event()
        tell = partial(tell_refusal, shell) if named else allowed
        self._changer = PortionChanger(self._client_of, verb.change, verb.refusal, tell)

    def _client_of(self, tenant: str) -> Client:
        """Read when it is needed: by then the client has a note of what was asked for."""
        return bound_to(self._shell.client, tenant)

    @property
    def matched(self) -> int:
        return self._changer.matched

    async def run(
        self, source: Source, total: int | None, *, canary: int = 0, canary_wait: float = 0.0
    ) -> int | None:
        """Change all of it. Returns the exit code."""
        backend, progress = self._shell.backend, BulkProgress()
        changes = ItemChanges(backend, source, self._changer, rate=self._rate, canary=canary)
        try:
            with stopped_by_ctrl_c(self._stop):
                if canary:
                    progress = await self._try_first(changes, progress, canary_wait)
                if progress.phase == "change":
                    await self._change_all(changes, progress, total)
        except TreadleError:
            self._summary(stopped=True)
            raise
        except asyncio.CancelledError:  # the second Ctrl-C
            self._summary(stopped=True)
            raise KeyboardInterrupt from None
        stopped, held_back = self._stop.is_set(), progress.phase == "held_back"
        self._summary(stopped=stopped or held_back)
        if stopped:
            return INTERRUPTED
        skipped = self._changer.skipped
        refused = skipped.total() - skipped[MEANWHILE]
        failed = refused and (self._named or not self._changer.changed)
        return REFUSED if held_back or failed else None

    async def _try_first(self, changes: ItemChanges, progress: BulkProgress, wait: float) -> BulkProgress:
        """Change the canary, and wait for its end. Items that are refused do not count."""
        while progress.phase == "change" and not self._stop.is_set():
            progress = await self._step(changes, progress)
            if progress.phase == "canary":
                end = await watch_canary(self._shell, changes, progress, wait, self._stop, self._verb.past)
                return after_canary(progress, end)
        return progress

    async def _change_all(self, changes: ItemChanges, progress: BulkProgress, total: int | None) -> None:
        is_long = self._rate is not None or total is None or total > changes.portion
        with progress_bar(self._shell, self._verb.name, total, on=is_long) as advance:
            while progress.phase == "change" and not self._stop.is_set():
                progress = await self._step(changes, progress)
                advance(self.matched)

    async def _step(self, changes: ItemChanges, before: BulkProgress) -> BulkProgress:
        loop = asyncio.get_running_loop()
        began = loop.time()
        after = await changes.change(before)
        if after.phase == "change":
            await pause_for(self._stop, changes.pause(before, after, loop.time() - began))
        return after

    def _summary(self, *, stopped: bool) -> None:
        changer, refused = self._changer, self._changer.skipped
        skipped = refused.total()
        if self._shell.json:
            self._shell.emit(
                summary_json(
                    self._verb.name,
                    self.matched,
                    changer.changed,
                    skipped,
                    unknown=changer.unknown,
                    stopped=stopped,
                )
            )
            return
        if not self.matched:
            self._shell.print("stopped: nothing was changed" if stopped else "no items match")
            return
        text = f"{self._verb.past} {plural(changer.changed, 'item')}"
        asked = self.matched - skipped - changer.unknown
        if changer.changed > asked > 0:
            text += f" ({asked:,} asked for; the others {self._verb.others})"
        skipped_by = {MEANWHILE: refused[MEANWHILE]} if self._named else refused
        text += skipped_text(", skipped", Counter(skipped_by))
        if changer.unknown:
            self._shell.print(
                f"stopped: {text}. The store gave no answer for {plural(changer.unknown, 'more item')}: "
                f"whether they are {self._verb.past} is unknown, the rest is as it was. Look with "
                "`treadle list`, or run the command again: what is done already is not done twice"
            )
            return
        self._shell.print(f"stopped: {text}. The rest is as it was" if stopped else text)
        if not self._named:
            _say_remedy(self._shell, self._verb)


# ------------------------------------------------------------------------------------------- the canary


async def watch_canary(
    shell: Shell,
    changes: ItemChanges,
    progress: BulkProgress,
    seconds: float,
    stop: asyncio.Event,
    past: str = "requeued",
) -> CanaryEnd:
    """Wait until the first items have ended, and say how."""
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + seconds, FIRST_LOOK
    count = plural(len(progress.tried), "item")
    shell.print(f"canary: {past} {count}, waiting for up to {duration(seconds)}")
    end = await changes.read_canary(progress)
    await _warn_unserved(shell, [*end.succeeded, *end.failed, *end.open])
    shell.flush()
    while end.open and (left := until - loop.time()) > 0 and not stop.is_set():
        await pause_for(stop, min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE)
        end = await changes.read_canary(progress)
    _say_canary(shell, end, await shell.now(), seconds)
    return end


async def _warn_unserved(shell: Shell, items: Sequence[ItemState]) -> None:
    """Say before the wait that nothing can come of it."""
    fleet = await read_fleet(shell)
    types = dict.fromkeys(item.type for item in items)
    if not fleet.live:
        shell.warn("no worker is alive: they run once one is started")
    elif unserved := [type for type in types if not fleet.serves(type=type)]:
        shell.warn(f"no live worker has {listed(unserved)}: they run once one is started")


def _say_canary(shell: Shell, end: CanaryEnd, now: float, seconds: float) -> None:
    if shell.json:
        shell.emit(
            {
                "verb": "canary",
                "succeeded": len(end.succeeded),
                "failed": [ref_json(each) for each in end.failed],
                "open": [ref_json(each) for each in end.open],
            }
        )
        return
    if end.is_good:
        shell.print(f"canary: {plural(len(end.succeeded), 'item')} succeeded", "green")
        return
    parts = [f"{len(end.succeeded)} succeeded", f"{len(end.failed)} failed"]
    if end.open:
        parts.append(f"{len(end.open)} not ended after {duration(seconds)}")
    shell.print(f"canary: {', '.join(parts)}", "red")
    shell.lines(item_lines([*end.failed, *end.open], now))
    example = (end.open or end.failed)[0]
    look = command("why" if end.open else "show", example.id, tenant=tenant_option(example.tenant))
    shell.print(f"look with `{look}`", "dim")


# ------------------------------------------------------------------------------------ in the background


def check_background(verb: BulkVerb, selection: Selection) -> None:
    """Raise InputError if this cannot be a bulk action."""
    wrong = verb.foreground or ("" if verb.name in VERBS else verb.name)
    wrong = wrong or ("--where" if selection.where else "")
    if wrong or selection.limit is not None:
        raise InputError(f"--background cannot be used with {wrong or '--limit'}")


async def start_background(
    shell: Shell,
    verb: BulkVerb,
    which: Filter | Sequence[WantedItem],
    selection: Selection,
    filters: ItemFilters,
    canary: int,
    canary_wait: float,
) -> int | None:
    """Start a bulk action for these items, and say how to follow it."""
    name = cast("ActionVerb", verb.name)
    where: dict[str, Any] = {}
    if isinstance(which, Filter):
        names = ("type", "queue", "workflow", "group_id", "key", "reason", "mark", "release", "since")
        where = {name: value for name in names if (value := getattr(which, name)) is not None}
        where["everything"] = selection.everything
        if filters.until is not None:  # otherwise the action fixes it itself
            where["until"] = which.until
        if which.status != VERBS[name].usual or filters.status:
            where["status"] = which.status
    else:
        where = {"ids": which, "open": name == "delete"}
    if canary:
        where["canary_wait"] = canary_wait
    if verb.changes:
        where["changes"] = verb.changes
    rate = read_rate(selection.rate, "--rate")
    action = await shell.client.bulk.start(name, rate=rate, canary=canary, **where)
    if shell.json:
        shell.emit(bulk_json(action))
        return None
    shell.print(f"started {action.id}: {action.verb} {plural(action.total, 'item', action.more)}")
    shell.print(f"follow it with `{command('bulk show', action.id, tenant=_tenant(shell))}`", "dim")
    if action.waits:
        shell.warn(waits_text(shell, action))
    return None


def waits_text(shell: Shell, action: BulkState) -> str:
    return f"it waits: {action.waits}. `{command('bulk run', tenant=_tenant(shell))}` runs it here"


def _tenant(shell: Shell) -> str | None:
    return None if shell.tenant is None else tenant_option(shell.tenant)


# ----------------------------------------------------------------------------------------- what is said


def skipped_text(before: str, refused: Counter[str]) -> str:
    """How many items are skipped, and why: `, skipped 3 (2 NotFound, 1 GroupStillOpen)`."""
    if not refused.total():
        return ""
    kinds = ", ".join(f"{count:,} {name}" for name, count in refused.most_common() if count)
    return f"{before} {refused.total():,} ({kinds})"


def summary_json(
    verb: str,
    matched: int,
    changed: int,
    skipped: int,
    *,
    unknown: int = 0,
    stopped: bool = False,
    dry_run: bool = False,
    more: bool = False,
) -> dict[str, Any]:
    """What a command did, for programs.

    matched: how many items were asked for or found. more: there are more, which were not counted.
    changed: how many were changed, with those that had to be changed with them.
    skipped: how many of those that matched could not be changed.
    unknown: for how many of them the store gave no answer. They may be changed or not.
    """
    return {
        "verb": verb,
        "matched": matched,
        "more": more,
        "changed": changed,
        "skipped": skipped,
        "unknown": unknown,
        "stopped": stopped,
        "dry_run": dry_run,
    }


def tell_refusal(shell: Shell, refusal: Refusal) -> None:
    """Say why a named item was not changed."""
    if shell.json:
        shell.emit(
            {
                "id": refusal.id,
                "tenant": refusal.tenant,
                "refused": type(refusal.error).__name__,
                "message": refusal.message,
            }
        )
    else:
        shell.warn(refusal.message)


# ----------------------------------------------------------------------------------------------- asking


def ask(question: str) -> bool:
    """Ask on standard error. Only y and yes agree. Ctrl-C ends the command at once."""
    handler = signal.getsignal(signal.SIGINT)
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # by a Ctrl-C just before
            raise KeyboardInterrupt
        sys.stdout.flush()
        sys.stderr.write(question)
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, handler)


async def pause_for(stop: asyncio.Event, seconds: float) -> None:
    """Wait, or until it is to stop."""
    if seconds > 0:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), seconds)


@contextlib.contextmanager
def stopped_by_ctrl_c(stop: asyncio.Event) -> Generator[None]:
    """The first Ctrl-C sets `stop`, a second one ends the command at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()

    def interrupt() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except (NotImplementedError, RuntimeError, ValueError):  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextlib.contextmanager
def progress_bar(
    shell: Shell, what: str, total: int | None, *, on: bool = True
) -> Generator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal, and it is on."""
    if not on or shell.json or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
