"""Records of exports, and files of them, that treadle did not write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from treadle.errors import InputError
from treadle.store import portable

HEAD: dict[str, Any] = {
    "kind": "head",
    "store": "sqlite",
    "at": 1.0,
    "number": 9,
    "place": 9,
    "token": 5,
    "orders": 0,
}
ITEM: dict[str, Any] = {
    "kind": "item",
    "id": "a",
    "tenant": "default",
    "type": "work",
    "queue": "default",
    "number": 1,
    "group": 1,
    "queued_at": 1.0,
    "keep": 60.0,
    "status": "ready",
    "due": 1.0,
}
STAT: dict[str, Any] = {"kind": "stat", "step": 60, "at": 60.0, "type": "t", "queue": "q", "counts": [1] * 7}
AUDIT: dict[str, Any] = {"kind": "audit", "no": 1, "at": 1.0, "actor": "a", "verb": "pause"}
NOT_A_NUMBER, INFINITE = float("nan"), float("inf")


def pack(record: object) -> bytes:
    return msgspec.msgpack.encode(record)


@pytest.mark.parametrize("whole", [HEAD, ITEM, STAT, AUDIT])
def test_a_record_is_read(whole: dict[str, Any]) -> None:
    """Those that the next test changes."""
    portable.decode(pack(whole))


@pytest.mark.parametrize(
    ("whole", "field", "value"),
    [
        *((HEAD, "number", value) for value in (-1, 2**48, 2**62, 2**64 - 1)),
        *((HEAD, "place", -1), (HEAD, "token", -1), (HEAD, "token", 2**63), (HEAD, "orders", 2**62)),
        *((ITEM, "number", -1), (ITEM, "number", 2**62), (ITEM, "group", 2**62), (ITEM, "place", 2**63)),
        *((ITEM, field, -1) for field in ("attempt", "failures", "losses", "deferrals", "redrives", "met")),
        *((ITEM, "need", 2**31), (ITEM, "priority", 2**40), (ITEM, "keep", -1.0)),
        *((ITEM, "due", value) for value in (NOT_A_NUMBER, INFINITE, -INFINITE)),
        *((ITEM, "queued_at", NOT_A_NUMBER), (ITEM, "deadline", INFINITE)),
        *((ITEM, "chunks", [[-1, 1.0, b""]]), (ITEM, "chunks", [[1, NOT_A_NUMBER, b""]])),
        *((STAT, "counts", [1]), (STAT, "counts", [1] * 8), (STAT, "counts", [-1] * 7)),
        *((AUDIT, "no", -1), (AUDIT, "no", 2**63 - 1), (AUDIT, "count", -1)),
    ],
)
def test_numbers_that_no_store_holds_are_refused(whole: dict[str, Any], field: str, value: object) -> None:
    """The script of one store would count up to them without an end. The field is named."""
    with pytest.raises(InputError, match=field):
        portable.decode(pack({**whole, field: value}))
