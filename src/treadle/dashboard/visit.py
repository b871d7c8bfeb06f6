"""Visit: one request of one visitor: what is shown, and which changes are allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response

from treadle.backend import placed
from treadle.base.ids import check_name
from treadle.client import Client, bound_to
from treadle.define.secret_values import SecretMask
from treadle.errors import StoreTooSlow
from treadle.item_facts import Overview
from treadle.operate.filters import check_tenant
from treadle.operate.item_json import Values

from .access import Access, Action, Forbidden, NotShown
from .addresses import PageAddresses
from .counting import FullCounts, with_counts
from .live import BulkRuns, KeptReads

T = TypeVar("T")

READ_SECONDS: Final = 2.0
"""A part of a page that takes longer is left out: the page says so."""
COUNT_SECONDS: Final = 1.5
"""For so long a program waits until all is counted. A browser is told when it is."""
REACH: Final = 10_000
"""Items that are looked at for one of a type, or in a queue."""


class VisitedSite(Protocol):
    """The dashboard that is visited: see `site.py`."""

    client: Client
    links: Mapping[str, str]
    secrets: SecretMask
    bulk_runs: BulkRuns
    names: KeptReads
    looks: KeptReads
    full_counts: FullCounts

    def now(self) -> float:
        """The store's clock, as far as it is known."""
        ...

    def changed(self) -> None:
        """Something was changed here: read it anew, and tell open pages."""
        ...

    def settings_of(self, request: Request) -> Mapping[str, str]:
        """How a visitor wants to see pages."""
        ...

    def render(
        self, visit: Visit, template: str, *, status: int = 200, section: str | None, **values: Any
    ) -> Response:
        """A page, or only its main part if the request asks for that."""
        ...


