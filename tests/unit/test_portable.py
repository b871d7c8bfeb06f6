"""Records of exports, and files of them, that treadle did not write."""

from __future__ import annotations

import tracemalloc
from io import BytesIO
from typing import Any

import msgspec
import pytest

from treadle.errors import InputError
from treadle.store import portable
from treadle.store.portable import END, MAGIC, FileReader, FileWriter, PortableKey, PortableLimit, Tally

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


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xc0", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\x81\xa4kind\xa4head"),
        *(nested(200_000), b"\x82\xa4kind\xa4head\xa1x" + nested(100_000)),
        *(b"\x82\xa1x" + nested(5000) + b"\xa4kind\xa4item", b"\x82\xa4kind\xa4item\xa2id\xa2\xff\xfe"),
        *(pack({**ITEM, "history": [[1]]}), pack({**ITEM, "status": "running"}), pack({"kind": "\x1b[2J"})),
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    """Whatever is wrong with it, with the same error."""
    with pytest.raises(InputError, match="this is no record"):
        portable.decode(data)


STEP = ["s", "value", b"", 0.1, None, "", False, None, 1.0, 1, 1]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"status": "dead"}, "ended_at"),
        ({"ended_at": 2.0}, "ended_at"),
        ({"holds_key": True}, "holds_key"),
        ({"after": ["b"], "pending": ["c"]}, "pending"),
        ({"steps": [STEP, STEP]}, "steps"),
        ({"chunks": [[1, 1.0, b""], [1, 1.0, b""]]}, "chunks"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], named: str) -> None:
    """No store holds both."""
    with pytest.raises(InputError, match=f"`{named}` of item 1"):
        portable.decode(pack({**ITEM, **fields}))


GROUP = {"kind": "group", "number": 1, "id": "a", "tenant": "default", "type": "work"}


def placed(*found: dict[str, Any]) -> portable.Place | None:
    return portable.check_order([portable.decode(pack(one)) for one in found], None)


def test_records_come_in_their_order() -> None:
    """The head, items by their numbers, groups, and the rest."""
    second = {**ITEM, "number": 2}
    last = placed(HEAD, ITEM, second, GROUP, GROUP, STAT, AUDIT, STAT)
    assert last == portable.Place(3)
    for wrong in ([ITEM], [HEAD, HEAD], [HEAD, ITEM, HEAD], [HEAD, ITEM, ITEM], [HEAD, second, ITEM]):
        with pytest.raises(InputError):
            placed(*wrong)
    for wrong in ([HEAD, GROUP, ITEM], [HEAD, AUDIT, GROUP], [HEAD, AUDIT, HEAD]):
        with pytest.raises(InputError, match="out of order"):
            placed(*wrong)


def test_a_group_is_not_within_itself() -> None:
    """A store would go from one to the next without an end."""
    portable.check_nesting({3: 2, 2: 1, 5: 2})
    for circle in ({1: 1}, {1: 2, 2: 1}, {4: 3, 3: 2, 2: 3}):
        with pytest.raises(InputError, match="within itself"):
            portable.check_nesting(circle)


# ------------------------------------------------------------------------------------------------------ files


def written(*found: bytes) -> bytes:
    file = BytesIO()
    writer = FileWriter(file)
    writer.write(found)
    writer.end()
    return file.getvalue()


def read(data: bytes) -> list[bytes]:
    reader, found = FileReader(BytesIO(data)), list[bytes]()
    while portion := reader.read(2):
        found += portion
    return found


def test_a_file_has_what_was_written() -> None:
    """Records of each length, also a long one."""
    for found in ([], [b"a"], [b"a", b"bc", b"x" * 3_000_000]):
        assert read(written(*found)) == found


def test_each_byte_of_a_file_counts() -> None:
    """One that is changed anywhere, is left out, or follows, is noticed. Also in the head."""
    whole = written(pack(HEAD), pack(ITEM))
    for place in range(len(whole)):
        changed = whole[:place] + bytes((whole[place] ^ 1,)) + whole[place + 1 :]
        for data in (changed, whole[:place]):
            with pytest.raises(InputError, match=r"no file|ends in the middle|damaged"):
                read(data)
    for more in (b"x", whole):
        with pytest.raises(InputError, match="follows its end"):
            read(whole + more)


def test_a_length_takes_no_memory_before_it_is_read() -> None:
    """It may be that of four gibibytes, in a file of a few bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="ends in the middle"):
            read(MAGIC + b"\xff" * len(END) + b"abc")
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def test_equal_records_have_one_checksum() -> None:
    """A default that a store has read is another object than the default, and not left out of the bytes."""
    record = PortableLimit(name="mail", algorithm="token_bucket", at=1.0, used=2.0)
    checksums: set[str] = set()
    for each in (record, msgspec.structs.replace(record, before=float("0"))):
        tally = Tally()
        tally.add([each])
        checksums.add(tally.checksum)
    assert len(checksums) == 1


def test_what_has_ended_since_is_no_difference() -> None:
    """A pause, or a claimed key, may end while a store is copied."""
    limit = PortableLimit(name="mail", algorithm="token_bucket", at=1.0, used=2.0)
    key, other = (PortableKey(key=name, tenant="t", owner="me", until=9.0) for name in "ab")
    first = tally_of(limit, key, other)
    assert tally_of(other, limit, key).is_copy_of(first)
    assert tally_of(limit, other).is_copy_of(first)
    assert tally_of(limit).is_copy_of(first)
    third = msgspec.structs.replace(key, key="c")
    for different in ([key, other], [limit, key, third], [limit, key, other, third], [limit, limit, key]):
        assert not tally_of(*different).is_copy_of(first)
    assert not first.is_copy_of(tally_of(limit))


def tally_of(*records: portable.AnyRecord) -> Tally:
    tally = Tally()
    tally.add(records)
    return tally
