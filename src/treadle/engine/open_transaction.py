"""OpenTransaction: the transaction of a handler, and what the handler asks of the store meanwhile.

Requests that a handler makes while its transaction is open are a part of it: they see what it wrote, and are
undone with it. On another connection they could wait for the transaction itself: SQLite has one writer, and
a pool of connections has an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any

from treadle.backend import Backend, Transaction, transaction_of
from treadle.errors import InputError
from treadle.item import AuditNote, Item, ItemState, Rejected, Submission, Submitted
from treadle.store.rules.submission import may_change

CURRENT: ContextVar[OpenTransaction | None] = ContextVar("treadle_transaction", default=None)
"""Transaction that the running handler has opened, on any backend. It may have ended."""


class OpenTransaction:
    """One request at a time goes through it: of the task that opened it, and of tasks that this one has made
    since. A context variable carries it, so that older tasks of the handler do not know of it. (A variable
    that is set before each handler would cost each item an asyncio task: see `StartingDoer`.)"""

    def __init__(self, backend: Backend, tenant: str) -> None:
        self.backend = backend
        self._tenant = tenant
        self.stack = AsyncExitStack()
        """Its exit commits the transaction, or rolls it back."""
        self.stored: list[tuple[Item, float]] = []
        """The items that were submitted in it, and when, by the store's clock."""
        self.changing: list[Item] = []
        """Those that were submitted in it, and may have changed an earlier item with their key instead."""
        self.lock = asyncio.Lock()
        self.is_open = False
        self._transaction: Transaction | None = None
        self.given: Any = None
        """What the handler was given: the driver's connection, or a blocking one in a thread."""

    async def open(self) -> Any:
        """Begin it, for the handler that calls this. Returns the driver's connection."""
        self._transaction = await self.stack.enter_async_context(transaction_of(self.backend, self._tenant))
        self.is_open = True
        self.given = self._transaction.connection
        CURRENT.set(self)
        return self.given

    def enter(self) -> None:
        """Make it the transaction of the handler that calls this, in a thread."""
        CURRENT.set(self)

    @property
    def transaction(self) -> Transaction:
        assert self._transaction is not None
        return self._transaction

    @property
    def lines(self) -> set[tuple[str, str]]:
        """The types and queues that may have something to claim when it has committed."""
        return {(item.type, item.queue) for item in (*(item for item, _ in self.stored), *self.changing)}

    def is_connection(self, tx: object) -> bool:
        """Whether `tx` is the connection that the handler was given."""
        return tx is self.given

    # -- requests of the handler -----------------------------------------------------------------------

    async def submit(
        self, items: tuple[Item, ...], note: AuditNote | None = None
    ) -> tuple[Submitted, ...] | Rejected:
        async with self.lock:
            (answer,) = await self.transaction.submit([Submission(items, note=note)])
        if not isinstance(answer, Rejected):
            for item, submitted in zip(items, answer, strict=True):
                if not submitted.existing:
                    self.stored.append((item, submitted.queued_at))
                elif may_change(item, submitted):
                    self.changing.append(item)
        return answer

    async def get(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[ItemState | None]:
        async with self.lock:
            return await self.transaction.get(ids, tenant=tenant)

    async def claim_key(self, key: str, owner: str, ttl: float, *, tenant: str) -> bool:
        async with self.lock:
            return await self.transaction.claim_key(key, owner, ttl, tenant=tenant)


def current_transaction(backend: Backend) -> OpenTransaction | None:
    """The transaction on this backend that is open in the handler that calls this."""
    found = CURRENT.get()
    return found if found is not None and found.is_open and found.backend is backend else None


def refuse_in_transaction(backend: Backend, what: str) -> None:
    """Raise if the handler that calls this has an open transaction."""
    if current_transaction(backend) is not None:
        raise InputError(
            f"{what} cannot be used in a handler after it has opened ctx.transaction(): it would wait for "
            "that transaction, which ends when the handler has returned. Call it before"
        )
