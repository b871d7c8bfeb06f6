"""A change of many items is stored portion by portion, and shown as one."""

from __future__ import annotations

from typing import Any

from treadle.records import MOST_AUDIT_IDS, AuditEntry
from treadle.store.audit_note import in_one

MANY = tuple(f"i{n}" for n in range(MOST_AUDIT_IDS))


def entry(no: int, at: float, ids: tuple[str, ...] = MANY, **more: str) -> AuditEntry:
    given: dict[str, Any] = {"actor": "ann", "verb": "update", "tenant": "t", "about": "priority=3", **more}
    return AuditEntry(no=no, at=at, ids=ids, count=5 * len(ids), **given)


def test_the_portions_of_one_change_are_one_entry() -> None:
    """The last one may be small. The counts are added up."""
    (one,) = in_one([entry(3, 70.0, MANY[:2]), entry(2, 40.0), entry(1, 5.0)])
    assert (one.no, one.at, one.count, one.portions) == (3, 70.0, 1010, 3)
    assert one.ids == MANY


def test_other_changes_stay_apart() -> None:
    """Of few items, by others, of something else, or of another time."""
    apart = [
        entry(8, 900.0, MANY[:1]),
        entry(7, 899.0, MANY[:1]),
        entry(6, 898.0),
        entry(5, 897.0, actor="bob"),
        entry(4, 896.0, reason="why"),
        entry(3, 895.0, about="priority=4"),
        entry(2, 800.0, about="priority=4"),
        entry(1, 799.0, about="", verb="cancel"),
    ]
    found = in_one(apart)
    assert [each.no for each in found] == [8, 7, 5, 4, 3, 2, 1]
    assert [each.portions for each in found] == [1, 2, 1, 1, 1, 1, 1]
