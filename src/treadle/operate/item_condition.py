"""Conditions on what is inside items, such as `input.user_id=42`. Items are read as JSON to look."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from treadle.errors import InputError
from treadle.item import ItemState

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
    found = make_condition(parts[1], parts[2], parts[3])
    if not found.path or found.path[0] not in _FIELDS:
        known = "input.NAME, result.NAME, headers.NAME, error, lane, worker, priority"
        raise InputError.of("--where", text, f"names no field of items: use {known}, ...")
    return found


def make_condition(path: str, operator: str, text: str) -> WhereCondition:
    """A condition of its parts: `input.lines[0].sku`, `=`, `17`."""
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except msgspec.DecodeError:
        value = text
    steps = tuple(name or int(index) for name, index in _STEP.findall(path))
    return WhereCondition(steps, operator, text, value)


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
