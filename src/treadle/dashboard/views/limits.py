"""Limits: how far the limits that the whole fleet shares are used, and who holds their permits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from treadle.base.wording import duration
from treadle.dashboard.views import View
from treadle.dashboard.visit import Visit
from treadle.define.work_type import AnyWorkType
from treadle.doers.base import AdaptedDoer
from treadle.doers.bounded import BoundedDoer, UnlimitedDoer
from treadle.doers.limit_rules import TYPE_LIMIT, LimitRule, Per, read_limit_name
from treadle.doers.limited import LimitedDoer
from treadle.doers.on_full import OnFullDoer
from treadle.item import Algorithm, ItemState, Order, WorkerState
from treadle.item_facts import LimitUse
from treadle.operate.fleet_json import limit_json, order_json
from treadle.store.fleet import place_of

MOST_LIMITS: Final = 500
MOST_ITEMS: Final = 100
"""Items that hold permits and are looked up, of all limits together."""


class HoldingItem(msgspec.Struct, frozen=True):
    id: str
    tenant: str | None = None
    since: float | None = None
    """None: it was not looked up, or it does not run any more."""


class PermitHolders(msgspec.Struct, frozen=True):
    """A worker that holds permits."""

    worker: str
    name: str
    """Where it runs, as `host:pid`. Empty: not known."""
    count: int
    items: list[HoldingItem] = []


class LimitRow(msgspec.Struct, frozen=True):
    use: LimitUse
    name: str
    owner: str
    """The type, or the name that the code gave to it. Empty: not known."""
    per: Per
    tenant: str
    lane: str
    algorithm: Algorithm
    window: float | None
    used: float
    limit: int | None
    reached: bool
    """As far as is known: no item can start now that counts under it."""
    retry_after: float
    holders: list[PermitHolders] = []


class LimitsPage(msgspec.Struct, frozen=True):
    limits: list[LimitRow] | None
    """None: not in time."""
    more: bool
    """There are more than are shown."""
    reached: int
    pauses: list[Order] = []
    """Those that are in force."""


async def read(visit: Visit) -> LimitsPage:
    uses, workers, orders = await asyncio.gather(
        visit.in_time(visit.client.limits(count=MOST_LIMITS + 1)),
        visit.in_time(visit.client.workers()),
        visit.in_time(visit.client.orders()),
    )
    pauses = [each for each in orders or () if each.kind == "pause"]
    if uses is None:
        return LimitsPage(None, False, 0, pauses)
    shown = uses[:MOST_LIMITS]
    rows = limit_rows(shown, workers or (), await _held_items(visit, shown))
    return LimitsPage(rows, len(uses) > MOST_LIMITS, sum(row.reached for row in rows), pauses)


async def _held_items(visit: Visit, uses: Iterable[LimitUse]) -> dict[str, ItemState]:
    """The items that hold permits: since when."""
    ids = [id for use in uses for holder in use.holders for id in holder.items][:MOST_ITEMS]
    found = await visit.in_time(visit.client.get(ids)) if ids else []
    return {item.id: item for item in found or () if item is not None and item.status == "running"}


def limit_rows(
    uses: Sequence[LimitUse], workers: Iterable[WorkerState], items: Mapping[str, ItemState] = {}
) -> list[LimitRow]:
    """The limits, those that are reached first, then the fullest. items: those that hold permits, if they
    were looked up."""
    names = {each.id: place_of(each) for each in workers}
    rows = [_row(use, names, items) for use in uses]
    return sorted(rows, key=lambda row: (not row.reached, -_share(row), row.name))


def _share(row: LimitRow) -> float:
    return row.used / row.limit if row.limit else 0.0


def _row(use: LimitUse, names: Mapping[str, str], items: Mapping[str, ItemState]) -> LimitRow:
    name = read_limit_name(use.name)
    return LimitRow(
        use=use,
        name=use.name,
        owner="" if name is None else name.owner,
        per=None if name is None else name.per,
        tenant="" if name is None else name.tenant,
        lane="" if name is None else name.lane,
        algorithm=use.algorithm,
        window=None if name is None else name.window,
        used=use.used,
        limit=use.limit,
        reached=use.retry_after > 0 or (use.limit is not None and use.used >= use.limit),
        retry_after=use.retry_after,
        holders=[
            PermitHolders(
                each.worker,
                names.get(each.worker, ""),
                each.count,
                [_holding(id, items.get(id)) for id in each.items],
            )
            for each in use.holders
        ],
    )


def _holding(id: str, item: ItemState | None) -> HoldingItem:
    return HoldingItem(id) if item is None else HoldingItem(id, item.tenant, item.started_at)


def to_json(visit: Visit, page: LimitsPage) -> dict[str, Any]:
    """The limits as `treadle limits --json` has them, and what their names say."""
    pauses = [order_json(each) for each in page.pauses]
    return {"limits": rows_json(page.limits), "more": page.more, "paused": pauses}


def rows_json(rows: Iterable[LimitRow] | None) -> list[dict[str, Any]] | None:
    if rows is None:
        return None
    return [
        {
            **limit_json(row.use),
            "reached": row.reached,
            "owner": row.owner,
            "per": row.per,
            "tenant": row.tenant,
            "lane": row.lane,
            "window": row.window,
        }
        for row in rows
    ]


VIEW = View("/limits", "limits.html", read, "limits", to_json=to_json)


def rules_of(doer: object) -> Sequence[LimitRule]:
    """The fleet-wide limits of a doer."""
    if isinstance(doer, LimitedDoer):
        return doer.rules
    return (doer.rule,) if isinstance(doer, OnFullDoer) else ()


def limits_of_types(
    uses: Iterable[LimitUse], types: Mapping[str, AnyWorkType], names: Iterable[str]
) -> list[LimitUse]:
    """The limits in use that items of these types count under, as far as the code here says, and those that
    were set for the types."""
    owners = {"app", *names, *(f"{TYPE_LIMIT}{name}" for name in names)}
    for name in names:
        doer = types[name].options.get("doer") if name in types else None
        if doer is not None:  # one that several types share counts under the name of the first
            owners.add(next(each for each, type in types.items() if type.options.get("doer") is doer))
            owners |= {rule.name for rule in rules_of(doer) if rule.name is not None}
    return [use for use in uses if (read := read_limit_name(use.name)) is not None and read.owner in owners]


def doer_words(doer: object) -> str:
    """A doer in words."""
    if doer is None:
        return "that of the worker"
    if isinstance(doer, AdaptedDoer):
        return f"{type(doer.doer).__qualname__}, your own"
    if isinstance(doer, OnFullDoer):
        return f"{_rule_words(doer.rule)}, then {doer.on_full}"
    if isinstance(doer, LimitedDoer):
        words = [_rule_words(rule) for rule in doer.rules] + (
            ["one item of each lane at a time, until it has ended"] if doer.strict else []
        )
        inner = "" if isinstance(doer.inner, UnlimitedDoer) else f"; inside: {doer_words(doer.inner)}"
        return ", ".join(words) + inner
    if isinstance(doer, BoundedDoer):
        return f"at most {doer.limit} at once in each worker"
    return "unlimited" if isinstance(doer, UnlimitedDoer) else type(doer).__qualname__


def _rule_words(rule: LimitRule) -> str:
    per = "" if rule.per is None else f" per {rule.per}"
    if rule.algorithm == "slots":
        return f"at most {rule.limit:,} at once{per} in the whole fleet"
    kind = rule.algorithm.replace("_", " ")
    return f"{rule.limit:,} starts every {duration(rule.window)}{per} in the whole fleet ({kind})"
