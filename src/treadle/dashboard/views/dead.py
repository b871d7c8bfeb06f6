"""Dead letters: by mark, and the items of one mark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import msgspec

from treadle.base.ids import check_id, check_name
from treadle.base.wording import error_line
from treadle.bulk_action import BulkState
from treadle.dashboard.access import not_there
from treadle.dashboard.payloads import json_text, read_payload, shown_item_json
from treadle.dashboard.views import View
from treadle.dashboard.views.item import FailedAttempt, failed_attempts
from treadle.dashboard.views.items import ItemRow, row_of, shows_tenants
from treadle.dashboard.visit import Visit
from treadle.item import ItemState
from treadle.item_facts import DeadMark
from treadle.logs.masking import MASK
from treadle.operate.bulk_states import may_have, open_requeues
from treadle.operate.dead_letters import folded
from treadle.operate.filters import filter_word
from treadle.operate.item_json import mark_json
from treadle.operate.why.wording import releases_text

MOST_MARKS: Final = 100
ROWS: Final = 50


class MarkRow(msgspec.Struct, frozen=True):
    mark: DeadMark
    error: str
    releases: str
    """Under which releases they died. Empty: under none."""
    waited: tuple[DeadMark, ...] = ()
    """Marks that only follow from this one: see `FoldedMark`."""
    waited_text: str = ""
    requeues: list[BulkState] = []
    """Bulk actions that run some of its items again now, or may."""


class DeadPage(msgspec.Struct, frozen=True):
    rows: list[MarkRow] | None
    """None: not in time."""
    marks: Sequence[DeadMark]
    """All of them, with those that only follow from another."""
    more: bool
    """There are more marks."""
    requeues: Sequence[BulkState] = ()
    """Bulk actions that run dead items again now."""


class MarkPage(msgspec.Struct, frozen=True, kw_only=True):
    mark: str
    requeues: Sequence[BulkState]
    """Bulk actions that run dead items again now."""
    q: str
    """The filter that finds all of its items."""
    type: str
    releases: str
    rows: list[ItemRow]
    states: list[ItemState]
    cursor: str | None
    several_tenants: bool
    sample: FailedAttempt | None
    """The last failure of the newest one."""
    left: ItemState | None
    """The older one of the two whose inputs are compared."""
    right: ItemState | None
    diff: InputDiff | None
    """None: there are no two, or the visitor sees no payloads."""


async def read_marks(visit: Visit) -> DeadPage:
    marks = await visit.in_time(visit.client.dead.marks(count=MOST_MARKS, store=visit.store))
    if marks is None:
        return DeadPage(None, (), False)
    causes = await visit.in_time(visit.client.dead.causes(marks)) or {}
    requeues = await _requeues(visit) if marks else ()
    rows = [
        MarkRow(
            row.mark,
            error_line(row.mark.error_type, row.mark.error if visit.access.payloads else ""),
            releases_text(row.mark),
            row.waited,
            row.waited_text,
            [each for each in requeues if may_have(each, row.mark)],
        )
        for row in folded(marks, causes)
    ]
    return DeadPage(rows, marks, len(marks) == MOST_MARKS, requeues)


async def _requeues(visit: Visit) -> Sequence[BulkState]:
    return await visit.in_time(open_requeues(visit.client.backend, visit.tenant)) or ()


async def read_mark(visit: Visit) -> MarkPage:
    mark = check_name(visit.part("mark"), "mark")
    cursor = visit.query("cursor") or None
    page, two, marks, requeues = await asyncio.gather(
        visit.client.dead.list(mark=mark, limit=ROWS, cursor=cursor),
        _two(visit, mark),
        visit.in_time(visit.client.dead.marks(count=MOST_MARKS)),
        _requeues(visit),
    )
    states = list(page.items)
    if not states and cursor is None:
        raise not_there(f"no dead item has the mark {mark!r}", "they were requeued or deleted, or never were")
    newest = states[0] if states else None
    left, right = two if len(two) == 2 else (two[0] if two else None, newest)
    if left is not None and right is not None and (left.tenant, left.id) == (right.tenant, right.id):
        left = None
    return MarkPage(
        mark=mark,
        requeues=[
            each for each in requeues for own in marks or () if own.mark == mark and may_have(each, own)
        ],
        q=f"status:dead {filter_word('mark', mark)}",
        type=newest.type if newest else "",
        releases=next((releases_text(each) for each in marks or () if each.mark == mark), ""),
        rows=[row_of(visit, state) for state in states],
        states=states,
        cursor=page.cursor,
        several_tenants=shows_tenants(visit, states),
        sample=next(iter(failed_attempts(visit, newest)), None) if newest else None,
        left=left,
        right=right,
        diff=_diff(visit, left, right),
    )


async def _two(visit: Visit, mark: str) -> list[ItemState]:
    """The items that were chosen to be compared: `?a=ID&b=ID`. Else the oldest, to be compared with the
    newest."""
    chosen = [check_id(id, field=name) for name in ("a", "b") if (id := visit.query(name))]
    if len(chosen) < 2:
        return list(
            (await visit.client.dead.list(mark=mark, limit=1, oldest_first=True, history=False)).items
        )
    found = await visit.client.get(chosen)
    return [state for state in found if state is not None]


def _diff(visit: Visit, left: ItemState | None, right: ItemState | None) -> InputDiff | None:
    if left is None or right is None or not visit.access.payloads:
        return None
    return diff_of(read_payload(visit, left, "input")[0], read_payload(visit, right, "input")[0])


def marks_json(visit: Visit, page: DeadPage) -> dict[str, Any]:
    """The marks as `treadle dead --json` has them."""
    if page.rows is None:
        return {"marks": None}
    hidden = {} if visit.access.payloads else {"error": None}
    return {"marks": [{**mark_json(mark), **hidden} for mark in page.marks], "more": page.more}


def mark_page_json(visit: Visit, page: MarkPage) -> dict[str, Any]:
    return {
        "mark": page.mark,
        "type": page.type,
        "items": [shown_item_json(visit, state, history=True) for state in page.states],
        "cursor": page.cursor,
        "compared": [state.id for state in (page.left, page.right) if state is not None],
        "diff": page.diff,
    }


MARKS = View("/dead", "dead.html", read_marks, "dead", to_json=marks_json)
MARK = View("/dead/{mark}", "mark.html", read_mark, "dead", to_json=mark_page_json)


MOST_ROWS: Final = 100
MOST_CHARACTERS: Final = 200
MOST_LEAVES: Final = 5_000
DEEPEST: Final = 50


class DiffRow(msgspec.Struct, frozen=True):
    """One place where they differ, or are alike."""

    path: str
    """`order.lines[0].sku`."""
    left: str | None
    """As JSON. None: it is not there."""
    right: str | None


class InputDiff(msgspec.Struct, frozen=True):
    differs: list[DiffRow]
    same: list[DiffRow]
    hidden: list[str]
    """Places where both show the same mask. Whether they differ is not told."""
    more: int
    """Differences that are not shown."""
    whole: bool = True
    """All of both was compared."""


def diff_of(left: Any, right: Any) -> InputDiff:
    """Compare two JSON values, leaf by leaf. Secret values are masked in both."""
    mine, theirs = _leaves(left), _leaves(right)
    differs: list[DiffRow] = []
    same: list[DiffRow] = []
    hidden: list[str] = []
    for path in dict.fromkeys((*mine, *theirs)):
        left_text, right_text = mine.get(path), theirs.get(path)
        if left_text == right_text and MASK in (left_text or ""):
            hidden.append(path)
        else:
            row = DiffRow(path, _cut(left_text), _cut(right_text))
            (same if left_text == right_text else differs).append(row)
    whole = len(mine) < MOST_LEAVES and len(theirs) < MOST_LEAVES
    more = max(0, len(differs) - MOST_ROWS)
    return InputDiff(differs[:MOST_ROWS], same[:MOST_ROWS], hidden[:MOST_ROWS], more, whole)


def _leaves(value: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for path, text in _walk(value, "", 0):
        found[path] = text
        if len(found) >= MOST_LEAVES:
            break
    return found


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if depth < DEEPEST and isinstance(value, dict) and value:
        for name, each in cast("dict[str, Any]", value).items():
            yield from _walk(each, f"{path}.{name}" if path else str(name), depth + 1)
    elif depth < DEEPEST and isinstance(value, list) and value:
        for at, each in enumerate(cast("Sequence[Any]", value)):
            yield from _walk(each, f"{path}[{at}]", depth + 1)
    else:
        yield path or "input", json_text(cast("object", value))


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
