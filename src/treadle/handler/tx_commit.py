"""What happens after a user's transaction has committed, where its owner can tell: a session of SQLAlchemy.

Connections do not say when they have committed: neither those of drivers nor SQLAlchemy's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

OnCommit: TypeAlias = Callable[[bool], None]
"""Called after the commit, in the thread that commits. True: what was written is stored. False: it was
written in a savepoint, which may have been rolled back."""


def call_on_commit(tx: Any, call: OnCommit) -> bool:
    """Call this once when the transaction that `tx` is in has committed, and not if it is rolled back. False:
    `tx` cannot tell. Its connection is in use."""
    session = _session_of(tx)
    if session is None:
        return False
    pending = _pending.get(session)
    if pending is None:
        pending = _pending[session] = PendingCommit(session)
    pending.add(session, call)
    return True


class PendingCommit:
    """What is to be called when a session commits.

    A session reports a commit too when it releases a savepoint, and when it leaves a transaction that it has
    joined and that may still be rolled back. So its connection is asked whether it is in a transaction.
    """

    def __init__(self, session: Any) -> None:
        from sqlalchemy import event

        self._calls: list[tuple[Any, bool, OnCommit]] = []
        event.listen(session, "after_commit", self._committed)
        event.listen(session, "after_transaction_end", self._ended)

    def add(self, session: Any, call: OnCommit) -> None:
        connection = session.connection()
        self._calls.append((connection, not connection.in_nested_transaction(), call))

    def _committed(self, session: Any) -> None:
        ended = [each for each in self._calls if not each[0].in_transaction()]
        self._calls = [each for each in self._calls if each not in ended]
        for _, certain, call in ended:
            call(certain)

    def _ended(self, session: Any, transaction: Any) -> None:
        """What is left was rolled back, or belongs to a transaction that the session has only joined."""
        if transaction.parent is None:
            self._calls.clear()


_pending: Final[WeakKeyDictionary[Any, PendingCommit]] = WeakKeyDictionary()


def _session_of(tx: Any) -> Any:
    """The session of SQLAlchemy that this is, or has. None if it is no session."""
    # A class of the user's own, or of SQLModel, may derive from a session.
    if not any(cls.__module__.startswith("sqlalchemy") for cls in type(tx).__mro__):
        return None
    if hasattr(tx, "registry") and callable(tx):  # a scoped session
        tx = tx()
    session = getattr(tx, "sync_session", tx)
    return session if hasattr(session, "in_nested_transaction") and hasattr(session, "flush") else None
