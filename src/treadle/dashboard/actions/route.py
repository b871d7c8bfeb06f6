"""ActionRoute: where a form is sent to, or a page that asks first.

| method | path | fields |
| --- | --- | --- |
| POST | /items/{id}/requeue, /cancel, /trigger | `of`, `back`, `reason` |
| GET, POST | /items/{id}/complete | `value` (JSON), `reason` |
| GET, POST | /items/{id}/edit | `input` (JSON), `key`, `reason` |
| GET, POST | /items/{id}/update | `run_at`, `priority`, `queue`, `lane`, `deadline`, `reason` |
| GET, POST | /items/{id}/delete | `open`, `cascade`, `reason` |
| POST | /groups/{id}/repair | `of`, `back`, `reason` |
| GET, POST | /act/{verb} | `id` (several) or `q`, `reason`, `rate`, `canary`, `open`, `confirmed`, `back` |
| POST | /queues/{queue}/pause, /resume | `back`, `reason` |
| POST | /schedules/{name}/pause, /resume, /trigger | `back`, `reason` |
| GET, POST | /schedules/{name}/cancel | `reason` |
| GET, POST | /workers/{id}/drain | `reason` |
| GET, POST | /types/{type}/enqueue | `input.NAME`, `queue`, `delay`, `key`, `priority`, `lane`, `tenant` |
| POST | /bulk/{id}/stop | `back` |

The verbs of /act are requeue, cancel, trigger and delete. Each form may have a `reason`.
- `of`, also as a parameter of the URL: the tenant of an item where the page shows several. `visit.item_url`
  adds it.
- `back`: the page to go to afterwards, as `Visit.here_path` gives it.
- `id` of /act, any number of them: the items. The value is `ID`, or `ID TENANT` where several tenants are
  shown. See `item_filter.split_id`.
- `q` in place of ids: the text of a filter, for all items that match it. See `item_filter.parse_filter`.
- A POST to /act asks, as a GET does, unless it has `confirmed`. A requeue or trigger of up to 100 ids acts
  at once, and so does a cancel of one.
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
