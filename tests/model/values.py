"""Hostile values. The contract allows all of them, and every backend must treat them alike."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from treadle.item import GROUP_MARK, GROUP_TYPE, Contribution, ErrorInfo, Filter, Item, ItemUpdate

TENANTS = ("default", "acme'; drop table items; --")
TYPES = ("a", "b", "ü%_\\")
QUEUES = ("default", 'bulk"')
LANES = ("", "left")
WORKERS = ("w1", "w2")
RELEASES = {"w1": "v1", "w2": ""}
IDS = (*(f"i{n}" for n in range(12)), "x" * 255, "é" * 127, "😀", "a'b", "%", "_", "\\", "NULL", "0", " ")
KEYS = ("k1", "k'2", "K1")

names = st.sampled_from(IDS)
prerequisites = st.sampled_from((*IDS, *IDS, *(GROUP_MARK + id for id in IDS)))
tenants = st.sampled_from(TENANTS)
any_tenant = st.sampled_from((None, *TENANTS))
data = st.sampled_from((b"", b"{}", b"\x00\xff", b"-0.0", b"1e400", b'"\\ud800"', bytes(range(256))))
results = st.one_of(st.none(), data)
texts = st.sampled_from(("", "oops", "a\x00b", "é😀", "'; --", "line\nline", "x" * 10_000))
durations = st.sampled_from((0.0, -0.0, 0.25, 5.0, 50.0, 1e9))
failures = st.builds(ErrorInfo, st.sampled_from(("Oops", "", "é")), texts, texts)


@st.composite
def items(draw: Any, id: Any = names, **fixed: Any) -> Item:
    after = (
        tuple(draw(st.lists(prerequisites, max_size=3, unique=True))) if draw(st.integers(0, 3)) == 0 else ()
    )
    fields: dict[str, Any] = {
        "id": draw(id),
        "type": draw(st.sampled_from(TYPES)),
        "input": draw(data),
        "tenant": draw(tenants),
        "queue": draw(st.sampled_from(QUEUES)),
        "lane": draw(st.sampled_from(LANES)),
        "priority": draw(st.sampled_from((0, 0, 5, -(2**31), 2**31 - 1))),
        "attempts": draw(st.sampled_from((None, 1, 3, 2**31 - 1))),
        "delay": draw(durations),
        "expires_in": draw(st.sampled_from((None, None, None, 1.0, 30.0, 1e9))),
        "after": after,
        "need": draw(st.integers(0, len(after))),
        "counting": draw(st.sampled_from(("success", "done"))),
        "key": draw(st.sampled_from((None, None, None, *KEYS))),
        "key_scope": draw(st.sampled_from(("open", "any", 20.0, 0.0))),
        "key_policy": draw(st.sampled_from(("existing", "replace", "replace", "debounce", "error"))),
        "debounce_max": draw(st.sampled_from((None, 10.0, 1e9))),
        "workflow": draw(st.sampled_from((None, None, "flow", "f'low"))),
        "workflow_type": draw(st.sampled_from((None, "kind"))),
        "options": draw(data),
        "keep": draw(st.sampled_from((0.0, 10.0, 1e9))),
        "keep_dead": draw(st.sampled_from((None, 0.0, 10.0))),
        "contributes": draw(st.sampled_from((True, True, True, False))),
    }
    return Item(**(fields | fixed))


updates = st.builds(
    ItemUpdate,
    run_at=st.sampled_from((UNSET, UNSET, 0.0, 1_000_020.0, 1_700_000_020.0)),
    priority=st.sampled_from((UNSET, UNSET, 0, 5)),
    lane=st.sampled_from((UNSET, UNSET, *LANES)),
    queue=st.sampled_from((UNSET, UNSET, *QUEUES)),
    deadline=st.sampled_from((UNSET, UNSET, None, 1_000_030.0, 1_700_000_030.0)),
)


@st.composite
def children(draw: Any) -> list[Item]:
    """Children of one settlement: plain ones, and perhaps a nested group with the item that closes it."""
    plain = draw(st.lists(items(), max_size=2))
    if not draw(st.integers(0, 2)):
        id = draw(names)
        inside = [replace(item, group_id=id) for item in draw(st.lists(items(), max_size=2))]
        closing = draw(items(after=(GROUP_MARK + id,), need=1, counting="success", id=st.just(id), key=None))
        plain = draw(st.permutations([*plain, *inside, replace(closing, type=GROUP_TYPE, closes_group=True)]))
    return plain


contributions = st.one_of(
    st.none(),
    st.builds(
        Contribution, results, st.sampled_from((False, False, True)), st.sampled_from((None, None, 0, 1, 2))
    ),
)
filters = st.builds(
    Filter,
    tenant=any_tenant,
    status=st.sampled_from(((), ("dead",), ("success", "cancelled"), ("ready", "blocked"))),
    type=st.sampled_from((None, None, *TYPES)),
    queue=st.sampled_from((None, None, *QUEUES)),
    workflow=st.sampled_from((None, None, "flow", "f'low", "%")),
    group_id=st.one_of(st.none(), names),
    key=st.sampled_from((None, None, *KEYS, "k_")),
    reason=st.sampled_from((None, None, "aborted", "expired", "unsatisfiable")),
)
