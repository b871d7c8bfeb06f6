"""The filter of items as text."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from treadle.dashboard.addresses import chosen_id, split_id
from treadle.errors import InputError
from treadle.operate.filters import FIELDS, filter_word, parse_filter, with_word

NOW = 1_800_000_000.0
FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", {}),
        ("status:dead", {"status": ("dead",)}),
        ("status:dead,running status:ready", {"status": ("dead", "running", "ready")}),
        ("STATUS:Ended", {"status": ("success", "dead", "cancelled")}),
        (
            "type:mail.send  queue:q\ttenant:t key:a:b workflow:w",
            {"type": "mail.send", "queue": "q", "tenant": "t", "key": "a:b", "workflow": "w"},
        ),
        ('key:"a \\"b\\" \\\\ c" type:x', {"key": 'a "b" \\ c', "type": "x"}),
        (
            "group:g-1 reason:expired mark:old:mail",
            {"group_id": "g-1", "reason": "expired", "mark": "old:mail"},
        ),
        ("since:2h until:1700000000", {"since": NOW - 7200, "until": 1_700_000_000.0}),
        ("until:1970-01-01T01:00", {"until": 3600.0}),
    ],
)
def test_words_become_arguments_of_list(text: str, where: dict[str, Any]) -> None:
    found = parse_filter(text, now=NOW)
    assert found.where == where
    assert found.bulk_where == where
    assert found.is_empty is (not where)


def test_ids_and_conditions_are_read() -> None:
    assert parse_filter("0f3a id:stauts:dead 0f3a", now=NOW).ids == ("0f3a", "stauts:dead")
    found = parse_filter('type:t input.order_id:17 input.lines[0].sku:"a b" headers.request:r', now=NOW)
    assert [(each.path, each.value) for each in found.conditions] == [
        (("input", "order_id"), 17),
        (("input", "lines", 0, "sku"), "a b"),
        (("headers", "request"), "r"),
    ]
    assert found.where == {"type": "t"}
    with pytest.raises(InputError, match=r"'input\.order_id' is inside items"):
        _ = found.bulk_where


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "stauts:dead",
            r"no filter 'stauts': did you mean 'status'\? There are status:, .* write id:stauts:dead",
        ),
        ("colour:red", r"no filter 'colour': there are status:, "),
        ("status:deed", r"status='deed' does not exist: it is one of blocked, .*, open, ended"),
        ("reason:tired", r"reason='tired' does not exist"),
        ("since:yesterday", r"since='yesterday' is no time: write 2h"),
        ("type:", r"type: has no value"),
        ("type:a type:b", r"type: is there twice"),
        ("connection refused!", r"'refused!' is no id, and no filter: write status:"),
        ('"a b"', r"'a b' is no id"),
        ("input:17", r"input: looks inside items, so say where: input\.NAME:17"),
        ("0f3a status:dead", r"'0f3a' is an id, which names one item: leave out status:"),
        ("key:\u202eabc", r"key="),
        ("x" * 4001, r"longer than 4,000"),
        (" ".join(f"id:{n}" for n in range(101)), r"at most 100"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_filter(text, now=NOW)


def test_a_word_is_replaced_and_removed() -> None:
    text = 'status:dead key:"a b" status:ready'
    assert with_word(text, "status", "running") == 'key:"a b" status:running'
    assert with_word(text, "status", None) == 'key:"a b"'
    assert with_word("", "type", "x y") == 'type:"x y"'


@FEW
@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), min_size=1, max_size=60))
def test_any_name_survives_writing_and_reading(name: str) -> None:
    assert parse_filter(filter_word("key", name), now=NOW).where == {"key": name}


@FEW
@given(st.text(max_size=60), st.sampled_from(sorted(FIELDS)))
def test_any_text_is_read_or_refused(text: str, field: str) -> None:
    for each in (text, f"{field}:{text}", f"input.a:{text}"):
        with contextlib.suppress(InputError):
            parse_filter(each, now=NOW)


def test_a_chosen_item_is_named_with_its_tenant() -> None:
    assert split_id(chosen_id("a:1", None)) == ("a:1", None)
    assert split_id(chosen_id("a:1", "new customers")) == ("a:1", "new customers")
    with pytest.raises(InputError, match="id="):
        split_id("<script> t")
