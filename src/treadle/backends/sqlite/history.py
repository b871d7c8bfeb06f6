"""The failed attempts of items."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.item import Attempt
from treadle.rules import KEPT_ATTEMPTS

from .rows import stored_text
from .statements import Statements
from .tx import Tx

_SQL = Statements("finish")


def record(tx: Tx, failures: Iterable[tuple[int, Attempt]]) -> None:
    """Add each to the history of its item, of which the last ten are kept."""
    for no, failed in failures:
        texts = (stored_text(part) for part in (failed.error_type, failed.message, failed.traceback))
        tx.run(_SQL["insert_attempt"], no, no, failed.attempt, failed.at, failed.worker, *texts)
        tx.run(_SQL["trim_attempts"], no, no, KEPT_ATTEMPTS)
