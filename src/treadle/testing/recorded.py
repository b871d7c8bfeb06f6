"""Transactions on memory for tests: what a handler executes is recorded, and nothing else happens with it.

    backend = RecordingBackend()
    async with run_inline(Treadle(backend, work=[ship])) as app:
        await app.enqueue(ship(1))
        await drain(app)
    assert backend.committed == [Statement("execute", ("INSERT INTO shipped VALUES ($1)", 1))]

What the handler asks of the engine in the transaction (`app.enqueue`, `ctx.claim`) happens if it commits. An
`enqueue(..., tx=connection)` of other code is stored at once. Its connection may be any object.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

from msgspec.structs import replace

from treadle.backend import Transaction
from treadle.backends.memory import MemoryBackend
from treadle.base.callables import runs_here
from treadle.base.timing import Clock
from treadle.item import (
    Filter,
    ItemState,
    Loss,
    Record,
    Rejected,
    Settled,
    Settlement,
    Submission,
    Submitted,
    Wake,
)

from .wrap import WrappedBackend, WrappedTransaction


class Statement(NamedTuple):
    """A call of a method of the connection that `ctx.transaction()` gave to a handler."""

    method: str
    arguments: tuple[Any, ...]


class RecordingBackend(WrappedBackend):
    """A MemoryBackend on which `ctx.transaction()` works, for tests.

    answer: called with each `Statement`. Returns the rows that it answers, by default none.
    """

    def __init__(
        self,
        inner: MemoryBackend | None = None,
        *,
        clock: Clock | None = None,
        answer: Callable[[Statement], Sequence[Any]] | None = None,
    ) -> None:
        self.memory = MemoryBackend(clock) if inner is None else inner
        super().__init__(self.memory)
        self.capabilities = frozenset({*self.memory.capabilities, "transactions"})
        self.answer = answer
        self.committed: list[Statement] = []
        """The statements of the transactions that committed."""
        self.rolled_back: list[Statement] = []
        """The statements of the transactions that were rolled back."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def submit(
        self, submissions: Sequence[Submission], *, tx: object = None
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        if tx is None:
            return await self._pass_on(submissions)
        if self._loop is not None and not runs_here(self._loop):  # `app.sync`
            return asyncio.run_coroutine_threadsafe(self._submit_at_once(submissions), self._loop).result()
        return await self._submit_at_once(submissions)

    async def _submit_at_once(
        self, submissions: Sequence[Submission]
    ) -> Sequence[tuple[Submitted, ...] | Rejected]:
        answers = await self._pass_on(submissions)
        await self.publish(Wake(ready=True))
        return answers

    async def _pass_on(self, submissions: Sequence[Submission]) -> Sequence[tuple[Submitted, ...] | Rejected]:
        return await self.around("submit", (submissions,), lambda: self.memory.submit(submissions))

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.around("open", (), self.memory.open)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._recorded()

    @asynccontextmanager
    async def _recorded(self) -> AsyncGenerator[Transaction]:
        recorded = RecordedTransaction(self.memory, self.answer)
        try:
            yield WrappedTransaction(recorded, self)
            await recorded.commit()
        except BaseException:
            recorded.roll_back()
            self.rolled_back += recorded.connection.statements
            raise
        self.committed += recorded.connection.statements


class RecordedTransaction:
    """A transaction on memory. Its submits are kept until it commits."""

    def __init__(self, memory: MemoryBackend, answer: Callable[[Statement], Sequence[Any]] | None) -> None:
        self.connection = RecordedConnection(answer)
        self._memory = memory
        self._submitted: list[Submission] = []
        self._recorded: list[Record] = []
        self._claimed: list[tuple[str, str]] = []

    async def settle(self, settlements: Sequence[Settlement]) -> Settled:
        return await self._memory.settle(settlements)

    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        unwritten = [Record(lease=record.lease) for record in records]
        self._recorded += records
        return await self._memory.record(unwritten)

    async def submit(self, submissions: Sequence[Submission]) -> Sequence[tuple[Submitted, ...] | Rejected]:
        return [await self._submit(each) for each in submissions]

    async def _submit(self, submission: Submission) -> tuple[Submitted, ...] | Rejected:
        answers: list[Submitted] = []
        for item in submission.items:
            if (await self.get([item.id], tenant=item.tenant))[0] is not None:
                return Rejected("duplicate_id", (item.id,))
            earlier: ItemState | None = None
            if item.key is not None:
                where = Filter(tenant=item.tenant, type=item.type, key=item.key)
                earlier = next(iter((await self._memory.list(where, limit=1)).items), None)
            if earlier is None:
                answers.append(Submitted(item.id, group_id=item.id, queued_at=await self._memory.now()))
            else:
                answers.append(Submitted(earlier.id, True, earlier.status, None, earlier.group_id))
        items = tuple(replace(item, lease_to=None) for item in submission.items)
        self._submitted.append(replace(submission, items=items))
        return tuple(answers)

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        kept = {item.id: item for submission in self._submitted for item in submission.items}
        stored = await self._memory.get(ids, tenant=tenant)
        return [
            ItemState(id=id, type=kept[id].type, status="ready", tenant=kept[id].tenant, input=kept[id].input)
            if state is None and id in kept
            else state
            for id, state in zip(ids, stored, strict=True)
        ]

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        before = (tenant, key) in self._memory.store.claimed_keys.by_ref
        claimed = await self._memory.claim_key(key, owner, ttl, tenant=tenant)
        if claimed and not before:
            self._claimed.append((tenant, key))
        return claimed

    async def commit(self) -> None:
        # The verbs of memory do not wait, so this is one step.
        await self._memory.submit(self._submitted)
        await self._memory.record(self._recorded)

    def roll_back(self) -> None:
        for ref in self._claimed:
            self._memory.store.claimed_keys.drop(ref)


class RecordedConnection:
    """What `ctx.transaction()` gives to a handler. It has every method, and records each call. The answer can
    be awaited, as asyncpg's, or read, as a cursor of sqlite3."""

    def __init__(self, answer: Callable[[Statement], Sequence[Any]] | None = None) -> None:
        self.statements: list[Statement] = []
        self._answer = answer

    def __getattr__(self, name: str) -> Callable[..., RecordedAnswer]:
        if name.startswith("_"):
            raise AttributeError(name)

        def record(*arguments: Any, **options: Any) -> RecordedAnswer:
            statement = Statement(name, (*arguments, *options.values()))
            self.statements.append(statement)
            rows = () if self._answer is None else self._answer(statement)
            return RecordedAnswer(name, list(rows))

        return record


class RecordedAnswer:
    """The rows that a recorded statement answers."""

    def __init__(self, method: str, rows: list[Any]) -> None:
        self._method = method
        self._rows = rows

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        row = self.fetchone()
        match self._method:
            case "fetchrow":
                return row
            case "fetchval":
                return None if row is None else row[0]
            case _:
                return self._rows

    async def __aenter__(self) -> RecordedAnswer:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._rows)

    def fetchall(self) -> list[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None
