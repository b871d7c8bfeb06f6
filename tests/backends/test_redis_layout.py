"""A change of what Redis stores has a new number. Otherwise a mixed fleet takes its own bytes for damage."""

from __future__ import annotations

import pytest

from tests.backends import redis_layout
from treadle.backends.redis.schema import VERSION


def test_a_change_of_the_layout_has_a_new_number() -> None:
    number, facts = redis_layout.recorded()
    new, gone = set(redis_layout.layout()) - set(facts), set(facts) - set(redis_layout.layout())
    if number == VERSION and not new and not gone:
        return
    lines = [*(f"  - {each}" for each in sorted(gone)), *(f"  + {each}" for each in sorted(new))]
    pytest.fail(
        "the layout of Redis is not the recorded one:\n"
        + "\n".join([*lines, f"  its number is {VERSION}, recorded is {number}"])
        + "\nRaise VERSION in src/treadle/backends/redis/schema.py, and run "
        "`python -m tests.backends.redis_layout`.\n"
        "If a store is read as before (code was moved), or the number is not released yet, run it with "
        "--same-layout.",
        pytrace=False,
    )


def test_a_change_is_seen() -> None:
    facts = redis_layout.layout()
    assert "key item" in facts
    assert any(each.startswith("format row_bytes.lua >c1") for each in facts)
    assert any(each.startswith("bytes item_bytes.py ItemExtra ") for each in facts)
    for old, new in (("    k: str", "    key: str"), (">B4s6sdId", ">B4s6sddd")):
        text = (redis_layout.CODE / "item_bytes.py").read_text()
        assert old in text
        before, after = (set(redis_layout._definitions(each)) for each in (text, text.replace(old, new)))
        assert len(after - before) == 1


def test_the_same_number_is_not_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[bool] = []
    monkeypatch.setattr(redis_layout, "record", lambda: recorded.append(True))
    assert redis_layout.main([]) == 0
    monkeypatch.setattr(redis_layout, "layout", lambda: ["key other"])
    assert redis_layout.main([]) == 1
    assert not recorded
    assert redis_layout.main(["--same-layout"]) == 0
    monkeypatch.setattr(redis_layout, "VERSION", VERSION + 1)
    assert redis_layout.main([]) == 0
    assert len(recorded) == 2
