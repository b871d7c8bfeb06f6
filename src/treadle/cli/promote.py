"""`treadle export`, `import` and `promote`: all that a store holds goes into a file, or another store."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from treadle.backend import store_name
from treadle.base.timing import SystemClock
from treadle.base.wording import duration, plural
from treadle.connect import connect
from treadle.errors import InputError
from treadle.operate.promote import Progress, Promoted, export_to, give_up, import_from, promote

from .change_items import progress_bar
from .shell import Shell, operator_command, run_command

NAMES: Final = {
    "item": "item",
    "group": "group",
    "order": "pause or limit",
    "schedule": "schedule",
    "removed_schedule": "removed schedule",
    "run": "run of a schedule",
    "limit": "state of a rate limit",
    "claimed_key": "claimed key",
    "release": "release",
    "stat": "statistic",
    "sample": "sample",
    "audit": "audit entry",
}
STANDARD: Final = "-"


def register(commands: typer.Typer) -> None:
    operator_command(commands, "export", connect=False)(export)
    operator_command(commands, "import", connect=False, changes=True)(import_file)
    commands.command("promote")(promote_store)


async def export(
    shell: Shell,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="where to; default: standard output")] = Path(
        STANDARD
    ),
) -> int | None:
    """Write all that a store holds into a file, for `treadle import`: items in every state, with their keys,
    steps and history, schedules, pauses, limits, statistics and the audit. --tenant: what is that tenant's
    alone.

    Workers may run meanwhile: it reads one snapshot. On Redis writes wait. Running items are written as if
    their workers had died.
    """
    began = time.monotonic()
    with _output(file) as output, _progress(shell) as progress:
        done = await export_to(shell.backend, output, progress, tenant=shell.tenant)
    _say(shell, done, began, to_stderr=str(file) == STANDARD)
    return None


async def import_file(
    shell: Shell,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="what `treadle export` wrote; -: standard input")
    ],
) -> int | None:
    """Fill an empty store from a file, or add a tenant to one in use. All of it comes in, or nothing: after a
    crash, run it again."""
    if shell.tenant is not None:
        raise InputError(
            "--tenant: the file says whose records it has. To write those of one: treadle export"
        )
    began = time.monotonic()
    with _input(file) as given, _progress(shell) as progress:
        done = await import_from(given, shell.backend, shell.note, str(file), progress)
    _say(shell, done, began)
    return None


def promote_store(
    old: Annotated[
        str, typer.Argument(metavar="OLD", help="the store that owns the work, as sqlite:///shop.db")
    ],
    new: Annotated[str, typer.Argument(metavar="NEW", help="an empty one, as postgresql://host/shop")],
    prefix: Annotated[
        str, typer.Option("--prefix", help="the prefix, or schema, of the app in both")
    ] = "treadle",
    skew: Annotated[
        float, typer.Option("--skew", min=0, help="seconds by which the clocks of the stores may differ")
    ] = 1.0,
    undo: Annotated[
        bool,
        typer.Option(
            "--give-up",
            help="go back to OLD, and empty NEW: after a promotion that failed, or before NEW is used",
        ),
    ] = False,
    because: Annotated[str, typer.Option("--because", metavar="TEXT", help="why, for `treadle audit`")] = "",
    json: Annotated[bool, typer.Option("--json", help="one JSON object, for programs")] = False,
) -> None:
    """Move all that a store holds to another kind of store, with the workers stopped.

    Both are compared before the new one owns the work. From then on the old one answers every call with the
    address of the new one. After a crash, run it again: either nothing was moved, or it does the rest.
    """
    own = {"old": old, "new": new, "prefix": prefix, "skew": skew, "undo": undo}
    shared = {"app": None, "url": old, "tenant": None, "json": json}
    raise typer.Exit(run_command(_promote, {}, {**own, **shared}, connect=False, because=because))


async def _promote(shell: Shell, old: str, new: str, prefix: str, skew: float, undo: bool) -> int | None:
    began = time.monotonic()
    clock = SystemClock()
    old_store = connect(old, prefix=prefix, notify=False, clock=clock)
    new_store = connect(new, prefix=prefix, notify=False, clock=clock)
    if undo:
        found = await give_up(old_store, new_store)
        shell.print(
            "the old store owns the work, and the new one is empty"
            if found
            else "there was nothing to give up"
        )
        return None
    with _progress(shell) as progress:
        done = await promote(old_store, new_store, shell.note, progress, skew=skew)
    _say(shell, done, began)
    shell.print(f"give clients and workers the new address: {store_name(new_store)}")
    return None


# ---------------------------------------------------------------------------------------------------- helpers


@contextlib.contextmanager
def _progress(shell: Shell) -> Generator[Progress]:
    """A progress bar for each thing that is done."""
    with contextlib.ExitStack() as stack:
        bars: dict[str, Any] = {}

        def update(what: str, done: int) -> None:
            if what not in bars:
                bars[what] = stack.enter_context(progress_bar(shell, what, None))
            bars[what](done)

        yield update


@contextlib.contextmanager
def _output(file: Path) -> Generator[BinaryIO]:
    """Where to write. A file is there only when it is whole."""
    if str(file) == STANDARD:
        if sys.stdout.isatty():
            raise InputError("the records are bytes: name a file, or write `treadle export > FILE`")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = file.with_name(f"{file.name}.part") if file.is_file() or not file.exists() else file
    try:
        with part.open("wb") as output:
            if part != file:
                os.fchmod(output.fileno(), 0o600)
            yield output
        if part != file:
            part.replace(file)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        if part != file:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def _input(file: Path) -> Generator[BinaryIO]:
    if str(file) == STANDARD:
        yield sys.stdin.buffer
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    with opened:
        yield opened


def _say(shell: Shell, done: Promoted, began: float, *, to_stderr: bool = False) -> None:
    took = time.monotonic() - began
    if shell.json and not to_stderr:
        counts = {"items": done.counts.get("item", 0), "records": sum(done.counts.values())}
        others = {"checksum": done.checksum, "finished_earlier": done.finished, "took": round(took, 3)}
        shell.emit({**counts, **others})
        return
    if done.finished:
        shell.print("it was copied before: the new store owns the work now")
        return
    lines = [plural(count, NAMES[kind]) for kind, count in done.counts.items()]
    if to_stderr:
        shell.warn(f"wrote {', '.join(lines)} in {duration(took)}")
        return
    rows = [(status, f"{count:,}") for status, count in sorted(done.statuses.items())]
    rows += [(NAMES[kind], f"{count:,}") for kind, count in done.counts.items() if kind != "item"]
    shell.table(("WHAT", "COUNT"), rows, numbers=("COUNT",), keep=("WHAT", "COUNT"))
    shell.print(f"checksum {done.checksum}, {duration(took)}")
