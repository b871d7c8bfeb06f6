"""What commands print: safe for terminals and programs, and aligned."""

from __future__ import annotations

import json

import pytest

from treadle.base.timing import iso
from treadle.base.wording import plain, plural
from treadle.cli.text import (
    ago,
    cut,
    fact_lines,
    json_line,
    plain_lines,
    styled,
    table_lines,
)


def test_instants_are_seen_from_now() -> None:
    assert [ago(at, 1000.0) for at in (820.0, 999.5, 1180.0, None)] == ["3 min ago", "now", "in 3 min", ""]


def test_instants_in_json_sort_like_instants() -> None:
    instants = [0.0, 1.5, 1_794_821_436.0, 1_794_821_436.000001, 99_999_999_999_999.0]
    texts = [iso(at) or "" for at in instants]
    assert texts == sorted(texts)
    assert texts[1] == "1970-01-01T00:00:01.500000Z"


HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e\ud800\n[bold]x[/bold]\u2028\x7f\U000e0041"


def test_hostile_text_is_printed_without_control_characters() -> None:
    assert plain(HOSTILE).isprintable()
    assert all(line.isprintable() for line in plain_lines(HOSTILE))
    assert "[bold]x[/bold]" in plain(HOSTILE)


def test_hostile_text_is_one_line_of_json_that_reads_back() -> None:
    line = json_line({"error": HOSTILE})
    assert line.isprintable()
    assert json.loads(line) == {"error": HOSTILE}


@pytest.mark.parametrize("value", [{(1, 2): object()}, {"a": {1, 2}}, object(), {"a": 2**70}, {"x": b"\xff"}])
def test_every_value_has_some_json(value: object) -> None:
    json.loads(json_line(value))


def test_a_table_fits_and_keeps_ids() -> None:
    rows = [("a" * 32, "○ ready", "short", "e" * 200), ("b" * 32, "✕ dead", "名" * 30, "")]
    lines = table_lines(("ID", "STATE", "TYPE", "WHAT"), rows, width=80, keep=("ID", "STATE"), on=False)
    assert all("a" * 32 in line or "b" * 32 in line for line in lines[1:])
    assert lines[1].endswith("…")
    from treadle.cli.text import columns

    assert max(columns(line) for line in lines) <= 80


def test_a_narrow_table_leaves_columns_out_instead_of_cutting_ids() -> None:
    rows = [("a" * 32, "○ ready", "mail.send.now", "an error that says a lot")]
    lines = table_lines(
        ("ID", "STATE", "TYPE", "WHAT"), rows, width=60, keep=("ID", "STATE"), drop=("WHAT",), on=False
    )
    assert lines == [f"{'ID':32}  STATE    TYPE", f"{'a' * 32}  ○ ready  mail.send.now"]


def test_without_a_terminal_nothing_is_cut_and_empty_columns_are_left_out() -> None:
    lines = table_lines(
        ("A", "EMPTY", "N"), [("x" * 300, "", "7"), ("y", "", "10")], numbers=("N",), on=False
    )
    assert lines == [f"{'A':300}   N", f"{'x' * 300}   7", f"{'y':300}  10"]


def test_texts_are_cut_by_columns_not_by_characters() -> None:
    assert cut("名前名前", 5) == "名前…"
    assert cut("e\u0301" * 3, 3) == "e\u0301" * 3
    assert cut("abcdef", 4) == "abc…"


def test_facts_have_lines_below_each_other() -> None:
    assert fact_lines([("id", "x"), ("nothing", ""), ("error", "a\nb")], on=False) == [
        "id     x",
        "error  a",
        "       b",
    ]


def test_colours_are_only_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert styled("x", "red") == "\x1b[31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x", "red") == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.delenv("FORCE_COLOR")
    assert styled("x", "red") == "x"  # standard output of tests is no terminal


def test_counts_say_when_they_are_capped() -> None:
    assert [plural(1, "item"), plural(2, "item"), plural(10_000, "item", True)] == [
        "1 item",
        "2 items",
        "10,000+ items",
    ]
