"""The options of `update`: what can be changed about items that have not started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import TypedDict

from .errors import InputError
from .item import ItemUpdate
from .options import QUEUE_OPTIONS, Check, check_options
from .timing import Instant


class UpdateOptions(TypedDict, total=False):
    """What `update` changes about items that have not started."""

    run_at: Instant
    """Start at the earliest at this instant. One in the past: now."""
    priority: int
    lane: str
    queue: str
    deadline: Instant | None
    """None: no deadline."""


_CHECKS: Final[Mapping[str, Check]] = {
    name: QUEUE_OPTIONS[name] for name in ("run_at", "priority", "lane", "queue", "deadline")
}


def check_update(changes: Mapping[str, Any]) -> ItemUpdate:
    """Return what `update` was given in plain form. None removes a deadline. InputError if nothing is
    given."""
    checked = check_options(changes, "update", _CHECKS)
    given: dict[str, Any] = {
        name: value for name, value in checked.items() if value is not None or name == "deadline"
    }
    if not given:
        raise InputError(
            f"update has nothing to change: give one of {', '.join(_CHECKS)}", parameters=tuple(_CHECKS)
        )
    return ItemUpdate(**given)
