"""SQLite and PostgreSQL do what memory does, step by step. `make model` for the long run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import BackendMachine
from tests.support.records import record
from treadle.backend import Backend
from treadle.backends.sqlite import SqliteBackend

EXAMPLES = int(os.environ.get("TREADLE_MODEL_EXAMPLES", "12"))
STEPS = int(os.environ.get("TREADLE_MODEL_STEPS", "20"))
LONG = "TREADLE_MODEL_EXAMPLES" in os.environ
SHM = Path("/dev/shm")

PROFILE = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    print_blob=True,
    derandomize=not LONG,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


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
