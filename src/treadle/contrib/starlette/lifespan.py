"""Lifespan: the app lives as long as the web server. And `client`: the client of a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Literal, TypeAlias, overload

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from treadle.app import Treadle
from treadle.base.callables import call, check_callable
from treadle.client import Client
from treadle.errors import InputError
from treadle.operate.filters import check_tenant
from treadle.operate.server_stop import server_stop

WebLifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What `lifespan=` of Starlette and FastAPI takes: it is called with the web app."""


@overload
def lifespan(app: Treadle, *, worker: bool = False, inner: WebLifespan | None = None) -> WebLifespan: ...
@overload
def lifespan(
    app: Client, *, worker: Literal[False] = False, inner: WebLifespan | None = None
) -> WebLifespan: ...
def lifespan(app: Client, *, worker: bool = False, inner: WebLifespan | None = None) -> WebLifespan:
    """Return a lifespan for a web app: `FastAPI(lifespan=lifespan(treadle))`.

    It connects to the store when the server starts: if the store is away, the server does not start. It
    closes the app when the server stops. Streams of events and long polls end when the server is told to
    stop.

    app: the app, or a client.
    worker: also run a worker in this process, on the event loop of the server. Each process of the server
        has one then. When the server stops, handlers have the app's `drain` seconds to end.
    inner: a lifespan of your own, which is entered after the app has connected and left before it closes.
        What it yields is the state of the web app.
    """
    if not isinstance(app, Client):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError.of("app", app, "must be a Treadle app or a Client")
    if worker and not isinstance(app, Treadle):
        raise InputError.of("worker", worker, "needs a Treadle app: a Client has no worker")
    if inner is not None:
        check_callable(inner, "inner")

    @asynccontextmanager
    async def entered(web: Any) -> AsyncGenerator[Any]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(app.stop if isinstance(app, Treadle) else app.close)
            await (app.start() if worker and isinstance(app, Treadle) else app.connect())
            state = None if inner is None else await stack.enter_async_context(inner(web))
            stack.enter_context(server_stop(app).watching())
            yield state

    return entered


TenantOf: TypeAlias = Callable[[HTTPConnection], str | Awaitable[str | None] | None]
"""Returns the tenant of a request, or None: then the request is refused."""
ClientOf: TypeAlias = Callable[[HTTPConnection], Awaitable[Client]]


def client(app: Client, *, tenant: str | TenantOf | None = None) -> ClientOf:
    """Return a function that gives the client of a request: a dependency for FastAPI's `Depends`. Elsewhere,
    `await` it: `jobs = await get_jobs(request)`.

    tenant: the tenant that the client is bound to: a name, or a function of the request, which may be async.
        A request without a tenant (None, or what cannot be a name) is answered with 403. Take it from what
        your authentication has put into the request, not from a header that the caller chooses.
    """
    if tenant is None or isinstance(tenant, str):
        bound = app if tenant is None else app.tenant(tenant)

        async def same_client(request: HTTPConnection) -> Client:
            return bound

        return same_client
    check_callable(tenant, "tenant")

    async def client_of(request: HTTPConnection) -> Client:
        return tenant_client(app, await call(tenant, request))

    return client_of


def tenant_client(app: Client, tenant: object) -> Client:
    """The client of a tenant that belongs to a request. `HTTPException` if it has none."""
    try:
        return app.tenant(check_tenant(tenant))
    except InputError:
        raise HTTPException(403, "this request has no tenant") from None
