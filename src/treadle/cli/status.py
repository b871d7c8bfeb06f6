"""`treadle status`: how the whole store stands: problems first, then queues and workers.

It is healthy if there is no problem: see `problems`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple, cast, get_args

import msgspec
import typer

from treadle.backend import all_stores, only_store
from treadle.base.timing import iso
from treadle.base.wording import approximate, duration, listed, plain, plural
from treadle.errors import InputError, StoreUnavailable
from treadle.item import Count, Order, Status
from treadle.item_facts import By, Overview, counts_by, total
from treadle.operate.backlog import backlog_text, rate
from treadle.operate.filters import names_in, read_duration
from treadle.operate.fleet_json import (
    COUNTED,
    backlog_json,
    counts_json,
    order_json,
    problem_json,
    unserved_json,
    worker_json,
)
from treadle.operate.store_look import ScheduledParts, count_scheduled
from treadle.problems import PROBLEM_KINDS, Problem, ProblemKind, check_kinds
from treadle.records import QueueBacklog
from treadle.store.fleet import Fleet

from .exit_codes import UNHEALTHY
from .filters import StoreOption
from .fleet import fleet_text
from .shell import PatientReader, Shell, operator_command
from .shown import ASCII_SHAPES, SHAPES, STATUS_STYLES
from .text import (
    WIDTH,
    Cell,
    about,
    clock,
    columns,
    speaks_unicode,
    styled,
    table_lines,
    terminal_width,
    wrapped,
)

MOST_ROWS: Final = 30


def register(commands: typer.Typer) -> None:
    operator_command(commands, "status")(status)


MaxWaitOption = Annotated[
    str, typer.Option("--max-wait", metavar="DURATION", help="how long a ready item may wait")
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="KIND", help=f"no problem: {', '.join(PROBLEM_KINDS)}"),
]


async def status(
    shell: Shell,
    by: Annotated[str, typer.Option("--by", help="a row for each queue, type or tenant")] = "queue",
    watch: Annotated[bool, typer.Option("--watch", help="look again and again, until Ctrl-C")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, help="seconds between two looks of --watch")
    ] = 2.0,
    max_wait: MaxWaitOption = "5m",
    ignore: IgnoreOption = None,
    store: StoreOption = None,
) -> int | None:
    """Show how the store stands: problems, queues, workers.

    The exit code is 4 if there is a problem: items that end their workers, no worker for items that wait,
    silent or blocked workers, arguments that do not decode, deaths that began with the newest release, a
    type that dies now, a flood of one tenant or type, items that wait for longer than --max-wait, or for ids
    that were never submitted, schedules that no process fires, paused queues, dead items.
    """
    if by not in get_args(By):
        raise InputError.of("--by", by, "must be queue, type or tenant")
    ignored = check_kinds(names_in(ignore), "--ignore")
    look = _Look(shell, cast("By", by), read_duration(max_wait, "--max-wait"), ignored, store)
    if watch:
        return await _watch(shell, look, every)
    seen = await look()
    if shell.json:
        shell.emit(seen.json())
    else:
        shell.lines(seen.lines(terminal_width()))
    return UNHEALTHY if seen.problems else None


class _Look:
    """Looks at the store."""

    def __init__(
        self, shell: Shell, by: By, max_wait: float, ignored: frozenset[ProblemKind], store: str | None
    ) -> None:
        self._shell = shell
        self._by: By = by
        self._max_wait = max_wait
        self._ignored = ignored
        self._store = store

    async def __call__(self) -> StatusView:
        with only_store(self._store):
            return await self._look()

    async def _look(self) -> StatusView:
        found = await self._shell.client.look(self._max_wait, quick=True, store=self._store)
        left = tuple(each for each in found.problems if each.kind not in self._ignored)
        scheduled = await self._scheduled(found.overview)
        backlogs = await self._shell.client.backlogs(overview=found.overview)
        return StatusView(
            found.overview, found.fleet, left, self._by, found.unseen, scheduled, tuple(backlogs)
        )

    async def _scheduled(self, overview: Overview) -> ScheduledParts:
        """How many of the scheduled items are suspended or held."""
        if not any(each.status == "scheduled" for each in overview.counts):
            return ScheduledParts()
        return await count_scheduled(self._shell.backend, self._shell.tenant)


class StatusView(NamedTuple):
    """What one look at the store has seen."""

    overview: Overview
    fleet: Fleet
    problems: tuple[Problem, ...]
    by: By
    unseen: str = ""
    scheduled: ScheduledParts = ScheduledParts()
    backlogs: tuple[QueueBacklog, ...] = ()

    def json(self) -> dict[str, Any]:
        overview, backlogs = self.overview, {each.queue: each for each in self.backlogs}
        return {
            "now": iso(overview.now),
            "healthy": not self.problems,
            "problems": [problem_json(problem) for problem in self.problems],
            "unseen": self.unseen or None,
            "statuses": _row_json(overview.counts),
            "suspended": msgspec.structs.asdict(self.scheduled.suspended),
            "held": msgspec.structs.asdict(self.scheduled.held),
            "queues": [
                {
                    "queue": queue,
                    **_row_json(counts),
                    "oldest_ready_at": iso(_ages(overview).get(queue)),
                    "backlog": backlog_json(backlogs.get(queue)),
                }
                for queue, counts in counts_by(overview.counts, "queue").items()
            ],
            "types": [
                {"type": type, **_row_json(counts)}
                for type, counts in counts_by(overview.counts, "type").items()
            ],
            "tenants": [
                {"tenant": tenant, **_row_json(counts)}
                for tenant, counts in counts_by(overview.counts, "tenant").items()
            ],
            "unserved": [unserved_json(each) for each in overview.unserved],
            "paused": [order_json(each) for each in overview.paused],
            "workers": [worker_json(each, self.fleet.standing(each)) for each in self.fleet.workers],
        }

    def lines(self, width: int | None) -> list[str]:
        return [
            *_problem_lines(self.problems, self.overview.now, width),
            *([styled(line, "dim") for line in wrapped(self.unseen, width, "  ")] if self.unseen else ()),
            "",
            *_count_lines(self.overview, self.by, self.backlogs, width),
            *_scheduled_lines(self.scheduled, width),
            "",
            plain(fleet_text(self.fleet)),
        ]


# ---------------------------------------------------------------------------------------------- problems


def _problem_lines(problems: Sequence[Problem], now: float, width: int | None) -> list[str]:
    at = clock(now, now).partition(" (")[0]
    if not problems:
        return [f"{styled(_shape('success') + ' healthy', 'green')}  {styled(at, 'dim')}"]
    head = styled(f"{_shape('dead')} {plural(len(problems), 'problem')}", "red")
    lines = [f"{head}  {styled(at, 'dim')}"]
    arrow = "→" if speaks_unicode() else "->"
    for each in problems:
        text, fix = f"  {plain(each.text)}", f"{arrow} {plain(each.fix)}"
        if columns(text) + columns(fix) + 2 <= (width or WIDTH):
            lines.append(f"{text}  {styled(fix, 'dim')}")
        else:
            lines += wrapped(each.text, width, "  ")
            lines += [styled(line, "dim") for line in wrapped(fix, width, "      ")]
    return lines


def _shape(status: Status) -> str:
    return (SHAPES if speaks_unicode() else ASCII_SHAPES)[status]


# ------------------------------------------------------------------------------------------------ counts


def _row_json(counts: Sequence[Count]) -> dict[str, Any]:
    return counts_json(
        {status: total(each for each in counts if each.status == status) for status in COUNTED}
    )


def _ages(overview: Overview) -> dict[str, float]:
    return {age.queue: age.oldest_ready for age in overview.ages}


def _count_lines(
    overview: Overview, by: By, backlogs: Sequence[QueueBacklog], width: int | None
) -> list[str]:
    rows = counts_by(overview.counts, by)
    rows.update((name, []) for each in overview.paused if (name := getattr(each, by)) and name not in rows)
    if not rows:
        return ["no open and no dead items"]
    names = sorted(rows)
    rates = ["IN/MIN", "OUT/MIN"]
    heads = [by.upper(), *(status.upper() for status in COUNTED), "OLDEST WAIT", *rates, ""]
    known = {each.queue: each for each in backlogs} if by == "queue" else {}
    cells = [
        [name, *_count_cells(rows[name]), *_wait(overview, by, name, known.get(name))]
        for name in names[:MOST_ROWS]
    ]
    if len(rows) > 1:
        others = len(rows) - len(cells)
        if others:
            rest = [each for name in names[MOST_ROWS:] for each in rows[name]]
            cells.append([Cell(f"and {others:,} more", "dim"), *_count_cells(rest), *[""] * 4])
        cells.append([Cell("all", "bold"), *_count_cells(overview.counts), *[""] * 4])
    return table_lines(heads, cells, width=width, numbers=heads[1:-1], keep=("",), drop=rates)


def _count_cells(counts: Sequence[Count]) -> list[Cell]:
    cells: list[Cell] = []
    for status in COUNTED:
        count, estimated = total(each for each in counts if each.status == status)
        cells.append(
            Cell(approximate(count, estimated, about()), STATUS_STYLES[status])
            if count
            else Cell("·" if speaks_unicode() else ".", "dim")
        )
    return cells


def _wait(overview: Overview, by: By, name: str, backlog: QueueBacklog | None) -> list[str]:
    """The oldest wait, what comes and goes in a minute, and a text."""
    oldest = _ages(overview).get(name) if by == "queue" else None
    paused = _paused([each for each in overview.paused if getattr(each, by) == name], by)
    wait, sign = "" if oldest is None else duration(overview.now - oldest), about()
    if backlog is None or backlog.ends is None:
        return [wait, "", "", Cell(paused, "yellow")]
    text = backlog_text(backlog, sign).replace(" a minute", "/min")
    grows = "grows by" in text
    arrivals = "?" if backlog.arrivals is None else rate(backlog.arrivals, sign if backlog.rough else "")
    if paused:
        text = text.removeprefix("paused").removeprefix(", ")
    held_back = paused or text.startswith("paused")
    last = Cell(", ".join(filter(None, (paused, text))), "yellow" if held_back or grows else "dim")
    return [wait, arrivals, rate(backlog.ends), last]


def _paused(pauses: Sequence[Order], by: By) -> str:
    """`paused`, or what part of it is."""
    if by == "tenant":
        parts = [each.queue or each.type for each in pauses]
        return "" if not pauses else "paused" if None in parts else f"paused: {listed(map(str, parts), 2)}"
    tenants = [each.tenant for each in pauses]
    return "" if not pauses else "paused" if None in tenants else f"paused for {listed(map(str, tenants), 2)}"


def _scheduled_lines(parts: ScheduledParts, width: int | None) -> list[str]:
    lines: list[str] = []
    for part, text in (
        (parts.suspended, "suspended: asleep, or waiting for a signal or children"),
        (parts.held, "held: `treadle unhold` lets them go"),
    ):
        counted = plural(part.count, "scheduled item", part.more)
        are = "is" if counted.startswith("1 ") else "are"
        lines += wrapped(f"{counted} {are} {text}", width) if part.count else ()
    return ["", *lines] if lines else []


# ----------------------------------------------------------------------------------------------- watching


async def _watch(shell: Shell, look: _Look, every: float) -> int | None:
    """Look again and again. Ctrl-C ends it. A store that does not answer is looked at again."""
    import sys

    if shell.json or not sys.stdout.isatty():
        return await _watch_lines(shell, look, every)
    from rich.live import Live
    from rich.text import Text

    loop = asyncio.get_running_loop()
    last: list[str] = []
    looked_at = loop.time()
    with Live(Text("..."), auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        try:
            while True:
                try:
                    with all_stores():
                        lines = last = (await look()).lines(terminal_width())
                    looked_at = loop.time()
                except StoreUnavailable as error:
                    lines = away_lines(error, last, loop.time() - looked_at, terminal_width())
                live.update(Text.from_ansi("\n".join(lines)), refresh=True)
                await asyncio.sleep(every)
        except asyncio.CancelledError:
            return None


def away_lines(error: StoreUnavailable, last: list[str], seconds: float, width: int | None) -> list[str]:
    """What is shown while the store does not answer. last: the lines of the last look, which is so old."""
    shape = "✕" if speaks_unicode() else "x"
    lines = [styled(line, "red") for line in wrapped(f"{shape} the store does not answer: {error}", width)]
    if last:
        lines += ["", f"{duration(seconds)} ago it was:", ""]
        lines += (styled(_STYLE.sub("", line), "dim") for line in last)
    return lines


_STYLE = re.compile(r"\x1b\[[0-9;]*m")


async def _watch_lines(shell: Shell, look: _Look, every: float) -> int | None:
    """Without a terminal: one look after the other."""
    reader = PatientReader(shell)
    try:
        while True:
            seen = await reader.read(look)
            if seen is not None and shell.json:
                shell.emit(seen.json())
            elif seen is not None:
                shell.lines([*seen.lines(None), ""])
            shell.flush()
            await asyncio.sleep(every)
    except asyncio.CancelledError:
        return None
