"""WorkAccess: what a caller of the work router may see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.item import ItemState
from treadle.operate.filters import check_tenant


class WorkAccess(msgspec.Struct, frozen=True):
    """What a caller may see. Everything else does not exist for the caller: the answer is 404.

    tenant: the tenant whose items are shown. None: those of all tenants, for an app that has none.
    allows: called with each item before it is shown. False: it is not shown. Without it, all items of the
        tenant are. `lambda item: item.headers.get("user") == user.id` shows users their own.
    results: whether results and the values of groups are shown. Secrets in them are `***`, and so are whole
        results of types that the app does not know.
    errors: whether the class and the message of the last error are shown. They may quote what was
        processed.
    """

    tenant: str | None
    allows: Callable[[ItemState], bool] | None = None
    results: bool = True
    errors: bool = False

    def __post_init__(self) -> None:
        if self.tenant is not None:
            check_tenant(self.tenant)


WorkAccessAnswer: TypeAlias = WorkAccess | Response | None
WorkAccessFn: TypeAlias = Callable[[Request], WorkAccessAnswer | Awaitable[WorkAccessAnswer]]
"""Says what a caller may see. None: nothing, which is answered with 403. A response is sent as it is."""
