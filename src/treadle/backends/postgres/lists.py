"""Lists: items by filter, page by page.

A list is a query for the numbers of its items, along an index:

| the filter has | it is answered from |
| --- | --- |
| a group, a workflow, a key | that index of `item` |
| only open statuses | `open_item` |
| `killing` | the index of these in `open_item` |
| only dead (or a reason), only cancelled | the index of these in `ended_item` |
| a mark | the index of the marks of the dead in `ended_item` |
| only ended statuses | `ended_item` |
| anything else | `item`, in the order of submission |

`since` and `until` bound the numbers. The other conditions are checked row by row.

With a `reach`, a statement before that walks along the same index, and finds the numbers between which so
many items are. They bound each table that the list reads: were a table without a bound, the server would
choose to read all of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from treadle.store.rules.listing import EVERY_STATUS, ListPlan, Source, WalkEnd

from .columns import CANCELLED, DEAD, PARKED, READY, REASON_CODES, RUNNING, STATUS_CODES
from .connection import AnswerRow
from .statements import numbered, text

TABLES: Final = {"i": "item", "o": "open_item", "e": "ended_item"}
FRONTS: Final[dict[Source, str]] = {
    **dict.fromkeys(("group", "workflow", "key", "all"), "i"),
    **dict.fromkeys(("killing", "open"), "o"),
    **dict.fromkeys(("mark", "ended"), "e"),
}
"""The alias of the table whose numbers a list follows, by what it is answered from."""
LAST_NUMBER: Final = 2**63 - 1


class ListQuery:
    """A plan as a query."""

    def __init__(self, plan: ListPlan, *, limit: int, redrives: int | None = None) -> None:
        self._plan = plan
        self._where = plan.where
        self._front = plan.narrowest(FRONTS) or "i"
        is_dead = self._front == "e" and plan.only_status == "dead"
        self._labels = self._front if is_dead or self._front == "o" else "i"
        """Where tenant, queue and type are. The rows of the dead have them."""
        self._direction = "" if plan.oldest_first else "desc"
        self._values: dict[str, object] = {"limit": limit}
        self._is_bounded = False
        self._along: list[str] = []
        """Conditions that the index in front has: the walk meets no row that fails them."""
        self._conditions: list[str] = []
        """The others, which are checked row by row."""
        self._between: list[str] = []
        """Between which numbers the rows are."""
        self._add_status()
        self._add_conditions()
        self._add_bounds()
        if redrives is not None:
            self._add("redrives", redrives=redrives)

    @property
    def text(self) -> str:
        """Selects the numbers of its items, in order."""
        conditions = [*self._along, *self._conditions, *self._between]
        if self._front == "i":
            conditions.append(self._part("is_submitted"))
        return text(
            "list",
            "numbers",
            front=self._front,
            tables=self._tables(conditions),
            conditions=" and ".join(conditions) or "true",
            direction=self._direction,
        )

    def bind(self, text: str, **values: object) -> tuple[str, list[object]]:
        """A statement that contains this query, and its arguments. `values`: those of its other
        parameters."""
        sql, parameters = numbered(text)
        known = self._values | values
        return sql, [known[name] for name in parameters]

    # -- with a reach ------------------------------------------------------------------------------------

    @property
    def counting(self) -> str | None:
        """Counts what an index finds, up to `most`. None: no index finds it all."""
        if self._where.group_id is not None:
            return text("list", "count", table="treadle.item i", conditions=self._part("group_id"))
        if self._plan.only_status == "running" and self._front == "o":
            return text("list", "count", table="treadle.open_item o", conditions=self._part("is_running"))
        return None

    @property
    def walk(self) -> str | None:
        """Finds the number at which a walk begins, and after `looked_at` others the next two. None: all rows
        that it meets belong to the list."""
        if not self._conditions:
            return None
        return text(
            "list",
            "walk",
            front=self._front,
            table=text("list", TABLES[self._front]),
            conditions=" and ".join((*self._along, *self._between)) or "true",
            direction=self._direction,
        )

    def stop_at(self, walked: Sequence[AnswerRow]) -> WalkEnd | None:
        """Look at no more than these rows of `walk` say. None: nothing is left out."""
        first = next((row["no"] for row in walked if row["is_first"]), 0)
        others = sorted(
            ((row["no"], row["queued"]) for row in walked if not row["is_first"]),
            reverse=not self._plan.oldest_first,
        )
        end = WalkEnd(*others[0]) if len(others) > 1 else None
        last = (LAST_NUMBER if self._plan.oldest_first else 0) if end is None else end.no
        self._is_bounded = True
        self._between = [self._within(self._front)]
        self._values |= {"low": min(first, last), "high": max(first, last) if walked else -1}
        self._conditions = [each for each in self._conditions if each != self._part("group_id")]
        if self._where.group_id is not None:
            self._add("unindexed_group_id")
        return end

    def _within(self, alias: str) -> str:
        return text("list", "within", alias=alias)

    # -- the conditions ----------------------------------------------------------------------------------

    def _part(self, condition: str, **values: object) -> str:
        self._values |= values
        return text("list", condition, front=self._front, labels=self._labels)

    def _add(self, condition: str, **values: object) -> None:
        self._conditions.append(self._part(condition, **values))

    def _add_status(self) -> None:
        statuses = self._plan.statuses
        codes = sorted(STATUS_CODES[status] for status in statuses)
        along = self._along if self._front == "e" else self._conditions
        if not statuses:
            self._add("nothing")
        elif codes == [DEAD]:
            along.append(self._part("is_dead"))
        elif codes == [CANCELLED]:
            along.append(self._part("is_cancelled"))
        elif codes == [RUNNING] and self._front == "o":
            self._add("is_running")
        elif self._plan.only_ended:
            self._add("has_ended", outcomes=codes)
        elif statuses != EVERY_STATUS:
            stored = [*codes, PARKED] if READY in codes else codes
            condition = "is_open" if self._front == "o" else "is_open_or_ended"
            self._conditions.append(text("list", condition, stored=_listed(stored), shown=_listed(codes)))

    def _add_conditions(self) -> None:
        for name, value in self._plan.conditions.items():
            match name:
                case "workflow" | "key":
                    is_indexed = not self._along
                case "mark":
                    is_indexed = self._front == "e"
                case "killing":
                    is_indexed = self._front == "o"
                case _:
                    is_indexed = False
            value = REASON_CODES[value] if name == "reason" else value
            is_of_dead = name == "release" and self._plan.only_status == "dead"
            part = self._part(f"dead_{name}" if is_of_dead else name, **{name: value})
            (self._along if is_indexed else self._conditions).append(part)

    def _add_bounds(self) -> None:
        after, before, since, until = self._plan.bounds
        if since is not None:
            self._between.append(self._part("since_number", first_at=since))
        if until is not None:
            self._between.append(self._part("until_number", last_at=until))
        if after is not None:
            self._between.append(self._part("after_cursor", cursor=after))
        if before is not None:
            self._between.append(self._part("before_cursor", cursor=before))

    def _tables(self, conditions: Sequence[str]) -> str:
        """The table in front, and those that the conditions name. Every row has one in `item`."""
        named = " ".join(conditions)
        tables = [text("list", TABLES[self._front])]
        for alias, table in TABLES.items():
            if alias != self._front and re.search(rf"\b{alias}\.", named):
                tables.append(text("list", f"join_{table}", front=self._front))
                if self._is_bounded:
                    tables.append(f"and {self._within(alias)}")
        return " ".join(tables)


def _listed(codes: Sequence[int]) -> str:
    return ", ".join(map(str, codes))
