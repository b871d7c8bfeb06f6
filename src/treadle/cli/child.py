"""Child: one worker process under a supervisor: `python -m treadle.cli.child`, with its options as JSON.

It stops on SIGTERM, and when its supervisor is gone: then its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from treadle.app import Treadle
from treadle.backend import store_name
from treadle.cli import log_format
from treadle.cli.exit_codes import CHILD_BURST_FAILED, CHILD_CANNOT_LOAD, CHILD_DRAINED, CHILD_STORE_AWAY
from treadle.cli.load import CannotLoad, load, report
from treadle.cli.reports import ReportWriter, make_report
from treadle.doers import balanced
from treadle.errors import BackendError
from treadle.logs.lines import ERROR, error_text, log_line, traceback_of
from treadle.worker import Worker, asked_to_stop, copy_worker

from .load import StoreAway, open_store
from .reports import LoopLiveness

EXIT_GRACE = 2.0
"""Seconds that a process which has stopped may take to end. Threads that still run would keep it."""


class ChildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor tells a child. liveness: the path of the file for `LoopLiveness`. reports: the
    descriptor of the pipe for `ReportWriter`; None: there is none. stacks: that of the file for the stacks of
    its threads; None: standard error. metrics: report all metrics, not only what the summary needs. wait: for
    how many seconds a store that is unavailable at the start is tried again. loop: `asyncio` or `uvloop`."""

    app: str
    worker: str
    liveness: str
    queues: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None
    concurrency: int | None = None
    burst: bool = False
    reports: int | None = None
    stacks: int | None = None
    metrics: bool = False
    wait: float = 60.0
    loop: str = "asyncio"
    log_level: str = "info"
    log_format: str = "text"


def main() -> None:
    options = msgspec.json.decode(sys.argv[1], type=ChildOptions)
    show_stacks_when_asked(options.stacks)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor handles Ctrl-C of the terminal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # it was blocked until here
    try:
        app = load(options.app)  # before the event loop runs: a module may call `asyncio.run`
    except CannotLoad as error:
        report(error, options.log_format)
        sys.exit(CHILD_CANNOT_LOAD)
    log_format.set_up(options.log_level, options.log_format)
    try:
        sys.exit(run_on(options.loop, work(app, options)))
    except SystemExit:
        raise
    except StoreAway as error:
        log_line(ERROR, str(error))
        sys.exit(CHILD_STORE_AWAY)
    except BaseException as error:  # noqa: BLE001  logged, and the process ends
        # What the store refuses is no bug of the program: no traceback.
        trace = "" if isinstance(error, BackendError) else traceback_of(error)
        what = "the burst failed" if options.burst else "the worker ended"
        log_line(ERROR, f"{what}: {error_text(error)}", error=error, trace=trace)
        sys.exit(CHILD_BURST_FAILED if options.burst else 1)


def show_stacks_when_asked(file: int | None) -> None:
    """Write the stacks of all threads when the supervisor asks for them, also while a C call holds the GIL: a
    Python signal handler would not. When the process ends that is undone, and a late signal is ignored."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, file=file or sys.stderr, all_threads=True)


async def work(app: Treadle, options: ChildOptions) -> int:
    """Run the app's worker until told to stop. Then the process ends, also if a thread still runs. Returns
    its exit code."""
    try:
        code = await _work(app, options)
    except BaseException:
        _exit_soon(CHILD_BURST_FAILED if options.burst else 1)
        raise
    _exit_soon(code)
    return code


def _exit_soon(code: int) -> None:
    """End the process in `EXIT_GRACE` seconds, if it has not ended by itself. What its threads were running
    is freed after that, by the supervisor or with the lease."""

    def end() -> None:
        time.sleep(EXIT_GRACE)
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()


async def _work(app: Treadle, options: ChildOptions) -> int:
    liveness = LoopLiveness(Path(options.liveness))
    writing = asyncio.ensure_future(liveness.run())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_input, stop)
    worker = copy_worker(
        app.worker,
        id=options.worker,
        queues=options.queues,
        tenants=options.tenants,
        doer=None if options.concurrency is None else balanced(options.concurrency),
        last_supervisor_beat=liveness.last_beat,
    )
    async with _reporting(app, worker, options):
        try:
            wait = options.wait if options.burst else math.inf  # the supervisor lives: so may the store
            if not await open_store(app.connect, store_name(app.backend), wait, stop):
                return 0
            if options.burst:
                await _run_burst(worker, stop)
            else:
                await worker.run(until=stop)
        finally:
            loop.remove_reader(sys.stdin.fileno())
            await app.close()
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing
    return CHILD_DRAINED if asked_to_stop(worker).is_set() and not stop.is_set() else 0


@contextlib.asynccontextmanager
async def _reporting(app: Treadle, worker: Worker, options: ChildOptions) -> AsyncGenerator[None]:
    """Write reports to the supervisor meanwhile, and a last one at the end."""
    if options.reports is None:
        yield
        return
    writer = ReportWriter(
        options.reports, lambda: make_report(app.metrics, len(worker.active()), rows=options.metrics)
    )
    writing = asyncio.ensure_future(writer.run())
    try:
        yield
    finally:
        writing.cancel()
        writer.finish()


async def _run_burst(worker: Worker, stop: asyncio.Event) -> None:
    """Run the items that are due, then stop. Raises if that failed."""
    await worker.start()
    stopping = [asyncio.ensure_future(event.wait()) for event in (stop, asked_to_stop(worker))]
    draining = asyncio.ensure_future(worker.drain())
    try:
        await asyncio.wait({*stopping, draining}, return_when=asyncio.FIRST_COMPLETED)
        if draining.done():
            draining.result()
    finally:
        for each in (*stopping, draining):
            each.cancel()
        await worker.stop()


def _stop_at_end_of_input(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        stop.set()


T = TypeVar("T")


class EventLoop(enum.StrEnum):
    auto = "auto"
    """uvloop if it is installed, otherwise asyncio."""
    asyncio = "asyncio"
    uvloop = "uvloop"


def chosen_loop(wanted: EventLoop) -> EventLoop | None:
    """The event loop to use: `asyncio` or `uvloop`. None: it is not installed."""
    if wanted is EventLoop.asyncio:
        return wanted
    if find_spec("uvloop") is not None:
        return EventLoop.uvloop
    return EventLoop.asyncio if wanted is EventLoop.auto else None


def run_on(loop: str, main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop of this name, as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=_factory(loop)) as runner:
        return runner.run(main)


def _factory(loop: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if loop != EventLoop.uvloop:
        return None
    # Not an import statement: uvloop is no dependency, and type checkers need not find it.
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


if __name__ == "__main__":
    main()
