"""ActionRoute: where a form is sent to, or a page that asks first.

What pages send:
- `GET /act/{verb}` asks first, `POST /act/{verb}` acts (or asks, if it must be asked). The verbs are
  `requeue`, `cancel`, `trigger` and `delete`.
    - `id`, any number of them: the items. The value is `ID`, or `ID TENANT` where several tenants are shown:
      ids have no blanks. See `item_filter.split_id`.
    - `q` in place of ids: the text of a filter, for all items that match it. See `item_filter.parse_filter`.
    - `back`: the page to go to afterwards, as `Visit.here_path` gives it.
- `GET /items/{id}/complete` and `GET /items/{id}/edit` (with `of=` for the tenant) are forms for one item.
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
    action: Action
    """The action that it needs. `Visit.acting` asks for it too: that is what protects."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"
