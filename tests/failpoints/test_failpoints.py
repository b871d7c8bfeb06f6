"""A fault at each step of an item's way, one at a time, and exactly what must come of it.

Every verb of the store that is on the way, before it is carried out and after (then its answer is lost), and
the handler itself; each with a kill -9 (in a process of its own), an error, and a stall of two and a half
leases. On the stores that last.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.stores import Ground, PostgresGround, SqliteGround
from tests.failpoints.scene import SETTINGS, WORKS, Kind, Point, When, ended, fired, play, scheduled_once
from treadle import Treadle
from treadle.item import ItemState
from treadle.testing.contract.check import consistent

PROJECT = Path(__file__).parents[2]
PATIENCE = 30.0

POINTS: list[tuple[When, Kind]] = [
    ("before", "kill"),
    ("after", "kill"),
    ("before", "raise"),
    ("after", "raise"),
    ("before", "stall"),
    ("after", "stall"),
]

# How many attempts an item has had in the end, for each. 0: it was never stored. None: no such point.
STEPS: dict[tuple[str, str], tuple[int | None, ...]] = {
    # What is acknowledged is stored; what is not may be, and then runs like any other.
    ("effect", "submit"): (0, 1, 1, 1, 1, 1),
    # A claim that was carried out is an attempt once its worker is dead. A lost answer is asked for.
    ("effect", "claim"): (1, 2, 1, 1, 1, 1),
    # Within the handler. Long is not dead: it beats, also within a transaction that lets nobody else write.
    ("plain", "run"): (2, None, 2, None, 1, None),
    ("effect", "run"): (2, None, 2, None, 1, None),
    # Settled or not: nothing in between. The same settlement may be sent again.
    ("plain", "settle"): (2, 1, 1, 1, 1, 1),
    # The handler's own transaction. Until the commit none of it has happened.
    ("effect", "begin"): (2, 2, 2, 2, 1, 1),
    ("effect", "settle_within"): (2, 2, 2, 2, 1, 1),
    ("effect", "commit"): (2, 1, 2, 1, 1, 1),
    # A beat that is late or lost is not the last: the next comes in time, or the loop's guard beats instead.
    ("long", "beat"): (2, 2, 1, 1, 1, 1),
    # An occurrence and what it submits are one step: it fires once, whoever does it.
    ("", "fire"): (1, 1, 1, 1, 1, 1),
}

CASES = [
    pytest.param(name, Point(step, when, kind), attempts, id=f"{kind}-{when}-{step}-{name}".rstrip("-"))
    for (name, step), outcomes in STEPS.items()
    for (when, kind), attempts in zip(POINTS, outcomes, strict=True)
    if attempts is not None
]


@pytest.fixture(params=["sqlite", "postgres"])
async def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    made: Ground
    if request.param == "sqlite":
        made = SqliteGround(tmp_path / "work.db")
    else:
        made = PostgresGround(request.getfixturevalue("prepared_url"), tmp_path)
    await made.prepare()
    return made


@pytest.mark.timeout(90)
@pytest.mark.parametrize(("name", "point", "attempts"), CASES)
async def test_exactly(ground: Ground, name: str, point: Point, attempts: int) -> None:
    """One item, struck once; then everything is as if it had not been, but for the attempts."""
    app = Treadle(ground.url, work=list(WORKS.values()), **SETTINGS)
    program = {"submit": "submit", "fire": "fire"}.get(point.step, "run")
    if program == "run":
        await app.enqueue(WORKS[name]())
    elif program == "fire":
        name = str(round(time.time()))
    await asyncio.wait_for(strike(ground, program, name, point), PATIENCE)
    items = await asyncio.wait_for(finished(app, program, name), PATIENCE)
    assert [(item.status, item.attempt) for item in items] == [("success", attempts)] * (attempts > 0)
    for item in items:
        killed = sum(attempt.error_type == "LeaseLost" for attempt in item.history)
        assert (killed, len(item.history)) == (
            attempts - 1 if point.kind == "kill" else 0,
            attempts - 1,
        )
    assert await ground.effects() == [item.id for item in items if item.type == "effect"]


async def finished(app: Treadle, program: str, name: str) -> list[ItemState]:
    """Everything there is, once somebody else has done what was left."""
    if program == "fire":
        scheduled_once(app, name)
    async with app:
        await (fired(app) if program == "fire" else ended(app))
        listed = (await app.list(limit=100)).items
        items = [item for item in await app.get([item.id for item in listed]) if item is not None]
        groups = [await app.group(item.id) for item in items]
        await consistent(app._core.backend)
    assert [group is not None and (group.open, group.value) for group in groups] == [(0, 1)] * len(items)
    return items


async def strike(ground: Ground, program: str, name: str, point: Point) -> None:
    """Have it happen: here, or in a process that it kills."""
    if point.kind != "kill":
        assert await play(ground.url, program, name, point)
        return
    command = ("-m", "tests.failpoints.scene", ground.url, program, name, point.step, point.when, point.kind)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=PROJECT)
    assert await process.wait() == -signal.SIGKILL
