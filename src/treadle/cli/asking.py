"""Asking: the question before many items are changed, the progress meanwhile, and Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Generator

from .shell import Shell


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