def wants_json(request: Request) -> bool:
    """Whether a program asks. Browsers accept HTML."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


class Visit(PageAddresses):
    """One request. `client` is for reading: it is bound to the tenant that is shown, if there is one. Changes
    go through `acting`, which asks for permission."""

    def __init__(self, site: VisitedSite, request: Request, access: Access) -> None:
        self.site = site
        self.request = request
        self.access = access
        self.tenant = self._shown_tenant()
        self.client = self.client_of(self.tenant)
        self.missing = set[str]()
        """Stores that did not answer, and are left out."""

    # -- what is shown ---------------------------------------------------------------------------------

    def _shown_tenant(self) -> str | None:
        wanted = self.request.query_params.get("tenant") or None
        if wanted is not None:
            check_tenant(wanted)
            if not self.access.shows(wanted):
                raise NotShown(f"there is no tenant {wanted!r}")
            return wanted
        return None if self.access.tenants is None else sorted(self.access.tenants)[0]

    def client_of(self, tenant: str | None) -> Client:
        """A client to read with, of one tenant or of all. `NotShown` if the visitor may not see it."""
        if tenant is None:
            if self.access.tenants is not None:
                raise NotShown("only single tenants are shown")
            return self.site.client
        if not self.access.shows(tenant):
            raise NotShown(f"there is no tenant {tenant!r}")
        return bound_to(self.site.client, tenant)

    @property
    def item_client(self) -> Client:
        """The client for the item of a page: `?of=` names the tenant of the item. Without it, that of the
        visit."""
        of = self.request.query_params.get("of")
        if of and self.tenant is None:
            return self.client_of(check_name(of, field="of"))
        return self.client

    @property
    def sees_fleet(self) -> bool:
        """Whether pages about the whole fleet are shown."""
        return self.access.tenants is None and self.tenant is None

    @cached_property
    def stores(self) -> Sequence[str]:
        """The names of the stores, if there are several, for visitors of all tenants."""
        several = placed(self.site.client.backend)
        return list(several.backends) if several is not None and self.access.tenants is None else ()

    @cached_property
    def store(self) -> str | None:
        """The store whose part is shown: `?store=`. None: all."""
        name = self.request.query_params.get("store") or None
        if name is not None and name not in self.stores:
            raise NotShown(f"there is no store {name!r}")
        return name

    @property
    def left_out(self) -> Sequence[str] | None:
        """The stores that a page says to be left out. Without their names for visitors of single tenants.
        None: there are none."""
        if self.access.tenants is not None:
            return () if self.missing else None
        return sorted(self.missing.union(self.client.stores_away if self.sees_fleet else ())) or None

    @property
    def other_tenants(self) -> list[str]:
        """The tenants that the visitor can switch to, if these are few and known."""
        return sorted(self.access.tenants or ())

    # -- changes ---------------------------------------------------------------------------------------

    def can(self, action: Action) -> bool:
        """Whether to offer an action."""
        return self.access.allows(action)

    def require(self, action: Action) -> None:
        """`Forbidden` if an action is not allowed."""
        if not self.access.allows(action):
            raise Forbidden(f"{self.access.actor} may not {action.replace('_', ' ')}")

    def acting(self, action: Action, *, tenant: str | None = None, reason: str = "") -> Client:
        """A client to carry out one action with: its changes are noted. `Forbidden` if it is not allowed.

        tenant: the tenant of what is changed, where the page shows several. `NotShown` if another is shown.
        """
        self.require(action)
        if tenant is not None and self.tenant not in (None, tenant):
            raise NotShown(f"there is no tenant {tenant!r}")
        client = self.client if tenant is None else self.client_of(tenant)
        return client.by(self.access.actor, reason=reason, address=self.address)

    @property
    def address(self) -> str:
        """Where the request comes from, as far as the server knows."""
        return self.request.client.host if self.request.client else ""

    # -- reading ---------------------------------------------------------------------------------------

    @cached_property
    def values(self) -> Values:
        """What items and groups hold: see `app.values`."""
        return self.client.values

    async def overview(self) -> Overview:
        """How the store stands, as the visitor may see it. It counts for some hundredths of a second, or only
        what there is little of, if all was counted in the last seconds. What is beyond was counted then, or
        is estimated and says so. Pages that are read at the same time share it."""
        if self.store is not None:
            return await self._look(brief=False)
        full_counts = self.site.full_counts
        brief = full_counts.fresh is not None
        found = await self._look(brief=brief)
        if not any(each.estimated for each in found.counts):
            return found
        full = await full_counts.get(COUNT_SECONDS if wants_json(self.request) else 0.0)
        if full is None:
            return await self._look(brief=False) if brief else found
        return with_counts(found, full, self.tenant)

    async def _look(self, *, brief: bool) -> Overview:
        def read() -> Awaitable[Overview]:
            return self.client.overview(quick=True, brief=brief, store=self.store)

        return cast("Overview", await self.site.looks.get((self.tenant, self.store, brief), read))

    async def in_time(self, read: Awaitable[T]) -> T | None:
        """What a read returns. None if it takes too long."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await read
        except (TimeoutError, StoreTooSlow):
            return None

    async def uses(self, *, type: str | None = None, queue: str | None = None) -> bool:
        """Whether there are items of a type, or in a queue, that are shown. Ended ones count too."""
        reach = REACH if "watching" in self.client.backend.capabilities else None
        page = await self.in_time(self.client.list(type=type, queue=queue, limit=1, reach=reach))
        return page is not None and bool(page.items)

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Two visits with the same key see the same data."""
        tenants = None if self.access.tenants is None else tuple(sorted(self.access.tenants))
        query = tuple(self.request.query_params.multi_items())
        path, by_program = self.request.scope["path"], wants_json(self.request)
        return (path, by_program, query, self.tenant, tenants, self.access.payloads)

    @property
    def settings(self) -> Mapping[str, str]:
        """How this visitor wants to see pages: `scheme`, `rows`, `zone`."""
        return self.site.settings_of(self.request)
