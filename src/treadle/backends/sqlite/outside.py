"""Submits inside of a user's own transaction, on the user's own connection to the same file."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from treadle.errors import CycleError, DuplicateIdError, InputError, StoreUnavailable
from treadle.item import Rejected, Submission, Submitted

from .failures import is_busy, translated
from .statements import Statements
from .submit import submit
from .tx import Tx

_SQL = Statements("signals")


def submit_within(
    connection: object, submissions: Sequence[Submission], path: Path, now: float
) -> list[tuple[Submitted, ...]]:
    """Store these as a part of the user's transaction. Blocks: it runs where the connection lives."""
    if not isinstance(connection, sqlite3.Connection):
        raise InputError.of("tx", connection, "must be a sqlite3.Connection to the same file")
    try:
        with _own_ways(connection):
            _check(connection, path)
            return _submit(connection, submissions, now)
    except sqlite3.Error as error:
        if is_busy(error):
            raise StoreUnavailable(
                f"{path} is locked by another writer: begin the transaction with BEGIN IMMEDIATE"
            ) from error
        raise translated(error, path) from error


def _submit(
    connection: sqlite3.Connection, submissions: Sequence[Submission], now: float
) -> list[tuple[Submitted, ...]]:
    with _savepoint(connection):
        tx = Tx(connection, now)
        answers = [_accepted(answer) for answer in submit(tx, [_unleased(one) for one in submissions])]
        # Nobody can announce what has not been committed: others look for this.
        tx.run(_SQL["mark_outside"])
        return answers


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if not connection.in_transaction:
        raise InputError("tx: the connection is not in a transaction: BEGIN one first", parameters=("tx",))
    cursor = connection.cursor()
    cursor.row_factory = None
    files = {row[1]: row[2] for row in cursor.execute("PRAGMA database_list").fetchall()}
    file = files.get("main", "")
    if not file or not Path(file).exists() or not path.samefile(file):
        raise InputError(f"tx: the connection is to {file or 'memory'}, not to {path}", parameters=("tx",))


def _unleased(submission: Submission) -> Submission:
    """A lease on what is not committed would be nobody's."""
    return Submission(tuple(replace(item, lease_to=None) for item in submission.items))


def _accepted(answer: tuple[Submitted, ...] | Rejected) -> tuple[Submitted, ...]:
    if not isinstance(answer, Rejected):
        return answer
    raise CycleError(answer.ids) if answer.why == "cycle" else DuplicateIdError(answer.ids[0])


@contextmanager
def _own_ways(connection: sqlite3.Connection) -> Generator[None]:
    """The user may read text as bytes, or as something else."""
    theirs = connection.text_factory
    connection.text_factory = str
    try:
        yield
    finally:
        connection.text_factory = theirs


@contextmanager
def _savepoint(connection: sqlite3.Connection) -> Generator[None]:
    """A refusal undoes the submit, and leaves the user's transaction as it was."""
    connection.execute("SAVEPOINT treadle_submit")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO treadle_submit")
            connection.execute("RELEASE treadle_submit")
        raise
    connection.execute("RELEASE treadle_submit")
