"""Where: conditions on what is inside items, such as `input.user_id=42`. The store does not read inputs, so
items are read here, one after the other, up to a bound."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from treadle.engine.registry import Registry
from treadle.errors import InputError
from treadle.item import Filter, ItemState
from treadle.item_json import item_json

from .shell import Shell

_CONDITION = re.compile(r"\s*([A-Za-z_][\w.\[\]-]*?)\s*(!=|>=|<=|=|>|<|~)\s*(.*)", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_FIELDS: Final = frozenset(ItemState.__struct_fields__) - {"options", "history", "waiting_for"}
_MISSING: Final = object()


class WhereCondition(NamedTuple):
    """One condition: a path, an operator and a value."""

    path: tuple[str | int, ...]
    operator: str
    text: str
    value: Any
    """The text as JSON, if it is JSON."""

    def holds(self, item: Mapping[str, Any]) -> bool:
        found = _at(item, self.path)
        if self.operator == "!=":
            return found is _MISSING or not self._equals(found)
        if found is _MISSING:
            return False
        if self.operator == "=":
            return self._equals(found)
        if self.operator == "~":
            return self.text in (found if isinstance(found, str) else msgspec.json.encode(found).decode())
        try:
            return bool(_ORDER[self.operator](found, self.value))
        except TypeError:
            return isinstance(found, str) and bool(_ORDER[self.operator](found, self.text))

    def _equals(self, found: object) -> bool:
        # 42 is the number and the text "42"; true is not 1.
        if isinstance(found, str):
            return found in (self.text, self.value)
        return (type(found) is type(self.value) and found == self.value) or (
            _is_number(found) and _is_number(self.value) and found == self.value
        )


_ORDER: Final[dict[str, Callable[[Any, Any], Any]]] = {
    ">": lambda found, value: found > value,
    "<": lambda found, value: found < value,
    ">=": lambda found, value: found >= value,
    "<=": lambda found, value: found <= value,
}


def read_condition(text: str) -> WhereCondition:
    """Read `input.user_id=42`. InputError says what is wrong."""
    parts = _CONDITION.fullmatch(text)
    if parts is None:
        raise InputError.of("--where", text, "is no condition: write 'input.user_id=42' (or != < <= > >= ~)")
    path = tuple(name or int(index) for name, index in _STEP.findall(parts[1]))
    if not path or path[0] not in _FIELDS:
        known = "input.NAME, result.NAME, headers.NAME, error, lane, worker, priority"
        raise InputError.of("--where", text, f"names no field of items: use {known}, ...")
    try:
        value = msgspec.json.decode(parts[3].encode("utf-8", "replace"))
    except msgspec.DecodeError:
        value = parts[3]
    return WhereCondition(path, parts[2], parts[3], value)


class Found(NamedTuple):
    """What a walk found."""

    items: list[ItemState]
    looked_at: int
    last: ItemState | None
    """The last item that was looked at."""
    cursor: str | None
    """Where to go on. None: everything was looked at."""


async def find(
    shell: Shell,
    where: Filter,
    conditions: Sequence[WhereCondition],
    *,
    limit: int,
    scan: int,
    cursor: str | None,
    oldest_first: bool = False,
) -> Found:
    """Return up to `limit` items for which all conditions hold, among the next `scan` items."""
    items: list[ItemState] = []
    looked_at, last = 0, None
    while True:
        size = min(limit if not conditions else 500, scan - looked_at, 1000)
        page = await shell.backend.list(where, limit=size, cursor=cursor, oldest_first=oldest_first)
        for index, item in enumerate(page.items, 1):
            looked_at, last = looked_at + 1, item
            if not conditions or matches(shell.registry, item, conditions):
                items.append(item)
            if len(items) == limit and index < len(page.items):
                # The same page, cut here: its cursor goes on after this item.
                cut = await shell.backend.list(where, limit=index, cursor=cursor, oldest_first=oldest_first)
                return Found(items, looked_at, last, cut.cursor)
        cursor = page.cursor
        if cursor is None or looked_at >= scan or len(items) >= limit:
            return Found(items, looked_at, last, cursor)


def matches(registry: Registry, item: ItemState, conditions: Sequence[WhereCondition]) -> bool:
    fields = item_json(registry, item, reveal=True)
    return all(condition.holds(fields) for condition in conditions)


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        value = _inside(value, step)
    return value


def _inside(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(str(step), _MISSING)
    if isinstance(value, list) and isinstance(step, int):
        values = cast("Sequence[Any]", value)
        return values[step] if step < len(values) else _MISSING
    return _MISSING


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
