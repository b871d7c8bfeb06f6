"""What the page of an item is made of: its timeline, tracebacks in parts, inputs compared."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from treadle.dashboard.cell_labels import with_labels
from treadle.dashboard.payloads import pretty_text
from treadle.dashboard.template_filters import short_id
from treadle.dashboard.timeline import Stretch, Timeline, timeline_of, timeline_svg, timeline_ticks
from treadle.dashboard.views.dead import MOST_ROWS, DiffRow, diff_of
from treadle.dashboard.views.item import is_own, traceback_parts
from treadle.item import Attempt, ItemState
from treadle.operate.item_json import exact_json

FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


def item(**fields: Any) -> ItemState:
    return ItemState(
        **{"id": "a", "type": "t", "status": "ready", "queued_at": 100.0, "due_at": 100.0, **fields}
    )


def failed(attempt: int, at: float, message: str = "no") -> Attempt:
    return Attempt(attempt, "ValueError", message, "", at, "w")


def lines(stretches: list[Stretch]) -> list[tuple[str, float, float]]:
    return [(each.kind, each.since, each.until) for each in stretches]


def test_a_timeline_of_failures_and_a_success() -> None:
    state = item(
        status="success",
        attempt=3,
        history=(failed(1, 103.0), failed(2, 106.0)),
        claimed_at=108.0,
        started_at=109.0,
        ended_at=111.0,
        worker="w",
    )
    found = timeline_of(state, now=500.0)
    assert (found.since, found.until) == (100.0, 111.0)
    assert lines(found.stretches) == [
        ("tried", 100.0, 103.0),
        ("tried", 103.0, 106.0),
        ("waited", 106.0, 108.0),
        ("claimed", 108.0, 109.0),
        ("ran", 109.0, 111.0),
    ]
    assert [(each.kind, each.at) for each in found.moments] == [
        ("queued", 100.0),
        ("failed", 103.0),
        ("failed", 106.0),
        ("started", 109.0),
        ("success", 111.0),
    ]
    assert found.moments[-1].text == "succeeded after 2 s"
    assert timeline_ticks(found) == ["0", "+2.8 s", "+5.5 s", "+8.2 s", "+11 s"]
    brief = timeline_ticks(Timeline(100.0, 100.002, [], []))
    assert brief == ["0", "+0.5 ms", "+1.0 ms", "+1.5 ms", "+2.0 ms"]


def test_a_death_ends_the_last_run() -> None:
    state = item(
        status="dead",
        reason="exhausted",
        attempt=2,
        failures=2,
        history=(failed(1, 103.0), failed(2, 106.0)),
        started_at=104.0,
        ended_at=106.0,
    )
    found = timeline_of(state, now=500.0, messages=False)
    assert lines(found.stretches) == [
        ("tried", 100.0, 103.0),
        ("waited", 103.0, 104.0),
        ("failed", 104.0, 106.0),
    ]
    assert [each.text for each in found.moments if each.kind in ("failed", "dead")] == [
        "attempt 1 failed: ValueError",
        "attempt 2 failed: ValueError",
        "died: exhausted",
    ]


def test_a_killer_that_is_claimed_again_was_not_requeued() -> None:
    """Its attempt counts when it begins."""
    history = tuple(Attempt(n, "LeaseLost", f"worker w{n} died", "", 100.0 + n, f"w{n}") for n in (1, 2, 3))
    killer = {"history": history, "losses": 3, "status": "running", "worker": "w4"}
    claimed = timeline_of(item(**killer, attempt=3, claimed_at=110.0, started_at=110.0), now=120.0)
    assert [step.text.partition(":")[0] for step in claimed.moments] == [
        "queued",
        *(f"attempt {n} failed" for n in (1, 2, 3)),
        "now",
    ]
    assert claimed.moments[-1].text == "now: claimed on w4, not begun"
    begun = timeline_of(item(**killer, attempt=4, claimed_at=110.0, started_at=112.0), now=120.0)
    assert [step.text for step in begun.moments][-2:] == ["attempt 4 began on w4", "now: runs"]


def test_requeues_are_marked_where_the_number_of_the_attempt_falls() -> None:
    history = (failed(1, 103.0), failed(2, 106.0), failed(1, 109.0))

    def words(**fields: Any) -> list[str]:
        found = timeline_of(item(history=history, **fields), now=120.0)
        return [each.text.partition(":")[0] for each in found.moments]

    twice = ["queued", "attempt 1 failed", "attempt 2 failed", "requeued later", "attempt 1 failed"]
    assert words(status="ready", attempt=1) == [*twice, "now"]
    assert words(status="ready", attempt=0) == [*twice, "requeued later", "now"]
    again = words(status="success", attempt=1, started_at=110.0, ended_at=111.0)
    assert again == [*twice, "requeued later", "attempt 1 began", "succeeded after 1 s"]
    assert words(status="running", attempt=2, started_at=110.0) == [*twice, "attempt 2 began", "now"]


def test_what_is_to_come_is_drawn_and_a_far_deadline_is_only_told() -> None:
    state = item(status="scheduled", due_at=160.0, deadline=900.0)
    found = timeline_of(state, now=120.0)
    assert lines(found.stretches) == [("waited", 100.0, 120.0), ("future", 120.0, 160.0)]
    assert found.until == 160.0
    assert found.moments[-1].kind == "deadline"
    assert timeline_svg(found).count("<line") == 3  # queued, now, due
    assert timeline_of(item(status="scheduled", due_at=160.0, deadline=170.0), now=120.0).until == 170.0


def test_an_item_that_died_without_an_attempt_ran_never() -> None:
    state = item(
        status="dead", reason="unknown_type", started_at=105.0, ended_at=106.0, history=(failed(0, 106.0),)
    )
    assert lines(timeline_of(state, now=500.0).stretches) == [("waited", 100.0, 106.0)]


def test_a_picture_holds_no_markup_of_others() -> None:
    state = item(
        status="dead", reason="aborted", attempt=1, ended_at=101.0, history=(failed(1, 101.0, "<b>\"'"),)
    )
    assert "<b>" not in timeline_svg(timeline_of(state, now=200.0))


@FEW
@given(
    st.sampled_from(["blocked", "scheduled", "ready", "running", "success", "dead", "cancelled"]),
    st.lists(st.floats(0, 1e9), min_size=6, max_size=6),
    st.integers(0, 3),
)
def test_any_times_make_a_picture(status: Any, at: list[float], failures: int) -> None:
    # The clock of the store may be changed.
    state = item(
        status=status,
        reason="exhausted" if status == "dead" else None,
        attempt=failures,
        queued_at=at[0],
        due_at=at[1],
        claimed_at=at[2],
        started_at=at[3],
        ended_at=at[4] if status in ("success", "dead", "cancelled") else None,
        history=tuple(failed(n + 1, at[n + 2]) for n in range(failures)),
    )
    found = timeline_of(state, now=at[5])
    assert found.since < found.until
    assert all(each.since <= each.until for each in found.stretches)
    assert "nan" not in timeline_svg(found)


TRACEBACK = """\
Traceback (most recent call last):
  File "/app/shop/mail.py", line 14, in send
    json.loads(text)
    ~~~~~~~~~~^^^^^^
  File "/usr/lib/python3.12/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
  File "/app/.venv/lib/python3.12/site-packages/other/x.py", line 3, in f
    g()
