"""ActionRoute: where a form is sent to, or a page that asks first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from starlette.responses import Response

from treadle.dashboard.access import Action
from treadle.dashboard.visit import Visit


class ActionRoute(NamedTuple):
    method: Literal["GET", "POST"]
    path: str
    """As a route of Starlette: `/items/{id}/requeue`."""
    handle: Callable[[Visit], Awaitable[Response]]
    action: Action
    """The action that it needs. `Visit.acting` asks for it too: that is what protects."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"
