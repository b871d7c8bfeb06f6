"""Child: one worker process under a supervisor. `python -m treadle.cli.child`, with its orders as JSON.

It stops by itself when its supervisor is gone (its standard input ends), and on SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from treadle.cli.load import CannotLoad, load
from treadle.cli.tick import Tick
from treadle.doers import balanced
from treadle.worker import Worker, copy_worker

USAGE_ERROR = 2
"""Exit code for what restarting would not mend."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor tells a child."""

    app: str
    worker: str
    tick: str
    queues: tuple[str, ...] | None = None
    tenants: tuple[str, ...] | None = None
    concurrency: int | None = None
    burst: bool = False


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    logging.basicConfig(
        level=os.environ.get("TREADLE_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s"
    )
    # Works while a C call holds the GIL, which a Python signal handler does not.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the supervisor's to handle
    try:
        asyncio.run(work(orders))
    except CannotLoad as error:
        print(f"treadle: {error}", file=sys.stderr)  # noqa: T201  for the person who started it
        sys.exit(USAGE_ERROR)


async def work(orders: Orders) -> None:
    tick = Tick(Path(orders.tick))
    ticking = asyncio.ensure_future(tick.run())
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), _orphaned, stop)
    app = load(orders.app)
    worker = copy_worker(
        app.worker,
        id=orders.worker,
        queues=orders.queues,
        tenants=orders.tenants,
        doer=None if orders.concurrency is None else balanced(orders.concurrency),
    )
    try:
        if orders.burst:
            await _burst(worker, stop)
        else:
            await worker.run(until=stop)
    finally:
        loop.remove_reader(sys.stdin.fileno())
        await app.close()
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ticking


async def _burst(worker: Worker, stop: asyncio.Event) -> None:
    """Run what is due to its end, then stop."""
    await worker.start()
    stopping = asyncio.ensure_future(stop.wait())
    draining = asyncio.ensure_future(worker.drain())
    try:
        await asyncio.wait({stopping, draining}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        draining.cancel()
        await worker.stop()


def _orphaned(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        stop.set()


if __name__ == "__main__":
    main()
