"""`treadle signal`, and what `treadle show` says of the steps of an item, its progress and its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, NamedTuple

import typer

from treadle.backend import left_out
from treadle.base.ids import check_id
from treadle.base.timing import iso
from treadle.base.wording import counted_names, duration, first_line, listed, plain, plural
from treadle.client import bound_to
from treadle.errors import AlreadyEnded, MailboxFull, NotFound
from treadle.item import Chunk, ItemState, Recorded, StepRecord
from treadle.operate.changes import Refusal
from treadle.operate.item_json import log_json
from treadle.operate.steps import progress_of
from treadle.records import AttemptLog, Progress, StepState

from .change_items import tell_refusal
from .completion import complete_signal
from .exit_codes import REFUSED
from .shell import PatientReader, Shell, operator_command
from .text import Cell, ago, cut, json_line, number, speaks_unicode, styled, terminal_width
from .verbs import read_json

MOST_STEPS: Final = 50
"""Steps that are shown for a person, the last ones."""
LAST_CHUNKS: Final = 5
"""Chunks that are shown, the last ones."""
LONGEST_VALUE: Final = 200
"""Characters of a value in a row."""
BAR: Final = 20
LEVEL_STYLES: Final = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
AGAIN: Final = 1.0
"""Seconds until a store that does not answer is asked again."""


def register(commands: typer.Typer) -> None:
    operator_command(commands, "signal", changes=True)(signal)


# ------------------------------------------------------------------------------------------------ signal


async def signal(
    shell: Shell,
    id: Annotated[str, typer.Argument(metavar="ID", help="the id of an open item")],
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="the name of the signal", autocompletion=complete_signal),
    ],
    value: Annotated[str, typer.Argument(metavar="[JSON]", help="its value")] = "null",
    key: Annotated[
        str | None, typer.Option("--key", help="send it once: not again with the same name and key")
    ] = None,
) -> int | None:
    """Send a signal to an item, for `ctx.signal`. It is in its mailbox until a wait takes it."""
    check_id(id)
    given = read_json(value, "JSON")
    try:
        (item,) = await shell.client.get([id])
        client = shell.client if item is None else bound_to(shell.client, item.tenant)  # the audit names it
        sent = await client.signal(id, name, given, key=key)
    except (NotFound, AlreadyEnded, MailboxFull) as error:
        tell_refusal(shell, Refusal(id, shell.tenant, error))
        return REFUSED
    if shell.json:
        shell.emit({"verb": "signal", "id": id, "signal": name, "sent": sent})
    elif sent:
        shell.print(f"sent the signal {name} to {id}")
    else:
        shell.print(f"nothing was sent: {id} has had a signal {name} with the key {key}")
    if sent:
        await _remark_waits(shell, id, name)
    return None


async def _remark_waits(shell: Shell, id: str, name: str) -> None:
    """Say that an item waits for other signals than the one that was sent: its name may be misspelt."""
    steps: Sequence[StepState] = ()
    with suppress(NotFound):  # it has ended since
        steps = await shell.client.steps(id)
    waits = [step.signal for step in steps if step.signal and not step.over]
    if waits and name not in {step.signal for step in steps}:
        shell.warn(f"{id} waits for the signal {listed(waits)}, and not for {name}, which is in its mailbox")


# -------------------------------------------------------------------------------------------------- show


class Recordings(NamedTuple):
    """What an item has recorded, and the end of its stream."""

    recorded: Recorded
    last: Sequence[Chunk]

    def json(self, shell: Shell, state: ItemState, now: float, reveal: bool) -> dict[str, Any]:
        values = shell.client.values
        return {
            **values.recorded(state, self.recorded, now, reveal=reveal),
            "stream": [values.chunk(state, each, reveal=reveal) for each in self.last],
        }

    def progress_text(self, now: float) -> str:
        """How far it is, in a line. Empty: it has said nothing."""
        progress = progress_of(self.recorded)
        if progress is None:
            return ""
        return f"{_how_far(progress)}, {ago(self.recorded.progress_at, now)}"


async def read_recordings(shell: Shell, state: ItemState) -> Recordings:
    """What there is to show. Nothing if the store has no steps."""
    if "steps" not in shell.backend.capabilities:
        return Recordings(Recorded(), ())
    (recorded,) = await shell.backend.steps([state.id], tenant=state.tenant)
    recorded = recorded or Recorded()
    last: Sequence[Chunk] = ()
    if recorded.chunks:
        since = max(recorded.chunks - LAST_CHUNKS, 0)
        last = await shell.backend.stream(state.id, since=since, limit=LAST_CHUNKS, tenant=state.tenant)
    return Recordings(recorded, last)


def _how_far(progress: Progress) -> str:
    done, total = progress.done, progress.total
    text = number(done) if total is None else f"{number(done)} of {number(total)}"
    if total is not None and total > 0:
        part = min(max(done / total, 0.0), 1.0)
        full, empty = "█░" if speaks_unicode() else "#."
        filled = int(part * BAR)
        text = f"{full * filled}{empty * (BAR - filled)} {int(part * 100)} % ({text})"
    return f"{text} {first_line(progress.message)}" if progress.message else text


def show_recordings(shell: Shell, state: ItemState, recordings: Recordings, now: float, reveal: bool) -> None:
    """Print the steps, the unread signals and the end of the stream."""
    recorded, fields = recordings.recorded, recordings.json(shell, state, now, reveal)
    steps = fields["steps"]
    if steps:
        shell.print()
        some = f"the last {MOST_STEPS} of {len(steps):,}" if len(steps) > MOST_STEPS else f"{len(steps):,}"
        shell.print(f"Steps ({some})", "bold")
        rows = [_row(step, each, now) for step, each in zip(recorded.kept, steps, strict=True)]
        shell.table(
            ("NAME", "KIND", "WHEN", "TOOK", "VALUE"),
            rows[-MOST_STEPS:],
            numbers=("TOOK",),
            keep=("KIND", "WHEN", "TOOK"),
            drop=("TOOK", "WHEN"),
        )
    if recorded.unread:
        shell.print()
        shell.print(f"Mailbox ({plural(recorded.unread, 'signal')} that no wait has taken)", "bold")
        shell.print(f"  {counted_names(recorded.mailbox)}")
    if recordings.last:
        shell.print()
        few = f"the last {len(recordings.last)} of " if recorded.chunks > len(recordings.last) else ""
        shell.print(f"Stream ({few}{plural(recorded.chunks, 'chunk')})", "bold")
        shell.lines(_chunk_lines(fields["stream"]))


def _row(step: StepRecord, fields: dict[str, Any], now: float) -> tuple[str, ...]:
    took = duration(step.took) if step.kind in ("value", "failure") else ""
    return step.name, step.kind, ago(step.at, now), took, _outcome(step, fields, now)


def _outcome(step: StepRecord, fields: dict[str, Any], now: float) -> Cell:
    """What a step came to, or what it waits for and until when."""
    if fields.get("unreadable"):
        return Cell(f"cannot be read by this code: {first_line(fields['unreadable'])}", "red")
    if not fields["over"]:
        signal = f"waits for signal {step.signal}"
        what = {"sleep": "sleeps", "children": "waits for its children"}.get(step.kind, signal)
        return Cell(what if step.until is None else f"{what}, ends {ago(step.until, now)}", "cyan")
    if step.kind == "failure":
        return Cell(first_line(fields["error"] or ""), "yellow")
    if step.kind == "value" or step.value is not None:
        return Cell(cut(json_line(fields["value"]), LONGEST_VALUE))
    return Cell("did not come in time" if step.kind == "signal" else "over", "dim")


def _chunk_lines(chunks: Sequence[dict[str, Any]]) -> Iterator[str]:
    width = terminal_width()
    for each in chunks:
        value, problem = each["value"], each.get("unreadable")
        text = plain(value) if isinstance(value, str) else json_line(value)
        if problem:
            text = f"cannot be read by this code: {first_line(problem)}"
        begin = f"{each['number']:>6}  "
        room = LONGEST_VALUE if width is None else max(width - len(begin), 10)
        yield f"{styled(begin, 'dim')}{styled(cut(text, room), 'red' if problem else '')}"


# -------------------------------------------------------------------------------------------------- logs


async def show_logs(shell: Shell, ids: Sequence[str]) -> int | None:
    """Print what the last attempts of items have logged."""
    missing = False
    for id in ids:
        try:
            logs = await shell.client.logs(id)
        except NotFound as error:
            missing = True
            shell.warn(str(error))
            continue
        if shell.json:
            shell.emit({"id": id, "logs": [log_json(each) for each in logs]})
        elif logs:
            shell.lines(line for each in logs for line in _log_lines(id, each))
        else:
            shell.print(f"{id} has logged nothing that is kept")
    return REFUSED if missing else None


def _log_lines(id: str, log: AttemptLog) -> Iterator[str]:
    left_out = f", without {plural(log.left_out, 'earlier one')}" if log.left_out else ""
    yield styled(f"{id}, attempt {log.attempt}: {plural(len(log.lines), 'record')}{left_out}", "bold")
    for line in log.lines:
        style = LEVEL_STYLES.get(line.level, "")
        first, *rest = line.text.split("\n")
        begin = styled(f"  {iso(line.at)} ", "dim") + styled(f"{plain(line.level):<8}", style)
        yield f"{begin}{styled(plain(line.logger), 'dim')} {plain(first)}"
        yield from (f"      {plain(each)}" for each in rest)


# ------------------------------------------------------------------------------------------------ stream


async def follow_stream(shell: Shell, id: str, since: int, reveal: bool) -> int | None:
    """Print the chunks of an item after the number `since`, and those that come, until it has ended."""
    (state,) = await shell.backend.get([check_id(id)], tenant=shell.tenant)
    if state is None:
        raise NotFound(id, away=left_out())
    reader, read = PatientReader(shell), since

    async def follow() -> bool:
        nonlocal read
        async for chunk in shell.client.handle(state).stream(read):
            fields = shell.client.values.chunk(state, chunk, reveal=reveal)
            if shell.json:
                shell.emit(fields)
            shell.lines(_chunk_lines([fields]))
            shell.flush()
            read = chunk.number
        return True

    try:
        while not await reader.read(follow):  # noqa: ASYNC110  the store is away
            await asyncio.sleep(AGAIN)
    except asyncio.CancelledError:  # Ctrl-C
        return None
    return None
