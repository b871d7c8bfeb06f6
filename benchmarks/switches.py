"""How often one `add(1, 2)` calls from one module of treadle into another: `python -m benchmarks.switches`.

A switch is a call whose caller, the nearest frame of treadle on the stack, is in another module. A resumed
coroutine counts as a call, as it does for `sys.setprofile`. All threads count, from `enqueue` until the app
is idle. The fourth item of an app is measured, so work that is done once per app does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

import treadle
from treadle import Treadle, work

HOME = str(Path(treadle.__file__).parent)


@work(name="switches.add")
async def add(a: int, b: int) -> int:
    return a + b


class Switches:
    """A profile function that counts calls between modules."""

    def __init__(self) -> None:
        self.counting = False
        self.modules: set[str] = set()
        self.pairs: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.counting or event != "call" or (module := _module(frame)) is None:
            return
        self.modules.add(module)
        caller = frame.f_back
        while caller is not None and _module(caller) is None:
            caller = caller.f_back
        if caller is not None and (origin := _module(caller)) not in (None, module):
            self.pairs[str(origin), module] += 1


def _module(frame: FrameType) -> str | None:
    name = frame.f_code.co_filename
    return name[len(HOME) + 1 :] if name.startswith(HOME) else None


async def count(url: str) -> Switches:
    switches = Switches()
    threading.setprofile(switches)  # for the threads that a backend starts
    try:
        async with Treadle(url, work=[add]) as app:
            for _ in range(3):
                await app.enqueue(add(1, 2)).result()
            await asyncio.sleep(0.3)
            sys.setprofile(switches)
            switches.counting = True
            await app.enqueue(add(1, 2)).result()
            await asyncio.sleep(0.05)
            switches.counting = False
            sys.setprofile(None)
    finally:
        threading.setprofile(None)
    return switches


def main() -> None:
    parser = argparse.ArgumentParser(prog="switches", description=__doc__)
    parser.add_argument("--pairs", type=int, default=0, help="show this many of the most frequent pairs")
    given = parser.parse_args()
    console = Console()
    table = Table("store", "modules", "switches")
    with tempfile.TemporaryDirectory() as folder:
        for name, url in (("memory", "memory://"), ("sqlite", f"sqlite:///{folder}/work.db")):
            switches = asyncio.run(count(url))
            table.add_row(name, str(len(switches.modules)), str(switches.pairs.total()))
            for (origin, target), times in switches.pairs.most_common(given.pairs):
                console.print(f"{name:8} {times:4}  {origin} -> {target}", highlight=False)
    console.print(table)


if __name__ == "__main__":
    main()
