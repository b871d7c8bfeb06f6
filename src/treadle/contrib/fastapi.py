"""Treadle in FastAPI: `treadle.contrib.starlette`, with dependencies of FastAPI, and shown in OpenAPI.

    treadle = Treadle("postgresql://...", work=[send])
    app = FastAPI(lifespan=lifespan(treadle))
    Jobs = Annotated[Client, Depends(client(treadle, tenant=current_org))]

    @app.post("/signup", status_code=202)
    async def signup(user: User, jobs: Jobs) -> Accepted:
        return accepted(await jobs.enqueue(send(user.email)))

    app.include_router(work_router(treadle, access=access), prefix="/work")

`current_org` and `access` are dependencies: they may ask for others. See docs/fastapi.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, Final

if find_spec("fastapi") is None:
    raise ImportError(
        "treadle.contrib.fastapi needs fastapi: pip install fastapi 'treadle[web]'", name="fastapi"
    )

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from treadle.base.callables import check_callable
from treadle.base.timing import Duration
from treadle.client import Client
from treadle.contrib.starlette import (
    Accepted,
    AcceptedResponse,
    AcceptedWork,
    WorkAccess,
    WorkDeath,
    WorkGroup,
    WorkProgress,
    WorkState,
    accepted,
    lifespan,
)
from treadle.contrib.starlette.lifespan import tenant_client
from treadle.contrib.starlette.work_router import EventStream, SignalNames, WorkAnswers

__all__ = [
    "Accepted",
    "AcceptedResponse",
    "AcceptedWork",
    "WorkAccess",
    "WorkDeath",
    "WorkGroup",
    "WorkProgress",
    "WorkState",
    "accepted",
    "client",
    "lifespan",
    "work_router",
]


def _refusal(description: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    403: _refusal("No access"),
    404: _refusal("There is no such work, or the caller may not see it"),
    503: _refusal("It cannot be answered now"),
}
SIGNAL_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    **REFUSALS,
    200: {"description": "A signal of this name with this key was sent before"},
    202: {"description": "The signal is stored"},
    409: _refusal("The work has ended"),
    413: _refusal("The value is too large"),
    415: _refusal("The value is not sent as JSON"),
    422: _refusal("The value is not of the type of the signal"),
    429: _refusal("Too many signals wait for the work"),
}
SIGNAL_BODY: Final[dict[str, Any]] = {
    "requestBody": {"content": {"application/json": {"schema": {}}}},
    "parameters": [{"name": "Idempotency-Key", "in": "header", "schema": {"type": "string"}}],
}


def client(
    app: Client, *, tenant: str | Callable[..., Any] | None = None
) -> Callable[..., Awaitable[Client]]:
    """Return a dependency that gives the client of a request: `Annotated[Client, Depends(client(treadle))]`.

    tenant: the tenant that the client is bound to: a name, or a dependency that returns it. If it returns
        None, or what cannot be a name, the request is answered with 403.
    """
    if tenant is None or isinstance(tenant, str):
        bound = app if tenant is None else app.tenant(tenant)

        async def same_client() -> Client:
            return bound

        return same_client
    tenant_of_request: Any = Depends(check_callable(tenant, "tenant"))

    async def client_of(tenant: Any = tenant_of_request) -> Client:
        return tenant_client(app, tenant)

    return client_of


def work_router(
    app: Client, *, access: Callable[..., Any], max_wait: Duration = 30.0, signals: SignalNames = ()
) -> APIRouter:
    """Return the routes that callers of your API ask for the state of their work, as an `APIRouter`: include
    it where `accepted` says it is, `app.include_router(work_router(treadle, access=access), prefix="/work")`.
    The routes are those of `treadle.contrib.starlette.work_router`.

    access: a dependency that returns what a caller may see: a `WorkAccess`, or None for nothing (403). It may
        ask for other dependencies, and raise `HTTPException`. There is no default: the routes are closed.
    max_wait: the longest wait. Longer ones are cut to it: choose less than proxies allow.
    signals: the types of the signals that callers may send, by name, or their names, or `"all"`. Without it
        there is no such route.
    """
    allowed: Any = Depends(check_callable(access, "access"))
    answers = WorkAnswers(app, max_wait, signals)
    router = APIRouter(tags=["work"])
    id_path: Any = Path(description="The id of the work, from the answer that accepted it.")
    wait_query: Any = Query(0.0, ge=0, description="Seconds to wait for the end, at most.")

    @router.get("/{id}", response_model=WorkState, responses=REFUSALS, name="work_state")
    async def read_work(
        request: Request, id: str = id_path, wait: float = wait_query, access: Any = allowed
    ) -> Response:
        """The state of the work. With `wait`, when it has ended, or after that time."""
        return await answers.state(request, id, access, wait)

    @router.get("/{id}/events", response_class=EventStream, responses=REFUSALS, name="work_events")
    async def follow_work(request: Request, id: str = id_path, access: Any = allowed) -> Response:
        """The states of the work, and the chunks of its stream, as server-sent events. The last event is
        `end`."""
        return await answers.events(request, id, access)

    if signals:
        name_path: Any = Path(description="The name of the signal.")

        @router.post(
            "/{id}/signals/{name}",
            status_code=202,
            responses=SIGNAL_ANSWERS,
            openapi_extra=SIGNAL_BODY,
            name="work_signal",
        )
        async def signal_work(
            request: Request, id: str = id_path, name: str = name_path, access: Any = allowed
        ) -> Response:
            """Send a signal to the work. The body is its value. With an `Idempotency-Key` it is sent once."""
            return await answers.signal(request, id, name, access)

    return router
