"""The app that the pytest plugin makes for a test: from the settings of its marker and its fixtures."""

from __future__ import annotations

from typing import Any

from treadle.app import Treadle
from treadle.backend import Backend
from treadle.base.timing import SystemClock
from treadle.connect import connect
from treadle.errors import InputError

from .clock import ManualClock
from .faults import FaultyBackend
from .postgres_clock import ManualClockBackend
from .recorded import RecordingBackend


class MadeApp:
    """worker: start the app, otherwise only connect it. drop: the schema to drop at the end."""

    def __init__(self, app: Treadle, *, worker: bool, drop: str | None) -> None:
        self.app = app
        self._worker = worker
        self._drop = drop

    async def start(self) -> None:
        await (self.app.start() if self._worker else self.app.connect())

    async def stop(self) -> None:
        if self._drop is None:
            await self.app.stop(drain=0)
            return
        await self.app.worker.stop(drain=0)
        await self.app.connect()  # again, if the test has closed it
        async with self.app.backend.transaction() as transaction:
            connection: Any = transaction.connection
            await connection.execute(f'drop schema "{self._drop}" cascade')
        await self.app.close()


def make_app(settings: dict[str, Any]) -> MadeApp:
    """Make an app, not started, from the arguments of `Treadle` and of the marker `treadle`."""
    settings = dict(settings)
    worker, drop = settings.pop("worker", True), settings.pop("drop", False)
    faults, transactions = settings.pop("faults", None), settings.pop("transactions", None)
    url = settings.pop("url", None)
    if url is not None:
        settings["backend"] = "memory://" if url == "memory" else url
    clock = settings.get("clock")
    backend: str | Backend = settings.get("backend", "memory://")
    is_postgres = isinstance(backend, str) and backend.startswith(("postgres:", "postgresql"))
    if transactions is not None:
        backend = _recording(transactions, backend)
    if faults is not None or (is_postgres and isinstance(clock, ManualClock)):
        prefix = settings.get("prefix", "treadle")
        if isinstance(backend, str):
            backend = connect(
                backend, prefix=prefix, notify=settings.pop("notify", True), clock=clock or SystemClock()
            )
        if is_postgres and isinstance(clock, ManualClock):
            backend = ManualClockBackend(backend, clock, schema=prefix)
        if faults is not None:
            backend = FaultyBackend(backend, faults)
    settings["backend"] = backend
    return MadeApp(Treadle(**settings), worker=worker, drop=settings["prefix"] if drop else None)


def _recording(recording: RecordingBackend, backend: str | Backend) -> Backend:
    if backend not in ("memory://", "memory:"):
        raise InputError(
            "treadle_transactions is for memory: on SQLite and PostgreSQL, ctx.transaction() is a real one",
            parameters=("backend",),
        )
    return recording
