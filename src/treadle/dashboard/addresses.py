"""Addresses: where pages are, names as parts of paths, and ids as they are shown."""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import Final
from urllib.parse import quote, unquote, urlencode

from markupsafe import Markup, escape
from starlette.requests import Request

from treadle.base.ids import check_id, check_name
from treadle.item import DEFAULT_TENANT
from treadle.operate.filters import filter_word

from .access import Access

_INSIDE: Final = re.compile(r"(/(?:[^/?#][^?#]*)?)(?:\?[^#]*)?")
_MADE: Final = re.compile(r"[0-9a-f]{32}")
"""Ids that treadle makes: see `id_generator`."""
_ESCAPED: Final = re.compile(r"[~/\\\\]|^\.{1,2}$")
_SAFE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
"""Most names are the same in a path."""


def segment(name: str) -> str:
    """A name as one part of a path. Slashes are not percent-encoded: servers and proxies decode these before
    they look for the parts. `name_of` reads it."""
    if _SAFE.fullmatch(name):
        return name
    escaped = _ESCAPED.sub(lambda found: "".join(f"~{ord(each):02X}" for each in found[0]), name)
    return quote(escaped, safe="")


def name_of(part: str) -> str:
    """The name that a part of a path stands for."""
    return re.sub(r"~([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), part)


def short_id(id: str) -> str:
    """An id that treadle made, by its end: ids of one time begin alike. Others are shown whole."""
    return f"…{id[-8:]}" if _MADE.fullmatch(id) else id


def chosen_id(id: str, tenant: str | None) -> str:
    """The value of the checkbox of an item: `ID`, or `ID TENANT`. Ids have no blanks."""
    return id if tenant is None else f"{id} {tenant}"


def split_id(value: str) -> tuple[str, str | None]:
    """The id and the tenant that such a value names."""
    id, _, tenant = value.partition(" ")
    return check_id(id), check_name(tenant, "tenant") if tenant else None


@lru_cache(1024)  # the rows of a page have the same few
def _encoded(pairs: tuple[tuple[str, str], ...]) -> str:
    return urlencode(pairs)


class PageAddresses:
    """The address of the page that is asked for, and of others that it links to."""

    request: Request
    access: Access
    tenant: str | None
    """The only tenant that is shown. None: all of them."""

    def part(self, name: str) -> str:
        """A name in the path of this page."""
        return name_of(self.request.path_params[name])

    def query(self, name: str, default: str = "") -> str:
        """A parameter of the URL, without surrounding blanks."""
        return self.request.query_params.get(name, default).strip()

    def url(self, path: str, /, **query: object) -> str:
        """The address of a page here. `path` begins with a slash; names in it are quoted already, or come
        from `segment`. Parameters that are None or empty are left out. The tenant is kept."""
        if not query and self.kept_tenant is None:
            return self.root + path
        given: dict[str, object] = {"tenant": self.kept_tenant, **query}
        pairs = tuple((name, str(value)) for name, value in given.items() if value not in (None, ""))
        return f"{self.root}{path}" + (f"?{_encoded(pairs)}" if pairs else "")

    def item_url(self, id: str, tenant: str | None = None, /, suffix: str = "", **query: object) -> str:
        """The address of an item."""
        of = tenant if self.tenant is None and tenant not in (None, DEFAULT_TENANT) else None
        return self.url(f"/items/{segment(id)}{suffix}", of=of, **query)

    def item_link(self, id: str, tenant: str | None = None) -> Markup:
        """A link to an item. An id that treadle made is shown by its end: the title has all of it."""
        # A page has hundreds: a macro takes four times as long.
        whole, url = escape(id), escape(self.item_url(id, tenant))
        said = escape(short_id(id))
        return Markup(f'<a class="id" href="{url}" data-id="{whole}" title="{whole}">{said}</a>')

    def group_url(self, id: str, tenant: str | None, /, suffix: str = "") -> str:
        """The address of a group. Another tenant may have one with this id."""
        return self.url(f"/groups/{segment(id)}{suffix}", of=self._other(tenant))

    def workflow_url(self, name: str, tenant: str | None, /) -> str:
        """The address of a workflow. Another tenant may have one with this name."""
        return self.url(f"/workflows/{segment(name)}", of=self._other(tenant))

    def filter_of(self, tenant: str | None, /, **words: str) -> str:
        """The filter that finds what has these words: `group="id"`. Names may be those of several tenants, so
        it says whose they are where all are shown."""
        given = {**words, "tenant": self._other(tenant)}
        return " ".join(filter_word(name, value) for name, value in given.items() if value)

    def _other(self, tenant: str | None) -> str | None:
        return tenant if self.tenant is None else None

    def here(self, **query: object) -> str:
        """The address of this page with other parameters. None removes one."""
        given = dict(self.request.query_params.items()) | query
        return self.url(self.path, **given)

    @cached_property
    def root(self) -> str:
        """The path at which the dashboard is mounted, without a slash at the end."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    @cached_property
    def path(self) -> str:
        """The path of this page within the dashboard, quoted as in the URL."""
        path = quote(str(self.request.scope["path"]), safe="/:@")
        root = quote(self.root, safe="/:@")
        return (path.removeprefix(root) if root else path) or "/"

    @cached_property
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

    @cached_property
    def kept_tenant(self) -> str | None:
        """The tenant that addresses and forms must name, to go on showing it."""
        if self.tenant is None or (self.access.tenants is not None and len(self.access.tenants) == 1):
            return None
        return self.tenant
