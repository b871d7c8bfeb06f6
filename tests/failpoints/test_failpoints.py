"""One fault at each step in the life of an item, and its exact outcome.

The steps are the verbs of the store that an item goes through, and the handler itself. A fault comes before
a verb is carried out, or after it, and then its answer is lost. The faults are a kill -9 (in its own
process), an error, and a stall of two and a half leases. The stores are those that survive a process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from tests.chaos.stores import DurableStore, PostgresStore, RedisStore, SqliteStore
from tests.cli.forks import common_server
from tests.failpoints.programs import (
    SETTINGS,
    WORKS,
    Failpoint,
    Kind,
    When,
    run_with_fault,
    schedule_once,
    wait_until_ended,
    wait_until_fired,
)
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

# The final number of attempts of the item, for each fault. 0: it was never stored. None: no such point.
STEPS: dict[tuple[str, str], tuple[int | None, ...]] = {
    # An acknowledged item is stored. One without an answer may be stored, and then runs like any other.
    ("effect", "submit"): (0, 1, 1, 1, 1, 1),
    # The claim of a worker that dies is an attempt. After a lost answer the worker asks for its leases.
    ("effect", "claim"): (1, 2, 1, 1, 1, 1),
    # Within the handler. A slow handler is not dead: its worker beats, also within a transaction.
    ("plain", "run"): (2, None, 2, None, 1, None),
    ("effect", "run"): (2, None, 2, None, 1, None),
    # A settlement is applied or not, nothing in between. It may be sent again.
    ("plain", "settle"): (2, 1, 1, 1, 1, 1),
    # The handler's own transaction. Before the commit none of it has happened.
    ("effect", "begin"): (2, 2, 2, 2, 1, 1),
    ("effect", "settle_within"): (2, 2, 2, 2, 1, 1),
    ("effect", "commit"): (2, 1, 2, 1, 1, 1),
    # A late or lost heartbeat is followed by the next one in time, or by one of the loop's guard.
    ("long", "beat"): (2, 2, 1, 1, 1, 1),
    # An occurrence and its items are one step: it fires once, in any process.
    ("", "fire"): (1, 1, 1, 1, 1, 1),
}

CASES = [
    pytest.param(name, Failpoint(step, when, kind), attempts, id=f"{kind}-{when}-{step}-{name}".rstrip("-"))
    for (name, step), outcomes in STEPS.items()
    for (when, kind), attempts in zip(POINTS, outcomes, strict=True)
    if attempts is not None
]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> DurableStore:
    made: DurableStore
    if request.param == "sqlite":
        made = SqliteStore(tmp_path / "work.db")
    elif request.param == "redis":
        made = RedisStore(request.getfixturevalue("valkey_url"))
    else:
        made = PostgresStore(request.getfixturevalue("prepared_url"), tmp_path)
    await made.prepare()
    return made


@pytest.mark.usefixtures("processes")
@pytest.mark.sample(3)
@pytest.mark.timeout(90)
@pytest.mark.parametrize(("name", "point", "attempts"), CASES)
async def test_a_fault_at_one_step_has_its_exact_outcome(
    store: DurableStore, name: str, point: Failpoint, attempts: int
) -> None:
    """After one fault the item ends as if there had been none, except for the number of attempts."""
    if point.step in ("begin", "settle_within", "commit") and not store.transactions:
        pytest.skip("the step is one of transactions, which the store does not have")
    app = Treadle(store.url, work=list(WORKS.values()), **SETTINGS)
    program = {"submit": "submit", "fire": "fire"}.get(point.step, "run")
    if program == "run":
        await app.enqueue(WORKS[name]())
    elif program == "fire":
        name = str(round(time.time()))
    await asyncio.wait_for(trigger_fault(store, program, name, point), PATIENCE)
    items = await asyncio.wait_for(finish(app, program, name), PATIENCE)
    assert [(item.status, item.attempt) for item in items] == [("success", attempts)] * (attempts > 0)
    for item in items:
        killed = sum(attempt.error_type == "LeaseLost" for attempt in item.history)
        assert (killed, len(item.history)) == (
            attempts - 1 if point.kind == "kill" else 0,
            attempts - 1,
        )
    if not store.transactions:
        return
    assert await store.effects() == [item.id for item in items if item.type == "effect"]


async def finish(app: Treadle, program: str, name: str) -> list[ItemState]:
    """Let another app finish. Return all items."""
    if program == "fire":
        schedule_once(app, name)
    async with app:
        await (wait_until_fired(app) if program == "fire" else wait_until_ended(app))
        listed = (await app.list(limit=100)).items
        items = [item for item in await app.get([item.id for item in listed]) if item is not None]
        groups = [await app.group(item.id) for item in items]
        await consistent(app._core.backend)
    assert [group is not None and (group.open, group.value) for group in groups] == [(0, 1)] * len(items)
    return items


async def trigger_fault(store: DurableStore, program: str, name: str, point: Failpoint) -> None:
    """Run the program with the fault in this process, or in a process that it kills."""
    if point.kind != "kill":
        assert await run_with_fault(store.url, program, name, point)
        return
    faulty = [store.url, program, name, point.step, point.when, point.kind]
    command = ["python", "tests/failpoints/programs.py", *faulty]
    process = common_server().start(command, PROJECT, os.environ, errors=2)
    assert await asyncio.to_thread(process.wait, PATIENCE) == -signal.SIGKILL
