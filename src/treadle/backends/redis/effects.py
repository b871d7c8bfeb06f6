"""Effects as scripts answer them: see `Effects.answer` in effects.lua."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from treadle.item import Effects, EndedGroup, ReleasedItem

from .item_bytes import read_extra, read_kind

NO_EFFECTS: Final = Effects()


def read_effects(answer: Sequence[Any]) -> Effects:
    released, ended_groups, doomed = answer
    if not released and not ended_groups and not doomed:
        return NO_EFFECTS
    return Effects(
        tuple(_released(*each) for each in released),
        tuple(_ended_group(*each) for each in ended_groups),
        doomed,
    )


def _released(id: bytes, kind: bytes, extra: bytes) -> ReleasedItem:
    names, rest, name = read_kind(kind), read_extra(extra), id.decode()
    return ReleasedItem(name, names.tenant, names.type, rest.g or name, names.queue, rest.p, rest.a)


def _ended_group(id: bytes, tenant: bytes, type: bytes, failed: int, value: bytes | None) -> EndedGroup:
    return EndedGroup(id.decode(), tenant.decode(), value, type.decode(), failed)


def joined_effects(parts: Iterable[Effects]) -> Effects:
    """The effects of several scripts that are one call."""
    found = [part for part in parts if part is not NO_EFFECTS]
    if len(found) <= 1:
        return found[0] if found else NO_EFFECTS
    return Effects(
        tuple(each for part in found for each in part.released),
        tuple(each for part in found for each in part.ended_groups),
        sum(part.doomed for part in found),
    )
