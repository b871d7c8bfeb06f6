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
from typing import Any, Final, NamedTuple

import msgspec

from treadle.client import Client
from treadle.errors import ConflictError, InputError, NotFound, TreadleError
from treadle.item import Filter, ItemState, Status
from treadle.wording import plural

from .asking import ask, pause_for, progress_bar, stopped_by_ctrl_c
from .filters import ItemFilters
from .pages import filter_of
from .selection import (
    PORTION,
    Counted,
    FilterSource,
    NamedSource,
    Refusal,
    Selection,
    Source,
    count_items,
    read_rate,
    read_wanted,
)
from .shell import INTERRUPTED, REFUSED, Shell
from .shown import item_lines, ref_json
from .text import styled

COUNT_CAP: Final = 10_000
EXAMPLES: Final = 3


class PortionOutcome(NamedTuple):
    """What became of a portion."""

    changed: int
    refused: Sequence[Refusal] = ()


Change = Callable[[Client, Sequence[ItemState]], Awaitable[PortionOutcome]]
Judge = Callable[[Sequence[ItemState], asyncio.Event], Awaitable[bool]]


class Verb(NamedTuple):
    """One way to change items."""

    name: str
    past: str
    change: Change
    """Called with items of one tenant, and a client of that tenant."""
    statuses: tuple[Status, ...] = ()
    """Items in other statuses cannot be changed so. Empty: all can."""
    advice: str = ""
    """What is said of an item in another status."""
    others: str = "belong to them"
    """What further items that are changed with those asked for have to do with them."""

    def refusal(self, item: ItemState) -> Refusal | None:
        """Why an item cannot be changed, as far as its status says."""
        if not self.statuses or item.status in self.statuses:
            return None
        return Refusal(item.id, item.tenant, StatusConflict(item, self.advice))


class StatusConflict(ConflictError):
    """The item is in a status in which this cannot be done."""

    def __init__(self, item: ItemState, advice: str) -> None:
        super().__init__(f"item {item.id!r} is {item.status}: {advice}")


async def all_or_none(
    items: Sequence[ItemState], call: Callable[[list[str]], Awaitable[int]]
) -> PortionOutcome:
    """Change items with a verb that changes all of them or none. If one is refused, halves are tried."""
    try:
        return PortionOutcome(await call([item.id for item in items]))
    except (ConflictError, NotFound) as error:
        if len(items) == 1:
            return PortionOutcome(0, [Refusal(items[0].id, items[0].tenant, error)])
    middle = len(items) // 2
    first = await all_or_none(items[:middle], call)
    second = await all_or_none(items[middle:], call)
    return PortionOutcome(first.changed + second.changed, [*first.refused, *second.refused])


# ------------------------------------------------------------------------------------------ the command


async def change_items(
    shell: Shell,
    verb: Verb,
    selection: Selection,
    filters: ItemFilters,
    *,
    canary: int = 0,
    judge: Judge | None = None,
) -> int | None:
    """Carry out a command that changes items. Returns its exit code.

    canary: change so many first, and go on only if `judge` agrees.
    """
    if selection.ids:
        if not filters.is_empty or selection.everything:
            raise InputError("ids and filters exclude each other: give ids, or say which items by filters")
        wanted = read_wanted(shell, selection.ids)[: selection.limit]
        source: Source = NamedSource(shell, wanted)
        total: int | None = len(wanted)
        if selection.dry_run:
            return await _dry_run_named(shell, verb, source)
    else:
        where = await _fixed(shell, verb, selection, filters)
        total = None
        if selection.dry_run:
            counted = await count_items(shell, where, selection.limit, cap=COUNT_CAP, examples=EXAMPLES)
            _say_counted(shell, verb, counted)
            return None
        if not selection.yes:
            _check_terminal(verb)
            counted = await count_items(shell, where, selection.limit, cap=COUNT_CAP, examples=EXAMPLES)
            if not await _agreed(shell, verb, counted):
                return REFUSED if counted.count else None
            total = None if counted.more else counted.count
        source = FilterSource(shell, where, selection.limit)
    bulk = Bulk(shell, verb, named=bool(selection.ids), rate=read_rate(selection.rate))
    return await bulk.run(source, total, canary=canary, judge=judge)


async def _fixed(shell: Shell, verb: Verb, selection: Selection, filters: ItemFilters) -> Filter:
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


def _check_terminal(verb: Verb) -> None:
    if not sys.stdin.isatty():
        raise InputError(
            f"{verb.name} by filters asks before it changes anything, and standard input is no terminal: "
            "give --yes, or look first with --dry-run"
        )


