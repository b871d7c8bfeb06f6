"""kill -9 at every point of a handler of ten steps, with signals, a child, sleeps and a stream.

After one fault it ends as if there had been none: each step is recorded once, the writes of `step_tx`
happened once, each signal was taken once and in order, and the stream has no gaps. At most the functions that
ran when the fault came are called again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.stores import DurableStore
from tests.cli.forks import common_server
from tests.failpoints import journey as program
from tests.failpoints.journey import CALLS, IN_TRANSACTION, RESULT, SIGNALS, TOKENS, WAITS, journey, paper
from tests.failpoints.programs import SETTINGS, Failpoint, Kind, When
from tests.failpoints.test_failpoints import PATIENCE, PROJECT
from tests.failpoints.test_failpoints import store as store
from treadle import Client, Treadle
from treadle.testing.contract.check import consistent

CALLS_OF = {"record": 5, "settle": 9, "steps": 6, "signal": 1, "call": 5}
"""How often each point is reached at least, on every store."""
IN_TRANSACTIONS = {"begin": 2, "record_within": 2, "commit": 2}
WHENS: tuple[When, ...] = ("before", "after")
KINDS: tuple[Kind, ...] = ("kill", "raise")

CASES = [
    pytest.param(Failpoint(step, when, kind), number, id=f"{kind}-{when}-{step}-{number}")
    for step, most in (CALLS_OF | IN_TRANSACTIONS).items()
    for number in range(1, most + 1)
    for when in WHENS
    for kind in KINDS
]


@pytest.mark.usefixtures("processes")
@pytest.mark.sample(15)
@pytest.mark.timeout(90)
@pytest.mark.parametrize(("point", "number"), CASES)
async def test_a_fault_at_one_point_of_a_journey_leaves_no_trace(
    store: DurableStore, point: Failpoint, number: int, tmp_path: Path
) -> None:
    if point.step in IN_TRANSACTIONS and not store.transactions:
        pytest.skip("the point is one of transactions, which the store does not have")
    notes = tmp_path / "notes"
    async with Client(store.url, work=[journey, paper], **SETTINGS) as client:
        handle = await client.enqueue(journey(store.transactions))
        name, value, key = SIGNALS[0]
        await client.signal(handle.id, name, value, key=key)
        await asyncio.wait_for(trigger_fault(store, handle.id, notes, point, number), PATIENCE)
        app = Treadle(store.url, work=[journey, paper], **SETTINGS)
        program.notes = notes
        await asyncio.wait_for(program.finish(app, client, handle.id), PATIENCE)
        assert await handle.result(1) == RESULT
        await check_steps(client, handle.id, notes, store)
        await consistent(client.backend)


async def check_steps(client: Client, id: str, notes: Path, store: DurableStore) -> None:
    (recorded,) = await client.backend.steps([id])
    assert recorded is not None
    found = {step.name: step for step in recorded.steps}
    assert len(recorded.steps) == len(found)
    assert found.keys() == {*CALLS, *IN_TRANSACTION, *WAITS}
    assert recorded.unread == 0
    called = program.called(notes)
    repeated = called - Counter(called.keys())
    assert repeated.total() <= 1 or repeated.keys() == {"left", "right"}, called
    values = {step.name: step.value for step in await client.steps(id)}
    chunks = [chunk async for chunk in client.handle(id).stream()]
    assert [chunk.number for chunk in chunks] == list(range(1, len(chunks) + 1))
    said = [chunk.value for chunk in chunks if chunk.value.startswith(str(values["write"]))]
    assert said == [f"{values['write']}:{n}" for n in range(TOKENS)]
    if store.transactions:
        assert sorted(await store.effects()) == sorted(IN_TRANSACTION)


async def trigger_fault(store: DurableStore, id: str, notes: Path, point: Failpoint, number: int) -> None:
    """Run the journey with the fault in this process, or in a process that it kills."""
    if point.kind != "kill":
        assert await program.run_with_fault(store.url, id, str(notes), point, number)
        return
    faulty = [store.url, id, str(notes), point.step, str(number), point.when, point.kind]
    command = ["python", "tests/failpoints/journey.py", *faulty]
    process = common_server().start(command, PROJECT, os.environ, errors=2)
    assert await asyncio.to_thread(process.wait, PATIENCE) == -signal.SIGKILL
