"""The dashboard as an ASGI app: its routes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.base.callables import check_callable
from treadle.client import Client
from treadle.errors import InputError

from .access import AccessFn, Forbidden, NotShown
from .actions import ActionRoute, act, asked, edit, enqueue, fleet, item_verbs, post
from .payloads import What, json_text, read_payload
from .site import Site
from .views import (
    View,
    audit,
    bulk,
    dead,
    graphs,
    groups,
    item,
    items,
    limits,
    overview,
    queues,
    schedules,
    tenants,
    types,
    workers,
)
from .visit import Visit

VIEWS: tuple[View, ...] = (
    overview.VIEW,
    items.VIEW,
    item.VIEW,
    dead.MARKS,
    dead.MARK,
    groups.GROUPS,
    groups.WORKFLOWS,
    graphs.GROUP,
    graphs.WORKFLOW,
    queues.VIEW,
    queues.QUEUE_VIEW,
    types.VIEW,
    types.TYPE_VIEW,
    workers.VIEW,
    schedules.VIEW,
    limits.VIEW,
    tenants.VIEW,
    bulk.VIEW,
    bulk.VIEW_ONE,
    audit.VIEW,
)
"""Pages, in the order in which routes are tried."""

ACTION_ROUTES: tuple[ActionRoute, ...] = (
    *post("/items/{id}/requeue", item_verbs.requeue, "requeue"),
    *post("/items/{id}/cancel", item_verbs.cancel, "cancel"),
    *post("/items/{id}/trigger", item_verbs.trigger, "trigger"),
    *post("/items/{id}/hold", item_verbs.hold, "hold"),
    *post("/items/{id}/unhold", item_verbs.unhold, "unhold"),
    *asked("/items/{id}/complete", edit.complete, "complete"),
    *asked("/items/{id}/signal", edit.signal, "signal"),
    *asked("/items/{id}/edit", edit.edit, "edit"),
    *asked("/items/{id}/update", edit.update, "update"),
    *asked("/items/{id}/delete", item_verbs.delete, "delete"),
    *post("/groups/{id}/repair", item_verbs.repair, "requeue"),
    *post("/queues/{queue}/pause", fleet.pause, "pause"),
    *post("/queues/{queue}/resume", fleet.resume, "resume"),
    *post("/orders/pause", fleet.pause, "pause"),
    *post("/orders/resume", fleet.resume, "resume"),
    *post("/orders/set_limit", fleet.set_limit, "set_limit"),
    *post("/orders/clear_limit", fleet.clear_limit, "clear_limit"),
    *post("/schedules/{name}/pause", fleet.pause_schedule, "pause_schedule"),
    *post("/schedules/{name}/resume", fleet.resume_schedule, "resume_schedule"),
    *post("/schedules/{name}/trigger", fleet.trigger_schedule, "trigger_schedule"),
    *asked("/schedules/{name}/cancel", fleet.cancel_schedule, "cancel_schedule"),
    *asked("/workers/{id}/drain", fleet.drain, "drain_worker"),
    *asked("/act/{verb}", act.act, None),
    *post("/bulk/{id}/stop", act.stop, "stop_bulk"),
    *asked("/types/{type}/enqueue", enqueue.enqueue, "enqueue"),
)
"""What visitors can change."""


def dashboard(
    app: Client,
    *,
    access: AccessFn,
    title: str = "treadle",
    links: Mapping[str, str] | None = None,
    mask: Collection[str] = (),
    origins: Collection[str] = (),
) -> Starlette:
    """Return the dashboard of an app as an ASGI app. Mount it in any other, under any path.

    app: the app, or a client of its store. Without the code of the work, inputs are shown as JSON.
    access: `access(request)` returns what a visitor may do: an `Access`, or None for nothing. It may be
        async, and it may return a response, such as a redirect to a login page. There is no default: a
        dashboard is closed.
    title: shown in the head of each page.
    links: addresses elsewhere: `{"trace": "https://traces.example/{trace_id}"}` adds a link to each item that
        has a trace.
    mask: names of further fields whose values are not shown, besides `password`, `token` and the like.
    origins: other origins whose pages may make changes: `https://admin.example`.
    """
    site = make_site(app, access, title=title, links=links, mask=mask, origins=origins)
    return web_of(site)


def web_of(site: Site) -> Starlette:
    """The web app of a site. Every answer has the headers that protect."""
    return Starlette(routes=routes_of(site), middleware=[Middleware(AnswerHeaders)])


def make_site(
    app: Client,
    access: AccessFn,
    *,
    title: str,
    links: Mapping[str, str] | None,
    mask: Collection[str],
    origins: Collection[str],
) -> Site:
    """Check what was given."""
    if not isinstance(app, Client):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError.of("app", app, "must be a Treadle app or a Client")
    check_callable(access, "access")
    if isinstance(mask, str) or isinstance(origins, str):
        raise InputError("mask and origins are lists of texts")
    return Site(app, access, title=title, links=links or {}, mask=mask, origins=origins)


def routes_of(site: Site) -> Sequence[BaseRoute]:
    """All routes: the pages that the store can fill, the actions, the assets."""
    capabilities = site.client.backend.capabilities
    pages = [view for view in VIEWS if view.needs <= capabilities]
    return [
        *(_page_route(site, view) for view in pages),
        *(
            Route(route.path, site.endpoint(route.answer), methods=[route.method], name=route.name)
            for route in ACTION_ROUTES
        ),
        *(
            Route(path, site.endpoint(handle), methods=["GET"], name=path)
            for path, handle in DOWNLOADS.items()
        ),
        Route("/settings", site.endpoint(site.change_setting), methods=["POST"], name="settings"),
        Route("/menu", site.endpoint(_menu), methods=["GET"], name="menu"),
        Route("/live", _live(site), methods=["GET"], name="live"),
        Route("/static/{name}", site.assets.serve, methods=["GET"], name="static"),
        Route("/{rest:path}", site.endpoint(_nothing_there), methods=["GET", "POST"], name="nothing"),
    ]


def _page_route(site: Site, view: View) -> Route:
    return Route(view.path, site.page(view), methods=["GET"], name=view.template)


def _live(site: Site) -> Callable[[Request], Awaitable[Response]]:
    async def answer(visit: Visit) -> Response:
        return await site.live.serve(
            visit.request, visit.access.actor, lambda: site.still_allows(visit.request)
        )

    return site.endpoint(answer)


async def _menu(visit: Visit) -> Response:
    known = "watching" in visit.client.backend.capabilities
    return JSONResponse(await overview.menu_counts(visit) if known else {})


async def _nothing_there(visit: Visit) -> Response:
    raise NotShown("there is no such page")


HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "vary": "cookie, accept, x-fragment",
}


class AnswerHeaders:
    """Adds the headers that an answer does not have."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


async def _download(visit: Visit, what: What) -> Response:
    if not visit.access.payloads:
        raise Forbidden(f"{visit.access.actor} may not see inputs and results")
    id = visit.part("id")
    (state,) = await visit.item_client.get(id)
    if state is None:
        raise NotShown(f"there is no item {id!r}")
    value, _ = read_payload(visit, state, what)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{id}.{what}.json")
    return Response(
        json_text(value).encode("utf-8", "replace"),
        media_type="application/json",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


async def download_input(visit: Visit) -> Response:
    return await _download(visit, "input")


async def download_result(visit: Visit) -> Response:
    return await _download(visit, "result")


DOWNLOADS: Final[Mapping[str, Callable[[Visit], Awaitable[Response]]]] = {
    "/items/{id}/input": download_input,
    "/items/{id}/result": download_result,
}
"""By path, as routes of Starlette."""
