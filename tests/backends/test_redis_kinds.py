"""The counts of kinds are what a first read finds, whatever was read before."""

from __future__ import annotations

import random
from collections.abc import Mapping
from struct import pack

from treadle.backends.redis.item_bytes import LETTERS
from treadle.backends.redis.kinds import KindCounts
from treadle.item import Status

Kind = tuple[str, str, str, str]
"""A tenant, queue, lane and type."""


def read(counted: KindCounts, kinds: Mapping[int, Kind], counts: Mapping[tuple[int, Status], int]) -> None:
    rows: list[bytes] = []
    for number, kind in kinds.items():
        texts = (pack(">H", len(text)) + text.encode() for text in kind)
        rows += (pack(">I", number), bytes(16) + b"".join(texts))
    found: list[bytes] = []
    for (number, status), count in counts.items():
        found += (pack(">I", number) + LETTERS[status], b"%d" % count)
    counted.read(found, rows)


def test_only_what_has_changed_is_added_up() -> None:
    counted = KindCounts()
    kinds = {1: ("a", "q", "", "work"), 2: ("a", "q", "lane", "work"), 3: ("b", "q", "", "work")}
    read(counted, kinds, {(1, "ready"): 2, (2, "ready"): 3, (3, "dead"): 1, (3, "success"): 9})
    assert counted.sums(None, without=["success"]) == {
        ("a", "q", "work", "ready"): 5,
        ("b", "q", "work", "dead"): 1,
    }
    read(counted, kinds, {(1, "ready"): 0, (2, "ready"): 4, (3, "dead"): 1, (3, "success"): 9})
    assert counted.sums("a", without=()) == {("a", "q", "work", "ready"): 4}
    assert list(counted.lines("q", None)) == [[pack(">I", 2)]]
    assert counted.ready(["work"], "b") == {"work": []}


def test_a_number_may_be_that_of_another_kind() -> None:
    """A replica that takes over may have lost the last kinds, and gives their numbers away again."""
    counted = KindCounts()
    read(counted, {1: ("a", "q", "", "work")}, {(1, "ready"): 2})
    read(counted, {1: ("b", "q", "", "other")}, {(1, "ready"): 2})
    assert counted.sums(None, without=()) == {("b", "q", "other", "ready"): 2}


def test_counts_of_kinds_that_do_not_exist_are_left_out() -> None:
    counted = KindCounts()
    read(counted, {}, {(1, "ready"): 2})
    assert counted.sums(None, without=()) == {}
    read(counted, {1: ("a", "q", "", "work")}, {(1, "ready"): 2})
    assert counted.sums(None, without=()) == {("a", "q", "work", "ready"): 2}
    read(counted, {}, {})
    assert counted.sums(None, without=()) == {}


def test_kinds_that_come_and_go_leave_nothing_behind() -> None:
    """As many as there are, and some more, are remembered."""
    draw, counted = random.Random(1), KindCounts()
    for first in range(0, 3000, 500):
        kinds = {
            n: (draw.choice("ab"), "q", f"lane{n}", draw.choice("xy")) for n in range(first, first + 700)
        }
        counts: dict[tuple[int, Status], int] = {
            (n, draw.choice([*LETTERS])): draw.randrange(3) for n in draw.sample([*kinds], 600)
        }
        fresh = KindCounts()
        for each in (counted, fresh):
            read(each, kinds, counts)
        for tenant in (None, "a"):
            assert counted.sums(tenant, without=()) == fresh.sums(tenant, without=())
            assert [*counted.lines("q", tenant)] == [*fresh.lines("q", tenant)]
            assert counted.ready("xy", tenant) == fresh.ready("xy", tenant)
