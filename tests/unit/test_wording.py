"""How durations, counts, lists and texts from elsewhere are said."""

from __future__ import annotations

import pytest

from treadle.base.wording import close_to, duration, first_line, listed, one_line, plain, plural


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (0.0004, "0 ms"),
        (0.25, "250 ms"),
        (0.9996, "1 s"),
        (1.55, "1.6 s"),
        (9.96, "10 s"),
        (40.4, "40 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599.6, "1 h"),
        (7500, "2 h 5 min"),
        (86_399, "1 d"),
        (90_000, "1 d 1 h"),
        (4 * 86_400, "4 d"),
    ],
)
def test_durations_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.25, "250 ms"),
        (1.7, "2 s"),
        (119, "119 s"),
        (200, "3 min"),
        (7000, "117 min"),
        (129_600, "36 h"),
        (4e5, "5 d"),
    ],
)
def test_a_brief_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds, brief=True) == text


def test_lists_are_cut_and_printable() -> None:
    assert listed(["a", "b\x1b"]) == "a, b\\x1b"
    assert listed("abcdef") == "a, b, c and 3 more"
    assert listed("abcdef", 5) == "a, b, c, d, e and 1 more"
    assert listed("ab", total=1002) == "a, b and 1,000 more"


def test_counts() -> None:
    assert [plural(1, "item"), plural(2, "item"), plural(1, "item", True)] == [
        "1 item",
        "2 items",
        "1+ items",
    ]
    assert plural(10_000, "item", True) == "10,000+ items"


def test_texts_from_elsewhere_are_one_printable_line() -> None:
    assert plain("a\x1b[31m\nb\u202ec\udc80") == "a\\x1b[31m\\nb\\u202ec\\udc80"
    assert one_line("x" * 10_000_000) == "x" * 497 + "..."
    assert one_line("a\n" * 3, 4) == "a..."
    assert first_line("\n one \r\ntwo") == "one"


def test_a_name_that_was_perhaps_meant() -> None:
    long = "x" * 300
    assert close_to("mial", ["mail", "order"]) == "mail"
    assert close_to("mail", ["mail", "order"]) is None
    assert close_to("x" * 299, [long]) == long
