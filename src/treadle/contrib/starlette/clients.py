"""Clients: the client of a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from treadle.base.callables import call, check_callable
from treadle.client import Client
from treadle.errors import InputError
from treadle.operate.filters import check_tenant

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
