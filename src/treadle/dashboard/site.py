"""Site: one dashboard: what it shows, to whom, and how pages are made."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from treadle.backend import missing_stores
from treadle.base.wording import one_line
from treadle.client import Client
from treadle.define.secret_values import SecretMask
from treadle.errors import (
    AccessDenied,
    ConflictError,
    DecodeError,
    InputError,
    NotFound,
    PayloadError,
    ScheduleError,
    StoreTooSlow,
    StoreUnavailable,
    TreadleError,
    UnknownWorkError,
    UnsupportedError,
)
from treadle.logs.lines import ERROR, error_text, log_line, traceback_of
from treadle.operate.operator import tenant_of
from treadle.operate.server_stop import server_stop

from . import template_filters
from .access import Access, AccessFn, Forbidden, NotShown
from .cell_labels import with_labels
from .counting import FullCounts
from .forms import read_form
from .live import BulkRuns, KeptReads, Live
from .notices import keep, notice
from .views import Elsewhere, Section, Shown, View
from .visit import Visit, wants_json

Handler: TypeAlias = Callable[[Visit], Awaitable[Response]]
KEPT_NAMES: Final = 20.0
"""Seconds."""
PAGE_SECONDS: Final = 10.0
"""A page that takes longer to read is not shown. Its slow parts are left out before: see `Visit.in_time`."""
SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "scheme": ("auto", "light", "dark"),
    "rows": ("dense", "wide"),
    "zone": ("local", "utc"),
}
"""How pages look: the choices, the default first. Each is kept in a cookie."""
ERROR_STATUSES: Final[tuple[tuple[type[TreadleError], int], ...]] = (
    (Forbidden, 403),
    (NotShown, 404),
    (NotFound, 404),
    (ConflictError, 409),
    (ScheduleError, 409),
    (InputError, 400),
    (PayloadError, 400),
    (UnknownWorkError, 409),
    (UnsupportedError, 501),
    (AccessDenied, 503),
    (StoreUnavailable, 503),
)
UNEXPECTED: Final = "something went wrong here: the log of the server says what"


def status_of(error: TreadleError) -> int:
    """The status with which an error is answered."""
    return next((status for kind, status in ERROR_STATUSES if isinstance(error, kind)), 500)


class Site:
    """One dashboard.

    client: the app or client whose store is shown.
    access: says what a visitor may do.
    title: shown in the head of each page.
    links: addresses elsewhere, by name: `{"trace": "https://traces.example/{trace_id}"}`.
    mask: further names of fields whose values are not shown.
    origins: other origins whose pages may make changes: `https://admin.example`.
    """

    def __init__(
        self,
        client: Client,
        access: AccessFn,
        *,
        title: str,
        links: Mapping[str, str],
        mask: Collection[str],
        origins: Collection[str],
    ) -> None:
        self.client = client
        self.access = access
        self.title = title
        self.links = links
        self.secrets = SecretMask(mask)
        self.origins = frozenset(origins)
        self.assets = Assets()
        self.reads = KeptReads()
        self.names = KeptReads(seconds=KEPT_NAMES)
        """What filters are completed with: it need not be new."""
        self.looks = KeptReads(seconds=0.0)
        """Overviews by tenant, while they are read."""
        self.live = Live(client.backend, server_stop(client))
        self.full_counts = FullCounts(client, self._counted)
        self.bulk_runs = BulkRuns(client)
        self._templates = Environment(
            loader=PackageLoader("treadle.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        template_filters.add_to(self._templates, self.now)

    def now(self) -> float:
        """The store's clock, as far as it is known."""
        return self.client.store_clock.now()

    # -- requests --------------------------------------------------------------------------------------

    def page(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a page."""

        async def answer(visit: Visit) -> Response:
            if view.of_fleet and not visit.sees_fleet:
                raise NotShown("there is no such page")

            async def read() -> tuple[Shown, set[str]]:
                if wants_json(visit.request):
                    return await _in_time(view.read(visit)), set[str]()
                with missing_stores() as missing:
                    return await _in_time(view.read(visit)), missing

            shown, missing = cast("tuple[Shown, set[str]]", await self.reads.get(visit.cache_key, read))
            visit.missing |= missing
            if isinstance(shown, Elsewhere):
                return RedirectResponse(shown.url, 303)
            status = 400 if getattr(shown, "wrong", "") else 200
            if wants_json(visit.request):
                content = view.to_json(visit, shown)
                return Response(
                    msgspec.json.encode(content, enc_hook=str), status, media_type="application/json"
                )
            return self.render(visit, view.template, status=status, section=view.section, page=shown)

        return self.endpoint(answer)

    def endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that asks for access first, and answers errors with a page."""

        async def answer(request: Request) -> Response:
            try:
                reason = refused_origin(request, self.origins)
                if reason is not None:
                    return self._refusal(request, f"this request was refused: {reason}")
                return await self._answer(request, handler)
            except TreadleError as error:
                return await self._error(request, None, error)
            except Exception as error:  # noqa: BLE001  a bug must not show its message to a visitor
                return self._failure(request, error)

        return answer

    async def _answer(self, request: Request, handler: Handler) -> Response:
        try:
            access = await self._access_of(request)
        except Exception as error:  # noqa: BLE001  it is a function of the user
            return self._failure(request, error)
        if isinstance(access, Response):
            return access
        visit = Visit(self, request, access)
        try:
            await self.client.connect()
            await self.client.store_clock.refresh()
            if request.method == "POST" or wants_json(request):
                if self.client.stores_away and wants_json(request):
                    raise StoreUnavailable(f"did not answer: {', '.join(self.client.stores_away)}")
                return await handler(visit)
            with missing_stores() as visit.missing:
                return await handler(visit)
        except TreadleError as error:
            return await self._error(request, visit, error)

    async def _access_of(self, request: Request) -> Access | Response:
        answered = self.access(request)
        access = await answered if isawaitable(answered) else answered
        if isinstance(access, Response):
            return access
        if access is None:
            return self._refusal(request, "you have no access to this dashboard")
        if not isinstance(access, Access):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the access function must return an Access or None, and returned {access!r}")
        bound = tenant_of(self.client)
        if bound is None:
            return access
        if not access.shows(bound):
            return self._refusal(request, "you have no access to this dashboard")
        return msgspec.structs.replace(access, tenants=(bound,))

    async def still_allows(self, request: Request) -> bool:
        """Whether the visitor who made a request a while ago has access now."""
        try:
            return isinstance(await self._access_of(request), Access)
        except Exception:  # noqa: BLE001  it is a function of the user: the next request shows the error
            return False

    def changed(self) -> None:
        """Something was changed here: read it anew, and tell open pages."""
        self.reads.forget()
        self.looks.forget()
        self.full_counts.forget()
        self.live.changed()

    def _counted(self) -> None:
        """Pages that showed estimates have numbers now."""
        self.reads.forget()
        self.live.changed()

    def _refusal(self, request: Request, message: str) -> Response:
        return self._message(request, "Forbidden", message, 403)

    def _failure(self, request: Request, error: Exception) -> Response:
        """What a visitor is told of an unexpected error: the log has the rest."""
        what = f"the dashboard could not answer {request.method} {request.url.path}"
        log_line(ERROR, one_line(f"{what}: {error_text(error)}"), error=error, trace=traceback_of(error))
        return self._message(request, "ServerError", UNEXPECTED, 500)

    async def _error(self, request: Request, visit: Visit | None, error: TreadleError) -> Response:
        status = status_of(error)
        message = one_line(str(error), 2000)
        if (
            visit is not None
            and not visit.access.payloads
            and (status == 500 or isinstance(error, DecodeError))
        ):
            message = UNEXPECTED  # it may quote a payload
        if visit is None or wants_json(request):
            return self._message(request, type(error).__name__, message, status)
        away = status == 503
        sent = [] if request.method != "POST" or not away else await self._sent(request)
        return self.render(
            visit,
            "error.html",
            status=status,
            section=None,
            message=message,
            code=status,
            sent=sent,
            back=visit.inside(dict(sent).get("back", "")),
            live=away and request.method == "GET",
        )

    async def _sent(self, request: Request) -> list[tuple[str, str]]:
        """The fields of a form that could not be answered: a visitor can send them again."""
        try:
            return (await read_form(request)).pairs
        except InputError:
            return []

    def _message(self, request: Request, error: str, message: str, status: int) -> Response:
        """An answer without the frame of a page."""
        if wants_json(request):
            return JSONResponse({"error": error, "message": message}, status)
        text = self._templates.get_template("refused.html").render(self._frame(request), message=message)
        return HTMLResponse(text.encode("utf-8", "replace"), status)

    # -- pages -----------------------------------------------------------------------------------------

    def render(
        self, visit: Visit, template: str, *, status: int = 200, section: str | None, **values: Any
    ) -> Response:
        """A page, or only its main part if the request asks for that."""
        request = visit.request
        fragment = request.headers.get("x-fragment") == "main"
        text = self._templates.get_template(template).render(
            self._frame(request),
            visit=visit,
            section=section,
            menu=menu(visit),
            fragment=fragment,
            notice=notice(visit),
            left_out=visit.left_out,
            **values,
        )
        text = with_labels(text)
        tag = f'"{hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:20]}"'
        if status == 200 and request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return HTMLResponse(text.encode("utf-8", "replace"), status, headers={"etag": tag})

    def _frame(self, request: Request) -> dict[str, Any]:
        root = str(request.scope.get("root_path", "")).rstrip("/")
        return {
            "title": self.title,
            "root": root,
            "settings": self.settings_of(request),
            "asset": partial(self._asset, root),
        }

    def _asset(self, root: str, name: str) -> str:
        return f"{root}/static/{self.assets.names[name]}"

    def settings_of(self, request: Request) -> dict[str, str]:
        """How a visitor wants to see pages."""
        found = {name: request.cookies.get(f"treadle_{name}", "") for name in SETTINGS}
        return {
            name: found[name] if found[name] in allowed else allowed[0] for name, allowed in SETTINGS.items()
        }

    async def change_setting(self, visit: Visit) -> Response:
        """Keep how a visitor wants to see pages, in a cookie, and go back."""
        form = await read_form(visit.request)
        response = RedirectResponse(visit.inside(form.get("back")) or visit.url("/"), 303)
        for name, allowed in SETTINGS.items():
            chosen = form.get(name)
            if chosen in allowed:
                keep(visit, response, f"treadle_{name}", chosen, seconds=365 * 86_400)
        return response


async def _in_time(read: Awaitable[Shown]) -> Shown:
    """What a page shows. `StoreTooSlow` if that takes too long: what it cannot do without."""
    try:
        async with asyncio.timeout(PAGE_SECONDS):
            return await read
    except TimeoutError as error:
        raise StoreTooSlow(f"the store did not answer within {PAGE_SECONDS:g} s: try again") from error


FOLDER: Final = Path(__file__).parent / "static"
MEDIA_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Assets:
    """The files of the folder `static`. They hold nothing that is secret, so they need no access."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}
        self.names: dict[str, str] = {}
        """By the name of a file: the name under which it is served."""
        for path in sorted(FOLDER.iterdir()):
            media_type = MEDIA_TYPES.get(path.suffix)
            if media_type is not None:
                content = path.read_bytes()
                digest = hashlib.sha256(content).hexdigest()[:12]
                name = f"{path.stem}-{digest}{path.suffix}"
                self._files[name] = (content, media_type)
                self.names[path.name] = name

    async def serve(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        if found is None:
            return Response("there is no such file\n", 404, media_type="text/plain")
        content, media_type = found
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(content, headers=headers, media_type=media_type)


class MenuEntry(NamedTuple):
    section: Section
    title: str
    path: str
    key: str
    """After `g`, this key goes there."""
    of_fleet: bool = False
    needs: frozenset[str] = frozenset(("listing", "watching"))


ENTRIES: Final = (
    MenuEntry("overview", "Overview", "/", "o"),
    MenuEntry("items", "Items", "/items", "i"),
    MenuEntry("dead", "Dead letters", "/dead", "d"),
    MenuEntry("groups", "Groups", "/groups", "g"),
    MenuEntry("queues", "Queues", "/queues", "q"),
    MenuEntry("types", "Types", "/types", "t"),
    MenuEntry("workers", "Workers", "/workers", "w", of_fleet=True),
    MenuEntry("schedules", "Schedules", "/schedules", "s", of_fleet=True, needs=frozenset(("schedules",))),
    MenuEntry("limits", "Limits", "/limits", "l"),
    MenuEntry("tenants", "Tenants", "/tenants", "n", of_fleet=True),
    MenuEntry("bulk", "Bulk actions", "/bulk", "b", needs=frozenset(("recording",))),
    MenuEntry("audit", "Audit", "/audit", "a", needs=frozenset(("recording",))),
)


class MenuLink(NamedTuple):
    section: str
    title: str
    url: str
    key: str


def menu(visit: Visit) -> list[MenuLink]:
    """The entries that this visitor sees, as links."""
    capabilities = visit.site.client.backend.capabilities
    return [
        MenuLink(entry.section, entry.title, visit.url(entry.path), entry.key)
        for entry in ENTRIES
        if entry.needs <= capabilities and (visit.sees_fleet or not entry.of_fleet)
    ]


SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
BY_BROWSERS = ("basic", "digest", "negotiate", "ntlm")
"""Schemes of `Authorization` that browsers send by themselves, also to another site."""


def refused_origin(request: Request, origins: Collection[str]) -> str | None:
    """Why a request may not change anything: it was made by a page of another site. None: it may.

    Browsers say with `Sec-Fetch-Site`, or at least with `Origin`, which page made a request. There is no
    session and no token in forms that could expire.

    origins: others from which it may be made: `https://admin.example`.
    """
    if request.method in SAFE_METHODS:
        return None
    headers = request.headers
    origin = headers.get("origin")
    if origin is not None and origin in origins:
        return None
    site = headers.get("sec-fetch-site")
    if site is not None:
        return None if site in ("same-origin", "none") else f"it was made by another site ({site})"
    if origin is not None:
        if _is_own(origin, request):
            return None
        return "it was made by a page of another origin"
    if _has_token(headers):
        return None
    return "it does not say which page made it: send Sec-Fetch-Site: none, an Origin, or a bearer token"


def _is_own(origin: str, request: Request) -> bool:
    """Whether it is the origin of the dashboard itself. A proxy may speak TLS to browsers, and not here."""
    scheme, _, host = origin.partition("://")
    schemes = ("http", "https") if request.url.scheme == "http" else ("https",)
    return scheme in schemes and bool(host) and host == request.headers.get("host")


def _has_token(headers: Mapping[str, str]) -> bool:
    """Whether a request has a header that a browser does not send by itself."""
    scheme = headers.get("authorization", "").partition(" ")[0].lower()
    return "x-api-key" in headers or (bool(scheme) and scheme not in BY_BROWSERS)
