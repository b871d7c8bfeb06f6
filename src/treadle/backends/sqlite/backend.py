"""SqliteBackend: durable work in one file, shared by any number of processes of one machine."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from treadle.backend import CAPABILITIES
from treadle.clock import Clock, SystemClock
from treadle.errors import BackendError, NotStarted
from treadle.item import (
    Beat,
    Claim,
    Count,
    Demand,
    Ended,
    GroupState,
    ItemState,
    Lease,
    Pulse,
    Ref,
    Rejected,
    Settled,
    Settlement,
    Submission,
    Submitted,
    WorkerState,
)

from . import claim, read, settle, submit, worker
from .calls import Call
from .connection import Durability, connect, patiently, usable_path
from .reader import Reader
from .schema import apply_schema, check_schema
from .turn import Turn
from .tx import Tx
from .writer import Writer

T = TypeVar("T")


class SqliteBackend:
    """Work in a SQLite file.

    `durability="full"`: what was answered survives the loss of power. `"normal"`: it survives the death of
    the process, but the last moments before a loss of power may be lost; several times faster.
    `busy_timeout`: how long a verb waits while another program has the file locked.
    """

    capabilities = CAPABILITIES | {"transactions"}

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        apply_schema: bool = True,
        busy_timeout: float = 30.0,
    ) -> None:
        self._given_path = path
        self._clock = clock or SystemClock()
        self._durability: Durability = durability
        self._apply_schema = apply_schema
        self._patience = busy_timeout
        self._pid = 0
        self._path = Path()
        self._writer: Writer | None = None
        self._reader: Reader | None = None

    # -- life ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._writer is not None:
            return
        self._path = usable_path(self._given_path)
        self._pid = os.getpid()
        turn = Turn(self._path, None)
        writer = Writer(self._path, self._clock, turn, patience=self._patience)
        await writer.start(self._connect)
        reader = Reader(self._path, self._clock, patience=self._patience)
        await reader.start()
        self._writer, self._reader = writer, reader

    async def close(self) -> None:
        threads = [part.stop() for part in (self._writer, self._reader) if part is not None]
        self._writer = self._reader = None
        for thread in threads:
            await _joined(thread)

    def _connect(self) -> sqlite3.Connection:
        connection = patiently(lambda: connect(self._path, self._durability), self._path, self._patience)
        try:
            patiently(lambda: self._prepare(connection), self._path, self._patience)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if not self._apply_schema:
            check_schema(connection)
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            apply_schema(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    async def _write(self, verb: Callable[[Tx], T], *, urgent: bool = False) -> T:
        self._check_process()
        if self._writer is None:
            raise NotStarted("the SQLite backend")
        return cast(T, await self._writer.call(Call(verb, urgent=urgent)))

    async def _read(self, verb: Callable[[Tx], T]) -> T:
        self._check_process()
        if self._reader is None:
            raise NotStarted("the SQLite backend")
        return cast(T, await self._reader.call(Call(verb)))

    def _check_process(self) -> None:
        if self._writer is not None and os.getpid() != self._pid:
            raise BackendError(
                f"{self._path} was opened before this process was forked: open a backend of its own here"
            )

    # -- the path of work ------------------------------------------------------------------------------

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        return await self._write(lambda step: submit.submit(step, submissions))

    async def claim(self, demand: Demand) -> Claim:
        return await self._write(lambda step: claim.claim(step, demand, None))

    async def beat(self, beat: Beat) -> Pulse:
        return await self._write(lambda step: worker.beat(step, beat, None), urgent=True)

    async def bury(self, dead: str) -> int:
        return await self._write(lambda step: worker.bury(step, dead))

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await self._write(lambda step: settle.settle(step, settlements))

    async def orphans(self, owner: str, known: Sequence[int]) -> Sequence[Lease]:
        return await self._write(lambda step: worker.orphans(step, owner, known))

    # -- reads -----------------------------------------------------------------------------------------

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        return await self._read(lambda step: read.get(step, ids, tenant))

    async def group(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[GroupState | None]:
        return await self._read(lambda step: read.group(step, ids, tenant))

    async def ended(self, items: Sequence[Ref], groups: Sequence[Ref]) -> Ended:
        return await self._read(lambda step: read.ended(step, items, groups))

    async def counts(self, *, tenant: str | None = None, ended: bool = False) -> Sequence[Count]:
        return await self._read(lambda step: read.counts(step, tenant, with_ended=ended))

    async def workers(self) -> Sequence[WorkerState]:
        return await self._read(worker.workers)

    async def now(self) -> float:
        return self._clock.now()


async def _joined(thread: threading.Thread | None) -> None:
    if thread is not None:
        await asyncio.get_running_loop().run_in_executor(None, thread.join)


__all__ = ["Any", "SqliteBackend"]
