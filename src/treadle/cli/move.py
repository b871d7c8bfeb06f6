"""`treadle move`: a tenant moves from store to store while both are in use."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from treadle.backend import Placed, placed
from treadle.base.wording import duration, plural
from treadle.errors import InputError
from treadle.records import MovedTenant

from .change_items import progress_bar
from .shell import Shell, operator_command

FreezeOption = Annotated[
    float, typer.Option("--freeze", min=0, help="the most seconds for which others may wait to write")
]
SkewOption = Annotated[
    float, typer.Option("--skew", min=0, help="seconds by which the clocks of the stores may differ")
]


def register(commands: typer.Typer) -> None:
    operator_command(commands, "move", changes=True)(move)


async def move(
    shell: Shell,
    to: Annotated[str, typer.Option("--to", help="the store where it goes")] = "",
    source: Annotated[str | None, typer.Option("--from", help="the store that has it")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with a move that has begun")] = False,
    undo: Annotated[bool, typer.Option("--give-up", help="end a move: the tenant stays")] = False,
    freeze: FreezeOption = 10.0,
    skew: SkewOption = 1.0,
) -> int | None:
    """Move a tenant to another store of the app, while clients and workers go on.

    Writes to both stores wait while it is copied. After a crash: --resume.
    """
    if shell.tenant is None:
        raise InputError("name the tenant that moves: --tenant")
    if undo and resume:
        raise InputError("--resume goes on with the move, --give-up ends it: give one of them")
    several = _several(shell)
    if undo:
        found = await several.give_up_move(shell.tenant)
        ended = "the move has ended, and the tenant is where it was"
        shell.print(ended if found else "there was no move to give up")
        if shell.json:
            shell.emit({"tenant": shell.tenant, "given_up": found})
        return None
    if not to:
        raise InputError("name the store where the tenant goes: --to")
    with progress_bar(shell, "copy", None) as progress:
        moved = await several.move_tenant(
            shell.tenant,
            to,
            source=source,
            resume=resume,
            freeze=freeze,
            skew=skew,
            note=shell.note,
            progress=progress,
        )
    say_moved(shell, moved)
    return None


def say_moved(shell: Shell, moved: MovedTenant) -> None:
    if shell.json:
        shell.emit(msgspec.structs.asdict(moved))
    elif moved.finished:
        shell.print(f"{moved.tenant} is in {moved.to}")
    else:
        counts = f"{plural(moved.items, 'item')}, {moved.running:,} of them running"
        shell.print(f"{moved.tenant} is in {moved.to} now: {counts}; writes waited {duration(moved.waited)}")


def _several(shell: Shell) -> Placed:
    several = placed(shell.backend)
    if several is None:
        raise InputError("this app has one store: several are Treadle({'eu': url, 'us': url})")
    return several
