"""A claim from strict lanes takes as many steps in SQLite whether few or many lanes wait."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from treadle.backends.sqlite import SqliteBackend
from treadle.backends.sqlite.claim import claim_facts
from treadle.backends.sqlite.fairness import LastServed, pick_items
from treadle.backends.sqlite.statements import Tx
from treadle.item import Demand
from treadle.testing.contract.build import apply, claim, item, submit, succeed

STRICT = frozenset({"work"})
FEW, MANY, WANTED = 40, 240, 32


async def free_lanes(path: Path, count: int) -> None:
    """Lanes whose holder has ended, with one more item each. A claim has set these aside."""
    backend = SqliteBackend(path)
    await backend.open()
    for _ in range(2):
        await submit(backend, *(item(lane=f"lane-{n:03}") for n in range(count)))
    held = await claim(backend, count, strict=STRICT)
    assert await claim(backend, count, strict=STRICT) == []
    await apply(backend, *map(succeed, held))
    await backend.close()


def steps(path: Path) -> int:
    """How many tens of instructions SQLite executes to pick items."""
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(sqlite3.connect(path)) as connection:
        connection.set_progress_handler(step, 10)
        demand = Demand(worker="w", limit=WANTED, types={"work": WANTED}, strict=STRICT)
        tx = Tx(connection.cursor(), 2e9)
        assert len(pick_items(tx, demand, LastServed(), claim_facts(tx, "w")).nos) == WANTED
    return count


async def test_a_claim_takes_as_many_steps_among_many_lanes(quick_directory: Path) -> None:
    """It read up to a thousand lanes for each item that it handed out: 5,000 items took 70 seconds."""
    few, many = quick_directory / "few-lanes.db", quick_directory / "many-lanes.db"
    await free_lanes(few, FEW)
    await free_lanes(many, MANY)
    assert steps(many) < 1.5 * steps(few)
