"""Visit: one request of one visitor: what is shown, and which changes are allowed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, unquote, urlencode

from starlette.requests import Request

from treadle.client import Client
from treadle.ids import check_name
from treadle.item import DEFAULT_TENANT

from .access import Access, Action, Forbidden, NotShown

if TYPE_CHECKING:
    from .site import Site

T = TypeVar("T")

READ_SECONDS: Final = 2.0
"""A part of a page that takes longer is left out: the page says so."""


class Visit:
    """One request. `client` is for reading: it is bound to the tenant that is shown, if there is one. Changes
    go through `verbs`, which ask for permission."""

    def __init__(self, site: Site, request: Request, access: Access) -> None:
        self.site = site
        self.request = request
        self.access = access
        self.tenant = self._shown_tenant()
        """The only tenant that is shown. None: all of them."""
        self.client = self.client_of(self.tenant)

    # -- what is shown ---------------------------------------------------------------------------------

    def _shown_tenant(self) -> str | None:
        wanted = self.request.query_params.get("tenant") or None
        if wanted is not None:
            check_name(wanted, field="tenant")
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
        return self.site.client.tenant(tenant)

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

    @property
    def other_tenants(self) -> list[str]:
        """The tenants that the visitor can switch to, if these are few and known."""
        return sorted(self.access.tenants or ())

    def part(self, name: str) -> str:
        """A name in the path of this page."""
        return name_of(self.request.path_params[name])

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the URL, without surrounding blanks."""
        return self.request.query_params.get(name, default).strip()

    # -- links -----------------------------------------------------------------------------------------

    def url(self, path: str, /, **query: object) -> str:
        """The address of a page here. `path` begins with a slash; names in it are quoted already, or come
        from `segment`. Parameters that are None or empty are left out. The tenant is kept."""
        given: dict[str, object] = {"tenant": self.kept_tenant, **query}
        pairs = [(name, str(value)) for name, value in given.items() if value not in (None, "")]
        return f"{self.root}{path}" + (f"?{urlencode(pairs)}" if pairs else "")

    def item_url(self, id: str, tenant: str | None = None, /, suffix: str = "") -> str:
        """The address of an item."""
        of = tenant if self.tenant is None and tenant not in (None, DEFAULT_TENANT) else None
        return self.url(f"/items/{segment(id)}{suffix}", of=of)

    def here(self, **query: object) -> str:
        """The address of this page with other parameters. None removes one."""
        given = dict(self.request.query_params.items()) | query
        return self.url(self.path, **given)

    @property
    def root(self) -> str:
        """The path at which the dashboard is mounted, without a slash at the end."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    @property
    def path(self) -> str:
        """The path of this page within the dashboard, quoted as in the URL."""
        path = quote(str(self.request.scope["path"]), safe="/:@")
        root = quote(self.root, safe="/:@")
        return (path.removeprefix(root) if root else path) or "/"

    @property
    def here_path(self) -> str:
        """The address of this page, from the root of the dashboard on."""
        return self.here(done=None).removeprefix(self.root)

    def inside(self, address: str) -> str | None:
        """The whole address for one from the root of the dashboard on, as `here_path`, which a form has sent.
        None if it leads elsewhere."""
        found = _INSIDE.fullmatch(address)
        plain = address.isascii() and address.isprintable() and "\\" not in address
        if found is None or not plain or ".." in unquote(found[1]).split("/"):
            return None
        return self.root + address

    @property
    def kept_tenant(self) -> str | None:
        """The tenant that addresses and forms must name, to go on showing it."""
        if self.tenant is None or (self.access.tenants is not None and len(self.access.tenants) == 1):
            return None
        return self.tenant

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

    async def in_time(self, read: Awaitable[T]) -> T | None:
        """What a read returns. None if it takes too long."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await read
        except TimeoutError:
            return None

    @property
    def cache_key(self) -> tuple[object, ...]:
        """Two visits with the same key see the same data."""
        tenants = None if self.access.tenants is None else tuple(sorted(self.access.tenants))
        query = tuple(self.request.query_params.multi_items())
        return (self.request.scope["path"], query, self.tenant, tenants, self.access.payloads)

    @property
    def settings(self) -> Mapping[str, str]:
        """How this visitor wants to see pages: `scheme`, `rows`, `zone`."""
        return self.site.settings_of(self.request)


_INSIDE: Final = re.compile(r"(/(?:[^/?#][^?#]*)?)(?:\?[^#]*)?")
_ESCAPED: Final = re.compile(r"[~/\\\\]|^\.{1,2}$")


def segment(name: str) -> str:
    """A name as one part of a path. Slashes are not percent-encoded: servers and proxies decode these before
    they look for the parts. `name_of` reads it."""
    escaped = _ESCAPED.sub(lambda found: "".join(f"~{ord(each):02X}" for each in found[0]), name)
    return quote(escaped, safe="")


def name_of(part: str) -> str:
    """The name that a part of a path stands for."""
    return re.sub(r"~([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), part)
