"""`treadle why`: why an item, a queue or a schedule is where it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

import typer

from treadle.base.wording import plain
from treadle.errors import InputError
from treadle.operate.fleet_json import why_json
from treadle.why import Reason, Why

from .exit_codes import REFUSED
from .shell import Shell, operator_command
from .shown import status_word
from .text import Cell, clock, speaks_unicode, styled, terminal_width, wrapped

INDENT: Final = " " * 4


def register(commands: typer.Typer) -> None:
    operator_command(commands, "why")(why)


async def why(
    shell: Shell,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="the id of an item or of a group")] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", metavar="NAME", help="a schedule instead")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="a queue instead")] = None,
) -> int | None:
    """Say why an item is where it is: the most binding reason first, and what to do about it.

    If it waits for other items, the reasons of what holds them up follow.
    """
    if sum(each is not None for each in (id, schedule, queue)) != 1:
        raise InputError("why takes one of: an id, --schedule NAME, --queue NAME")
    if id is not None:
        answer = await shell.client.why(id)
    elif queue is not None:
        answer = await shell.client.why_queue(queue)
    else:
        answer = await shell.client.schedules.why(schedule or "")
    if shell.json:
        shell.emit(why_json(answer))
    else:
        shell.lines(why_lines(answer, await shell.now(), terminal_width()))
    return REFUSED if answer.status == "unknown" else None


def why_lines(answer: Why, now: float, width: int | None) -> Iterator[str]:
    """For a person: each reason with what to do about it."""
    status: Cell = status_word(answer.status)
    yield f"{styled(status, status.style)}  {styled(plain(answer.id), 'bold')}"
    about = ""
    for reason in answer.reasons:
        if reason.about != about:
            about = reason.about
            yield ""
            yield styled(f"because of {plain(about)}:" if about else "itself:", "dim")
        yield from reason_lines(reason, now, width)


def reason_lines(reason: Reason, now: float, width: int | None) -> Iterator[str]:
    """The kind, the text, until when it holds, and what to do."""
    head = f"  {reason.kind}"
    yield styled(head, "yellow")
    yield from wrapped(reason.text, width, INDENT)
    if reason.until is not None:
        until = f"until {clock(reason.until, now)}"
        yield from (styled(line, "dim") for line in wrapped(until, width, INDENT))
    if reason.fix:
        arrow = "→" if speaks_unicode() else "->"
        yield from (styled(line, "green") for line in wrapped(f"{arrow} {reason.fix}", width, INDENT))
