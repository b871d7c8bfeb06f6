"""Bulk: changes many items, portion by portion: a count and a question before, progress meanwhile.

Items that are named are changed at once. What filters find is fixed at the start, counted up to a bound, and
changed after a question. `--yes` skips count and question: they must not be needed where the
store is in trouble. Ctrl-C ends it between two portions.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from treadle.base.wording import capped, plural
from treadle.bulk_action import PORTION
from treadle.client import Client
from treadle.engine.read_refs import by_tenant
from treadle.errors import InputError, TreadleError
from treadle.item import Filter, ItemState
from treadle.operate.filters import filter_text
from treadle.operate.item_json import ref_json
from treadle.operate.portions import MEANWHILE, PortionChanger, Refusal

from .asking import ask, pause_for, progress_bar, stopped_by_ctrl_c
from .background import check_background, start_background
from .bulk_verb import BulkVerb, Preview, skipped_text, summary_json, tell_refusal
from .exit_codes import INTERRUPTED, REFUSED
from .filters import ItemFilters
from .names import remark_filters
from .pages import filter_of
from .selection import (
    FilterSource,
    NamedSource,
    Selection,
    Source,
    read_rate,
    read_wanted,
)
from .shell import Shell
from .shown import item_lines
from .text import styled

COUNT_CAP: Final = 10_000
EXAMPLES: Final = 3

Judge = Callable[[Sequence[ItemState], asyncio.Event], Awaitable[bool]]


# ------------------------------------------------------------------------------------------ the command


async def change_items(
    shell: Shell,
    verb: BulkVerb,
    selection: Selection,
    filters: ItemFilters,
    *,
    canary: int = 0,
    judge: Judge | None = None,
    canary_wait: float = 0.0,
) -> int | None:
    """Carry out a command that changes items. Returns its exit code.

    canary: change so many first, and go on only if `judge` agrees. canary_wait: the seconds that it waits.
    """
    if selection.background:
        check_background(verb, selection)
    bulk = PortionedChange(shell, verb, named=bool(selection.ids), rate=read_rate(selection.rate))
    if selection.ids:
        if not filters.is_empty or selection.everything:
            raise InputError("ids and filters exclude each other: give ids, or say which items by filters")
        wanted = read_wanted(shell, selection.ids)[: selection.limit]
        named = NamedSource(shell, wanted)
        if selection.dry_run:
            return await _dry_run_named(shell, verb, named)
        if selection.background:
            return await start_background(shell, verb, wanted, selection, filters, canary, canary_wait)
        return await bulk.run(named, len(wanted), canary=canary, judge=judge)
    where = await _fixed(shell, verb, selection, filters)
    if selection.dry_run:
        counted, would_change = await _dry_run(shell, verb, where, selection)
        if not counted.count:
            await _remark(shell, filters)
        return REFUSED if counted.count and not would_change else None
    total: int | None = None
    if not selection.yes:
        counted, agreed = await _asked(shell, verb, where, selection)
        if not counted.count:
            await _remark(shell, filters)
        if not agreed:
            return REFUSED if counted.count else None
        total = None if counted.more else counted.count
    if selection.background:
        return await start_background(shell, verb, where, selection, filters, canary, canary_wait)
    shell.note_about(filter_text(where))
    code = await bulk.run(FilterSource(shell, where, selection.limit), total, canary=canary, judge=judge)
    if not bulk.matched:
        await _remark(shell, filters)
    return code


async def _remark(shell: Shell, filters: ItemFilters) -> None:
    """Say which names of filters that found nothing are perhaps misspelt."""
    await remark_filters(shell, filters.type, filters.queue)


async def _fixed(shell: Shell, verb: BulkVerb, selection: Selection, filters: ItemFilters) -> Filter:
    """The filter, so that what it finds is fixed: what is queued from now on is left out."""
    if filters.is_empty and not selection.everything:
        raise InputError(
            f"say which items: ids, filters as for `treadle list`, or --all to {verb.name} all of them"
        )
    where = await filter_of(shell, filters, verb.statuses)
    if verb.statuses and (wrong := [each for each in where.status if each not in verb.statuses]):
        raise InputError.of("--status", ",".join(wrong), f"cannot be given here: {verb.advice}")
    now = await shell.now()
    return msgspec.structs.replace(where, until=now if where.until is None else min(where.until, now))


@dataclass(frozen=True)
class Counted:
    """How many items were found."""

    count: int
    more: bool
    """Whether there are more: it was counted up to a bound."""
    examples: list[ItemState]


async def _count(shell: Shell, where: Filter, selection: Selection, preview: Preview) -> Counted:
    """Count what a filter finds, and what would be changed with it."""
    source = FilterSource(shell, where, min(selection.limit or COUNT_CAP + 1, COUNT_CAP + 1))
    count = 0
    examples: list[ItemState] = []
    while (portion := await source.take(PORTION)) is not None:
        items = portion[0][: COUNT_CAP - count]
        await _look(shell, preview, items)
        count += len(portion[0])
        examples += items[: EXAMPLES - len(examples)]
    return Counted(min(count, COUNT_CAP), count > COUNT_CAP, examples)


async def _look(shell: Shell, preview: Preview, items: Sequence[ItemState]) -> None:
    for tenant, own in by_tenant(items).items():
        await preview.add(shell, shell.client.tenant(tenant), own)


async def _asked(shell: Shell, verb: BulkVerb, where: Filter, selection: Selection) -> tuple[Counted, bool]:
    """Count what a filter finds, and ask whether to change it."""
    if not sys.stdin.isatty():
        raise InputError(
            f"{verb.name} by filters asks before it changes anything, and standard input is no terminal: "
            "give --yes, or look first with --dry-run"
        )
    preview = verb.preview()
    counted = await _count(shell, where, selection, preview)
    return counted, await _agreed(shell, verb, counted, preview)


async def _dry_run(shell: Shell, verb: BulkVerb, where: Filter, selection: Selection) -> tuple[Counted, int]:
    """Returns what was found, and how many of it would be changed."""
    preview = verb.preview()
    counted = await _count(shell, where, selection, preview)
    _say_counted(shell, verb, counted, preview)
    return counted, preview.count


async def _dry_run_named(shell: Shell, verb: BulkVerb, source: Source) -> int | None:
    count = 0
    examples: list[ItemState] = []
    refused: list[Refusal] = []
    preview = verb.preview()
    while (portion := await source.take(PORTION)) is not None:
        refusals = [(item, verb.refusal(item)) for item in portion[0]]
        items = [item for item, refusal in refusals if refusal is None]
        refused += [*portion[1], *(refusal for _, refusal in refusals if refusal is not None)]
        await _look(shell, preview, items)
        count += len(items)
        examples += items[: EXAMPLES - len(examples)]
    for each in refused:
        tell_refusal(shell, each)
    preview.refused.update(type(each.error).__name__ for each in refused)
    _say_counted(shell, verb, Counted(count, False, examples), preview)
    return REFUSED if preview.refused else None


def _say_counted(shell: Shell, verb: BulkVerb, counted: Counted, preview: Preview) -> None:
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


def _would(verb: BulkVerb, counted: Counted, preview: Preview) -> str:
    """What the command is about to do: delete 5 items (3 asked for; the others are in their groups)."""
    more = preview.more or counted.more
    text = f"{verb.name} {plural(preview.count, 'item', more)}{verb.along if preview.count else ''}"
    if preview.count > preview.asked or preview.more:
        text += f" ({capped(preview.asked, counted.more)} asked for; the others {preview.others})"
    return text + skipped_text(", and skip", preview.refused)


async def _agreed(shell: Shell, verb: BulkVerb, counted: Counted, preview: Preview) -> bool:
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


# ------------------------------------------------------------------------------------------- the portions


class PortionedChange:
    """Changes items, portion by portion, and counts."""

    def __init__(self, shell: Shell, verb: BulkVerb, *, named: bool, rate: float | None) -> None:
        """named: items that are refused are told one by one."""
        self._shell = shell
        self._verb = verb
        self._named = named
        self._rate = rate
        self._portion = PORTION if rate is None else max(1, min(PORTION, math.ceil(rate)))
        self._stop = asyncio.Event()
        self._changer = PortionChanger(self._client_of, verb.change, verb.refusal)

    def _client_of(self, tenant: str) -> Client:
        """Read when it is needed: by then the client has a note of what was asked for."""
        return self._shell.client.tenant(tenant)

    @property
    def matched(self) -> int:
        return self._changer.matched

    async def run(
        self, source: Source, total: int | None, *, canary: int = 0, judge: Judge | None = None
    ) -> int | None:
        """Change all of it. Returns the exit code."""
        held_back = False
        try:
            with stopped_by_ctrl_c(self._stop):
                if canary and judge is not None:
                    held_back = not await self._try_first(source, canary, judge)
                if not held_back:
                    await self._change_all(source, total)
        except TreadleError:
            self._summary(stopped=True)
            raise
        except asyncio.CancelledError:  # the second Ctrl-C
            self._summary(stopped=True)
            raise KeyboardInterrupt from None
        stopped = self._stop.is_set()
        self._summary(stopped=stopped or held_back)
        if stopped:
            return INTERRUPTED
        skipped = self._changer.skipped
        refused = skipped.total() - skipped[MEANWHILE]
        failed = refused and (self._named or not self._changer.changed)
        return REFUSED if held_back or failed else None

    async def _try_first(self, source: Source, count: int, judge: Judge) -> bool:
        """Change so many, and let them be judged. Those that are refused do not count."""
        tried: list[ItemState] = []
        while len(tried) < count and not self._stop.is_set():
            portion = await source.take(count - len(tried))
            if portion is None:
                break
            tried += await self._change(*portion)
        return not tried or await judge(tried, self._stop)

    async def _change_all(self, source: Source, total: int | None) -> None:
        began, before = asyncio.get_running_loop().time(), self.matched
        is_long = self._rate is not None or total is None or total > self._portion
        with progress_bar(self._shell, self._verb.name, total, on=is_long) as advance:
            while not self._stop.is_set() and (portion := await source.take(self._portion)) is not None:
                await self._change(*portion)
                advance(self.matched)
                if self._rate is not None:
                    due = began + (self.matched - before) / self._rate
                    await pause_for(self._stop, due - asyncio.get_running_loop().time())

    async def _change(self, items: list[ItemState], missing: list[Refusal]) -> list[ItemState]:
        """Change a portion. Returns those that were not refused."""
        tried, refused = await self._changer.change(items, missing)
        if self._named:
            for each in refused:
                tell_refusal(self._shell, each)
        return tried

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
