"""Site: one dashboard: what it shows, to whom, and how pages are made."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeAlias

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

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
from .assets import Assets
from .bulk_runs import BulkRuns
from .cookies import keep
from .forms import read_form
from .kept_reads import KeptReads
from .live import Live
from .menu import menu
from .notices import notice
from .origin import refused_origin
from .view import Elsewhere, Shown, View
from .visit import Visit

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
        self.live = Live(client.backend, server_stop(client))
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
            shown = await self.reads.get(visit.cache_key, lambda: _in_time(view.read(visit)))
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
            **values,
        )
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


def wants_json(request: Request) -> bool:
    """Whether a program asks. Browsers accept HTML."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept
