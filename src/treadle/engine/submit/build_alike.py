"""Build the items of works that differ only in their ids and inputs, as most of those that are submitted
together do. What is the same for all is looked up once."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import astuple

from treadle.codec import check_size
from treadle.define.work import Work
from treadle.define.work_type import arguments_of
from treadle.engine.registry import AnyType
from treadle.engine.settings import Settings
from treadle.item import Item

_DEFAULTS: Final = astuple(Item("", "", b""))[4:]
_input: Final = attrgetter("input")
_options: Final = attrgetter("options")


def usual_fields(item: Item) -> tuple[Any, ...]:
    """The fields of an item after its tenant, without those at the end that have their defaults: with them,
    making an item takes a third longer."""
    fields = astuple(item)[4:]
    count = len(fields)
    while count and fields[count - 1] == _DEFAULTS[count - 1]:
        count -= 1
    return fields[:count]


def build_alike(
    works: Sequence[Work[Any, Any]], type: AnyType, settings: Settings, tenant: str, fields: tuple[Any, ...]
) -> tuple[Item, ...] | None:
    """Build the items of works of this type, all with these `usual_fields`. None if a work has another
    type."""
    name, definition = works[0].type, works[0].definition
    encode, codec = arguments_of(type).encode, type.options.get("codec", settings.codec)
    limit = settings.max_payload
    items: list[Item] = []
    for id, called, input, defined in map(astuple, works):  # attributes of a Work take three times as long
        if defined is not definition or called != name:
            return None
        data = encode(input, codec)
        if data.__class__ is not bytes or len(data) > limit:
            check_size(data, limit, "the input of", name)
        items.append(Item(id, name, data, tenant, *fields))
    return tuple(items)


def total_bytes(items: Sequence[Item], *, alike: bool) -> int:
    """The bytes of all inputs and options. alike: the options are the same."""
    inputs = sum(map(len, map(_input, items)))
    return inputs + (len(items) * len(items[0].options) if alike else sum(map(len, map(_options, items))))
