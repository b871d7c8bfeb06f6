"""Works for tests that look at what is said about works, not at what they do."""

from __future__ import annotations

from typing import Any

from treadle.context import Context
from treadle.item import Lease
from treadle.work import Work


def make_work(id: str, type: str = "test.work") -> Work[Any, Any]:
    """A Work with a given id. Nothing here asks for its definition."""
    return Work(id, type, {}, None)  # type: ignore[arg-type]


def make_context(**facts: Any) -> Context:
    """The context of the item `self`, without an engine behind it."""
    lease = Lease(
        **{"id": "self", "tenant": "default", "token": 1, "type": "test.flow", "input": b""}
        | {"attempt": 1, "group_id": "root"}
        | facts
    )
    return Context(lease, None)  # type: ignore[arg-type]
