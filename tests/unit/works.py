"""Works for tests that never run them."""

from __future__ import annotations

from typing import Any

from treadle.define.work import Work
from treadle.handler.context import Context
from treadle.item import Lease


def make_work(id: str, type: str = "test.work") -> Work[Any, Any]:
    """A Work with the given id. Its definition is never used."""
    return Work(id, type, {}, None)  # type: ignore[arg-type]


class AnyServices:
    """The services of a backend that can do everything."""

    def check_nested(self, what: str) -> None:
        """It has nested groups."""


def make_context(**facts: Any) -> Context:
    """The context of the item `self`, without an engine."""
    lease = Lease(
        **{"id": "self", "tenant": "default", "token": 1, "type": "test.flow", "input": b""}
        | {"attempt": 1, "group_id": "root"}
        | facts
    )
    return Context(lease, AnyServices())  # type: ignore[arg-type]
