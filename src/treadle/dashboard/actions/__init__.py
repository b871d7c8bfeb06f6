"""Actions: what a visitor can change. Each is a POST, and most have a page that asks first.

docs/dashboard-programs.md has the addresses and the fields. Besides those, forms of browsers have:
- `back`: the page to go to afterwards, as `Visit.here_path` gives it.
- `of`, also as a parameter of the URL: the tenant of an item where the page shows several. `visit.item_url`
  adds it.
- `id` of /act: see `addresses.split_id`. `q`: see `operate.filters.parse_filter`.
"""

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
    action: Action | None
    """The action that it needs. None: the path says which. `Visit.acting` asks for it too."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    async def answer(self, visit: Visit) -> Response:
        """Carry it out, if it is allowed."""
        if self.action is not None:
            visit.require(self.action)
        response = await self.handle(visit)
        if self.method == "POST" and response.status_code < 400:
            visit.site.changed()
        return response


def post(
    path: str, handle: Callable[[Visit], Awaitable[Response]], action: Action
) -> tuple[ActionRoute, ...]:
    """A form that is sent at once."""
    return (ActionRoute("POST", path, handle, action),)


def asked(
    path: str, handle: Callable[[Visit], Awaitable[Response]], action: Action | None
) -> tuple[ActionRoute, ...]:
    """A page that asks first, and the form on it."""
    return (ActionRoute("GET", path, handle, action), ActionRoute("POST", path, handle, action))
