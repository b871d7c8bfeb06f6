"""SQLite and PostgreSQL do what memory does, step by step, and memory does the same without its shortcuts.
`make model` for the long run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from tests.model.machine import BackendMachine
from tests.support.records import record
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.backends.memory.audit import audit
from treadle.backends.sqlite import SqliteBackend

EXAMPLES = int(os.environ.get("TREADLE_MODEL_EXAMPLES", "30"))
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
    # To make a failing program smaller takes minutes: that is for whoever looks into it.
    phases=(Phase.generate, Phase.shrink) if LONG else (Phase.generate,),
    suppress_health_check=list(HealthCheck),
)


class MemoryMachine(BackendMachine):
    """With the shortcuts of plain items, and without. Both are recounted after every step."""

    async def connect(self) -> Backend:
        self.long_way = MemoryBackend(clock=self.clock)
        self.long_way.store.shortcuts = False
        return self.long_way

    async def disconnect(self) -> None:
        await self.other.close()

    @invariant()
    def recounted(self) -> None:
        assert audit(self.memory) == audit(self.long_way) == []


class SqliteMachine(BackendMachine):
    async def connect(self) -> Backend:
        self.directory = tempfile.mkdtemp(dir=SHM if os.access(SHM, os.W_OK) else None)
        backend = SqliteBackend(Path(self.directory) / "work.db", clock=self.clock, durability="normal")
        await backend.open()
        return backend

    async def disconnect(self) -> None:
        await self.other.close()
        shutil.rmtree(self.directory)


def passed(name: str) -> None:
    if LONG:
        command = f"make model EXAMPLES={EXAMPLES} STEPS={STEPS}"
        record(name, command, programs=EXAMPLES, steps=f"up to {STEPS} each", differences=0)


@pytest.mark.timeout(0 if LONG else 600)
def test_memory() -> None:
    run_state_machine_as_test(MemoryMachine, settings=PROFILE)
    passed("model memory")


@pytest.mark.timeout(0 if LONG else 600)
def test_sqlite() -> None:
    run_state_machine_as_test(SqliteMachine, settings=PROFILE)
    passed("model SQLite")


@pytest.mark.timeout(0 if LONG else 600)
def test_postgres(shared_clock: Any) -> None:
    class PostgresMachine(BackendMachine):
        async def connect(self) -> Backend:
            return await shared_clock.open(self.clock)

        async def moved(self) -> None:
            await shared_clock.set(self.clock.now())

        async def disconnect(self) -> None:
            await shared_clock.close(self.other)

    run_state_machine_as_test(PostgresMachine, settings=PROFILE)
    passed("model PostgreSQL")
