"""Columns: many values as one parameter, and the codes in which words are stored, in two bytes each.

A call takes one column per field of its rows, so that any number of rows is one round trip. The driver
looks at every element of an array in Python, which takes longer than all the rest; so names and numbers are
sent as one text each, and the server splits it. A column that is the same in every row has a single
element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar, cast

from treadle.errors import BackendError
from treadle.item import Algorithm, DeathReason, Loss, SettlementKind, Status, Verdict

V = TypeVar("V")

SEPARATOR: Final = "\n"
NULL: Final = "\x01"
INNER_SEPARATOR: Final = "\x1f"
"""Between names, for None, and between the names within one element. Names have no control characters."""


def names(column: Sequence[str | None], *, whole: bool = False) -> str | None:
    """A column of names. `whole`: one element per row, even if all are the same."""
    column = column if whole else shortened(column)
    if None in column:
        if len(column) == 1:
            return None
        column = [NULL if name is None else name for name in column]
    text = SEPARATOR.join(cast("Sequence[str]", column))
    if text.count(SEPARATOR) >= len(column):
        raise BackendError("a name has a control character: names are text without any")
    return text


def numbers(column: Sequence[float | None], *, whole: bool = False) -> str | None:
    """A column of numbers."""
    column = column if whole else shortened(column)
    if None in column:
        if len(column) == 1:
            return None
        return _literal(["null" if number is None else repr(number) for number in column])
    return _literal(map(repr, column))


def durations(column: Sequence[float | None]) -> str | None:
    """A column of seconds, to the microsecond: all digits of a float take four times as long to write."""
    column = shortened(column)
    if column == [None]:
        return None
    return _literal(["null" if each is None else f"{each:.6f}" for each in column])


def _literal(numbers: Iterable[str]) -> str:
    return f"{{{','.join(numbers)}}}"


def data(column: Sequence[bytes | None]) -> Sequence[bytes | None] | None:
    """A column of bytes."""
    column = shortened(column)
    return None if column == [None] else column


def shortened(column: Sequence[V]) -> Sequence[V]:
    """One element, if all are the same."""
    if not column:
        return column
    first = column[0]
    return [first] if column.count(first) == len(column) else column


def joined(names: Sequence[str]) -> str | None:
    """Several names as one element."""
    return INNER_SEPARATOR.join(names) or None


def split(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(INNER_SEPARATOR)) if text else ()


STATUSES: Final[tuple[Status, ...]] = (
    "blocked",
    "scheduled",
    "ready",
    "ready",  # parked
    "ready",  # doomed: `shown_status` has the status that readers see
    "running",
    "success",
    "dead",
    "cancelled",
)


def status_of(code: int) -> Status:
    return STATUSES[code]


READY: Final = 2
PARKED: Final = 3
RUNNING: Final = 5
SUCCESS: Final = 6
DEAD: Final = 7
CANCELLED: Final = 8

STATUS_CODES: Final[dict[Status, int]] = {status: code for code, status in reversed([*enumerate(STATUSES)])}
"""The first code of each status."""

REASONS: Final[tuple[DeathReason | None, ...]] = (
    None,
    "exhausted",
    "aborted",
    "expired",
    "lease_lost",
    "unsatisfiable",
    "undecodable",
    "bad_result",
    "unknown_type",
)
REASON_CODES: Final[dict[DeathReason | None, int | None]] = {
    reason: code or None for code, reason in enumerate(REASONS)
}
VERDICTS: Final[dict[int | None, Verdict | None]] = {
    None: None,
    3: "expired",
    5: "unsatisfiable",
    8: "unknown_type",
}

KIND_CODES: Final[dict[SettlementKind, int]] = {
    "retry": 1,
    "defer": 2,
    "release": 3,
    "suspend": 4,
    "success": SUCCESS,
    "dead": DEAD,
    "cancelled": CANCELLED,
}

SETTLED: Final = 0
"""Instead of a loss: this token has already settled the item."""
LOSSES: Final[tuple[Loss, ...]] = ("taken", "taken", "completed", "cancelled", "not_found")

OPEN_SCOPE: Final = -1.0
ANY_SCOPE: Final = -2.0

KEY_POLICY_CODES: Final[dict[str, int]] = {"existing": 0, "replace": 1, "debounce": 2, "error": 3}

ALGORITHM_CODES: Final[dict[Algorithm, int]] = {
    "token_bucket": 0,
    "fixed_window": 1,
    "sliding_window": 2,
    "slots": 3,
}


def decoded(data: bytes | None) -> str | None:
    """An error text. Those are stored as bytes, because they may contain what PostgreSQL's text cannot."""
    return None if data is None else data.decode("utf-8", "surrogatepass")


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