async def _dry_run_named(shell: Shell, verb: Verb, source: Source) -> int | None:
    items: list[ItemState] = []
    refused: list[Refusal] = []
    while (portion := await source.take(PORTION)) is not None:
        for item in portion[0]:
            refusal = verb.refusal(item)
            if refusal is None:
                items.append(item)
            else:
                refused.append(refusal)
        refused += portion[1]
    for each in refused:
        tell_refusal(shell, each)
    _say_counted(shell, verb, Counted(len(items), False, items[:EXAMPLES]), refused=len(refused))
    return REFUSED if refused else None


def _say_counted(shell: Shell, verb: Verb, counted: Counted, *, refused: int = 0) -> None:
    if shell.json:
        shell.emit(
            summary_json(verb.name, counted.count, 0, refused, dry_run=True, more=counted.more)
            | {"examples": [ref_json(each) for each in counted.examples]}
        )
        return
    shell.print(f"would {verb.name} {plural(counted.count, 'item', counted.more)}; nothing was changed")


async def _agreed(shell: Shell, verb: Verb, counted: Counted) -> bool:
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
    question = f"{verb.name} {plural(counted.count, 'item', counted.more)}? [y/N] "
    return ask("\n".join([*lines, "", question]))


# ------------------------------------------------------------------------------------------- the portions


class Bulk:
    """Changes items, portion by portion, and counts."""

    def __init__(self, shell: Shell, verb: Verb, *, named: bool, rate: float | None) -> None:
        """named: items that are refused are told one by one."""
        self._shell = shell
        self._verb = verb
        self._named = named
        self._rate = rate
        self._portion = PORTION if rate is None else max(1, min(PORTION, math.ceil(rate)))
        self._stop = asyncio.Event()
        self.matched = 0
        self.changed = 0
        self.refused: Counter[str] = Counter()

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
            raise KeyboardInterrupt from None
        stopped = self._stop.is_set()
        self._summary(stopped=stopped or held_back)
        if stopped:
            return INTERRUPTED
        return REFUSED if held_back or (self._named and self.refused) else None

    async def _try_first(self, source: Source, count: int, judge: Judge) -> bool:
        portion = await source.take(count)
        if portion is None:
            return True
        changed = await self._change(*portion)
        return not changed or await judge(changed, self._stop)

    async def _change_all(self, source: Source, total: int | None) -> None:
        began, before = asyncio.get_running_loop().time(), self.matched
        with progress_bar(self._shell, self._verb.name, total) as advance:
            while not self._stop.is_set() and (portion := await source.take(self._portion)) is not None:
                await self._change(*portion)
                advance(self.matched)
                if self._rate is not None:
                    due = began + (self.matched - before) / self._rate
                    await pause_for(self._stop, due - asyncio.get_running_loop().time())

    async def _change(self, items: list[ItemState], missing: list[Refusal]) -> list[ItemState]:
        """Change a portion. Returns those that were not refused."""
        refused = list(missing)
        able: dict[str, list[ItemState]] = {}
        for item in items:
            refusal = self._verb.refusal(item)
            if refusal is not None:
                refused.append(refusal)
            else:
                able.setdefault(item.tenant, []).append(item)
        for tenant, own in able.items():
            outcome = await self._verb.change(self._shell.client.tenant(tenant), own)
            self.changed += outcome.changed
            refused += outcome.refused
        self.matched += len(items) + len(missing)
        self.refused.update(type(each.error).__name__ for each in refused)
        if self._named:
            for each in refused:
                tell_refusal(self._shell, each)
        names = {(each.tenant, each.id) for each in refused}
        return [item for own in able.values() for item in own if (item.tenant, item.id) not in names]

    def _summary(self, *, stopped: bool) -> None:
        skipped = self.refused.total()
        if self._shell.json:
            self._shell.emit(
                summary_json(self._verb.name, self.matched, self.changed, skipped, stopped=stopped)
            )
            return
        if not self.matched:
            self._shell.print("no items match")
            return
        text = f"{self._verb.past} {plural(self.changed, 'item')}"
        asked = self.matched - skipped
        if self.changed > asked > 0:
            text += f" ({asked:,} asked for; the others {self._verb.others})"
        if skipped and not self._named:
            kinds = ", ".join(f"{count:,} {name}" for name, count in self.refused.most_common())
            text += f", skipped {skipped:,} ({kinds})"
        self._shell.print(f"stopped: {text}. The rest is as it was" if stopped else text)


def summary_json(
    verb: str,
    matched: int,
    changed: int,
    skipped: int,
    *,
    stopped: bool = False,
    dry_run: bool = False,
    more: bool = False,
) -> dict[str, Any]:
    """What a command did, for programs.

    matched: how many items were asked for or found. more: there are more, which were not counted.
    changed: how many were changed, with those that had to be changed with them.
    skipped: how many of those that matched could not be changed.
    """
    return {
        "verb": verb,
        "matched": matched,
        "more": more,
        "changed": changed,
        "skipped": skipped,
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
                "message": str(refusal.error),
            }
        )
    else:
        shell.warn(str(refusal.error))
