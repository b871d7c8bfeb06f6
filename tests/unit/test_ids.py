import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from treadle.base.ids import (
    SLOTS,
    check_id,
    check_name,
    generate_id,
    id_generator,
    set_id_generator,
    slot_of_text,
)
from treadle.errors import InputError
from treadle.testing import ManualClock


@pytest.fixture
def default_generator() -> Iterator[None]:
    yield
    set_id_generator(None)


def test_ids_are_valid_and_distinct() -> None:
    made = {generate_id() for _ in range(20_000)}
    assert len(made) == 20_000
    assert {len(check_id(each)) for each in made} == {32}


def test_ids_sort_by_age() -> None:
    clock = ManualClock()
    generate = id_generator(clock.now, random.Random(1))
    made: list[str] = []
    for _ in range(100):
        made.append(generate())
        clock.advance(0.000_01)
    assert made == sorted(made)


def test_equal_seeds_give_equal_ids() -> None:
    first, second = (id_generator(ManualClock().now, random.Random(7)) for _ in range(2))
    assert [first() for _ in range(5)] == [second() for _ in range(5)]


def test_a_seed_set_by_the_application_does_not_repeat_ids() -> None:
    tails = set[str]()
    for _ in range(2):
        random.seed(0)
        tails.add(generate_id()[13:])
    assert len(tails) == 2


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_repeat_its_parents_ids() -> None:
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writable, generate_id()[13:].encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writable)
    with os.fdopen(readable) as answer:
        assert answer.read() != generate_id()[13:]


@pytest.mark.usefixtures("default_generator")
def test_set_id_generator_replaces_the_generator() -> None:
    set_id_generator(lambda: "order:42")
    assert generate_id() == "order:42"
    set_id_generator(None)
    assert len(generate_id()) == 32


@pytest.mark.usefixtures("default_generator")
def test_a_bad_generated_id_is_refused() -> None:
    set_id_generator(lambda: "two words")
    with pytest.raises(InputError, match="generated id='two words'"):
        generate_id()


@pytest.mark.parametrize("good", ["a", "A-Z_0.9:x", "0" * 128])
def test_good_ids_are_accepted(good: str) -> None:
    assert check_id(good) == good


@pytest.mark.parametrize("bad", ["", "a b", "a\n", "é", "a/b", "x" * 129, "\x00", None, 5, b"a"])
def test_bad_ids_are_refused_by_name(bad: Any) -> None:
    with pytest.raises(InputError, match=r"^after=") as caught:
        check_id(bad, field="after")
    assert caught.value.parameters == ("after",)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "good",
    [
        "default",
        "main.<locals>.add",
        "order 42/eu",
        "žluťoučký 🐎",
        "x" * 255,
        "é" * 127,
        "👩\u200d🚀",
    ],
)
def test_good_names_are_accepted(good: str) -> None:
    assert check_name(good, field="key") == good


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("", "empty"),
        ("a\x00b", "control"),
        ("a\nb", "control"),
        ("\x7f", "control"),
        ("\x85", "control"),
        ("\ud800", "surrogates"),
        ("x" * 256, "255 bytes"),
        ("é" * 128, "255 bytes"),
        (None, "must be a str"),
        (b"key", "must be a str"),
    ],
)
def test_bad_names_are_refused_by_field(bad: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        check_name(bad, field="tenant")
    assert caught.value.parameters == ("tenant",)
    assert str(caught.value).startswith("tenant=")
    str(caught.value).encode()  # a message must be printable itself


BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
INVISIBLE = f"{BIDIRECTIONAL}\u2028\u2029\u200b\u00ad\ufeff\x85\x7f"


@pytest.mark.parametrize("each", INVISIBLE, ids=[f"U+{ord(each):04X}" for each in INVISIBLE])
def test_invisible_characters_are_refused_in_names(each: str) -> None:
    """They make two names look alike, or turn the text around that follows them in a log."""
    with pytest.raises(InputError, match=rf"invisible characters or lone surrogates \(U\+{ord(each):04X}\)"):
        check_name(f"pay{each}roll", field="queue")


@pytest.mark.parametrize("name", ["größe", "日本", "a b", "a\u00a0b", "😀", "עברית", "\ue000"])
def test_letters_of_every_script_are_accepted_in_names(name: str) -> None:
    assert check_name(name, field="queue") == name


@pytest.mark.parametrize("stores", [2, 3, 16])
def test_names_that_count_are_spread_over_stores(stores: int) -> None:
    for prefix in ("customer-", "order", "7/", ""):
        found = Counter(slot_of_text("default", f"{prefix}{n}") * stores // SLOTS for n in range(20 * stores))
        assert len(found) == stores
        assert max(found.values()) <= 2 * 20, found
