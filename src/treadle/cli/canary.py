"""Canary: run a few dead items again before the others, and look how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from treadle.base.wording import duration, listed, plural
from treadle.item import ItemState
from treadle.operate.item_json import ref_json
from treadle.operate.portions import CanaryEnd, read_canary
from treadle.operate.why.wording import command, tenant_option

from .asking import pause_for
from .bulk import Judge
from .fleet import read_fleet
from .shell import Shell
from .shown import item_lines

FIRST_LOOK: Final = 0.05
LONGEST_PAUSE: Final = 1.0
"""Seconds between two looks: they get longer."""

CanaryOption = Annotated[
    int,
    typer.Option(
        "--canary", metavar="N", min=0, help="requeue N items, and the others only if all of those succeed"
    ),
]
CanaryWaitOption = Annotated[
    str, typer.Option("--canary-wait", metavar="DURATION", help="how long to wait for them")
]


def canary_judge(shell: Shell, seconds: float) -> Judge:
    """Whether to go on after the first items: all of them have succeeded within these seconds."""

    async def judge(items: Sequence[ItemState], stop: asyncio.Event) -> bool:
        shell.print(f"canary: requeued {plural(len(items), 'item')}, waiting for up to {duration(seconds)}")
        await _warn_unserved(shell, items)
        shell.flush()
        end = await _watch(shell, items, seconds, stop)
        _say(shell, end, await shell.now(), seconds)
        return end.is_good

    return judge


async def _warn_unserved(shell: Shell, items: Sequence[ItemState]) -> None:
    """Say before the wait that nothing can come of it."""
    fleet = await read_fleet(shell)
    types = dict.fromkeys(item.type for item in items)
    if not fleet.live:
        shell.warn("no worker is alive: they run once one is started")
    elif unserved := [type for type in types if not fleet.serves(type=type)]:
        shell.warn(f"no live worker has {listed(unserved)}: they run once one is started")


async def _watch(shell: Shell, items: Sequence[ItemState], seconds: float, stop: asyncio.Event) -> CanaryEnd:
    loop = asyncio.get_running_loop()
    refs = [(item.tenant, item.id) for item in items]
    end, pause = loop.time() + seconds, FIRST_LOOK
    while True:
        end_now = await read_canary(shell.backend, refs)
        left = end - loop.time()
        if not end_now.open or left <= 0 or stop.is_set():
            return end_now
        await pause_for(stop, min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE)


def _say(shell: Shell, end: CanaryEnd, now: float, seconds: float) -> None:
    if shell.json:
        shell.emit(
            {
                "verb": "canary",
                "succeeded": len(end.succeeded),
                "failed": [ref_json(each) for each in end.failed],
                "open": [ref_json(each) for each in end.open],
            }
        )
        return
    if end.is_good:
        shell.print(f"canary: {plural(len(end.succeeded), 'item')} succeeded", "green")
        return
    parts = [f"{len(end.succeeded)} succeeded", f"{len(end.failed)} failed"]
    if end.open:
        parts.append(f"{len(end.open)} not ended after {duration(seconds)}")
    shell.print(f"canary: {', '.join(parts)}", "red")
    shell.lines(item_lines([*end.failed, *end.open], now))
    example = (end.open or end.failed)[0]
    look = command("why" if end.open else "show", example.id, tenant=tenant_option(example.tenant))
    shell.print(f"look with `{look}`", "dim")
