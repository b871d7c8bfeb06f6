"""SQLite and PostgreSQL do what memory does, step by step. So does memory without its shortcuts.

`make model` runs more and longer programs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from tests.backends.memory_audit import MemoryWithoutShortcuts, audit
from tests.model.machine import BackendMachine
from tests.support.records import record
from tests.support.sqlite import empty_store
from tests.support.tiers import examples
from treadle.backend import Backend
from treadle.backends.sqlite import SqliteBackend

EXAMPLES = int(os.environ.get("TREADLE_MODEL_EXAMPLES", examples(12)))
STEPS = int(os.environ.get("TREADLE_MODEL_STEPS", "30"))
LONG = "TREADLE_MODEL_EXAMPLES" in os.environ
SHM = Path("/dev/shm")

PROFILE = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    print_blob=True,
    derandomize=not LONG,
    # Shrinking a failing program takes minutes. It is done only in long runs.
    phases=(Phase.generate, Phase.shrink) if LONG else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


class MemoryMachine(BackendMachine):
    """Memory with its shortcuts for plain items, and without them. Both pass the audit after every step."""

    async def connect(self) -> Backend:
        self.without_shortcuts = MemoryWithoutShortcuts(clock=self.clock)
        return self.without_shortcuts

    async def disconnect(self) -> None:
        await self.other.close()

    @invariant()
    def both_pass_the_audit(self) -> None:
        assert audit(self.memory) == audit(self.without_shortcuts) == []


class SqliteMachine(BackendMachine):
    async def connect(self) -> Backend:
        self.directory = tempfile.mkdtemp(dir=SHM if os.access(SHM, os.W_OK) else None)
        file = empty_store(Path(self.directory) / "work.db")
        backend = SqliteBackend(file, clock=self.clock, durability="normal")
        await backend.open()
        return backend

    async def disconnect(self) -> None:
        await self.other.close()
        shutil.rmtree(self.directory)


def record_run(name: str) -> None:
    if LONG:
        command = f"make model EXAMPLES={EXAMPLES} STEPS={STEPS}"
        record(name, command, programs=EXAMPLES, steps=f"up to {STEPS} each", differences=0)


@pytest.mark.usefixtures("random_examples")
@pytest.mark.timeout(0 if LONG else 600)
def test_memory_without_shortcuts_matches_memory() -> None:
    run_state_machine_as_test(MemoryMachine, settings=PROFILE)
    record_run("model memory")


@pytest.mark.usefixtures("random_examples")
@pytest.mark.timeout(0 if LONG else 600)
def test_sqlite_matches_memory() -> None:
    run_state_machine_as_test(SqliteMachine, settings=PROFILE)
    record_run("model SQLite")


@pytest.mark.usefixtures("random_examples")
@pytest.mark.timeout(0 if LONG else 600)
def test_postgres_matches_memory(clocked_postgres: Any) -> None:
    class PostgresMachine(BackendMachine):
        async def connect(self) -> Backend:
            return await clocked_postgres.open(self.clock)

        async def clock_moved(self) -> None:
            await clocked_postgres.set(self.clock.now())

        async def disconnect(self) -> None:
            await clocked_postgres.close(self.other)

    run_state_machine_as_test(PostgresMachine, settings=PROFILE)
    record_run("model PostgreSQL")


@pytest.mark.usefixtures("random_examples")
@pytest.mark.timeout(0 if LONG else 600)
def test_redis_matches_memory(clocked_redis: Any) -> None:
    class RedisMachine(BackendMachine):
        async def connect(self) -> Backend:
            return await clocked_redis.open(self.clock)

        async def clock_moved(self) -> None:
            await clocked_redis.set(self.clock.now())

        async def disconnect(self) -> None:
            await clocked_redis.close(self.other)

    run_state_machine_as_test(RedisMachine, settings=PROFILE)
    record_run("model Redis")