json.decoder.JSONDecodeError: no
  File "/app/looks/like/a.py", line 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "C:\\\\app\\\\shop\\\\mail.py", line 15, in send
ValueError: no
"""


def test_a_traceback_begins_with_the_cause_and_frames_of_libraries_are_folded() -> None:
    parts = traceback_parts(TRACEBACK)
    assert [(part.text.splitlines()[0].strip(), part.fold, part.error) for part in parts] == [
        ("json.decoder.JSONDecodeError: no", "", True),
        ('File "/app/shop/mail.py", line 14, in send', "", False),
        ('File "/usr/lib/python3.12/json/__init__.py", line 346, in loads', "2 frames of libraries", False),
        ("During handling of the above exception, another exception occurred:", "", False),
        ("ValueError: no", "", True),
        ('File "C:\\\\app\\\\shop\\\\mail.py", line 15, in send', "", False),
    ]
    assert sorted("\n".join(part.text for part in parts).split()) == sorted(
        TRACEBACK.replace("Traceback (most recent call last):", "").split()
    )
    only_libraries = TRACEBACK.replace("/app/", "/usr/lib/python3.12/").replace(
        "C:\\\\app", "/x/site-packages/a/b"
    )
    assert not any(part.fold for part in traceback_parts(only_libraries))
    assert traceback_parts("") == []
    # Messages are in tracebacks. With a quadratic pattern this would take minutes.
    assert len(traceback_parts(f"ValueError: x\n{' ' * 300_000}x")) == 1
    group = f"  + Exception Group Traceback (most recent call last):\n  | {TRACEBACK}"
    in_order = traceback_parts(group)
    assert "\n".join(part.text for part in in_order) == group.rstrip("\n")
    assert [part.fold for part in in_order] == ["", "2 frames of libraries", ""]
    assert not is_own("<frozen importlib._bootstrap>")


def frame(line: int, name: str = "f") -> str:
    return f'  File "/app/a.py", line {line}, in {name}\n    {name}({line})\n'


def test_the_last_five_frames_are_shown_and_repeated_ones_folded() -> None:
    deep = "".join(frame(n) for n in range(9))
    again = frame(10, "g") * 3 + "  [Previous line repeated 37 more times]\n"
    turns = (frame(20, "even") + frame(21, "odd")) * 12
    text = f"Traceback (most recent call last):\n{deep}{again}{turns}{frame(30)}ValueError: no\n"
    error, folded, shown = traceback_parts(text)
    assert (error.text, error.error, folded.fold) == ("ValueError: no", True, "7 earlier frames")
    assert shown.text.count("File") == 6  # the cycle of two counts as one
    assert "[this frame 40 times]" in shown.text
    assert "[these 2 frames 12 times]" in shown.text
    assert shown.text.endswith("f(30)")
    lies = f"Traceback (most recent call last):\n{frame(1)}  [Previous line repeated 99999 more times]\nE: no"
    assert "repeated 99999" in "".join(part.text for part in traceback_parts(lies))


@FEW
@given(st.text(st.sampled_from('TF[|: \n"') | st.characters(), max_size=300))
def test_no_line_of_a_traceback_is_lost(text: str) -> None:
    shown = "".join("".join(part.text.split()) for part in traceback_parts(text))
    assert sorted(shown) == sorted("".join(text.split()))


def test_two_inputs_are_compared_leaf_by_leaf() -> None:
    found = diff_of(
        {"a": 1, "b": {"c": [1, 2]}, "same": "x", "gone": None},
        {"a": "1", "b": {"c": [1, 3, 4]}, "same": "x"},
    )
    assert found.differs == [
        DiffRow("a", "1", '"1"'),
        DiffRow("b.c[1]", "2", "3"),
        DiffRow("gone", "null", None),
        DiffRow("b.c[2]", None, "4"),
    ]
    assert found.same == [DiffRow("b.c[0]", "1", "1"), DiffRow("same", '"x"', '"x"')]
    masked = diff_of({"token": "***", "url": "db://a:***@b"}, {"token": "***", "url": "db://c:***@b"})
    assert (masked.hidden, masked.same, [row.path for row in masked.differs]) == (["token"], [], ["url"])
    assert diff_of(1, [1]).differs == [DiffRow("input", "1", None), DiffRow("[0]", None, "1")]
    many = diff_of({str(n): n for n in range(150)}, {})
    assert (len(many.differs), many.more) == (MOST_ROWS, 51)  # with that of the empty object
    deep: Any = 0
    for _ in range(2000):
        deep = [deep]
    assert len(diff_of(deep, 1).differs) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"$base64": "AAEC/w=="}, "0001 02ff"),
        ({"a": 2**60}, '{"a":1152921504606846976}'),
        ({"$base64": "not base64"}, '{"$base64":"not base64"}'),
    ],
)
def test_values_as_text(value: Any, text: str) -> None:
    assert pretty_text(value) == text


def test_large_integers_are_texts_for_programs() -> None:
    assert exact_json({"a": [2**60, -(2**60), 2**53, True]}) == {
        "a": [str(2**60), str(-(2**60)), 2**53, True]
    }


def test_cells_say_the_names_of_their_columns() -> None:
    heads = '<th scope="col"><input></th><th scope="col" class="number">items</th><th scope="col">state</th>'
    table = (
        f"<p></p><table><thead><tr>{heads}</tr></thead><tbody>"
        '<tr><td><input></td><td class="number">3</td><td>dead</td></tr>'
        '<tr><th scope="row">x</th><td> </td><td>–</td></tr>'
        '<tr><td colspan="3">more</td></tr></tbody></table>'
    )
    assert with_labels(table) == table.replace(
        '<td class="number">', '<td data-label="items" class="number">'
    ).replace("<td> </td><td>–</td>", "<td data-empty> </td><td data-empty>–</td>")
    assert with_labels("<td>&lt;table&gt;</td>") == "<td>&lt;table&gt;</td>"


def test_only_ids_that_treadle_makes_are_shown_by_their_end() -> None:
    assert short_id("6608f193dee2b7c71253093b46d58474") == "…46d58474"
    assert short_id("order-17-of-a-customer-with-a-name") == "order-17-of-a-customer-with-a-name"
