"""Treadle in FastAPI and Starlette: the lifespan, the client of a request, OpenAPI, the dashboard."""

import asyncio
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException, Request, WebSocket
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from tests.engine.kit import PATIENCE
from treadle import BackendError, Client, Context, InputError, Treadle, work
from treadle.contrib import fastapi as ours
from treadle.contrib import starlette as plain
from treadle.dashboard import Access, dashboard

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it prefers another client
    from fastapi.testclient import TestClient


class User(BaseModel):
    email: str


@work(name="send")
async def send(to: str) -> str:
    return f"sent to {to}"


USERS = {"ada": "acme", "bob": "zoo"}


def current_user(request: Request) -> str:
    user = request.headers.get("x-user")
    if user not in USERS:
        raise HTTPException(401, "who are you?")
    return user


def current_org(user: Annotated[str, Depends(current_user)]) -> str:
    return USERS[user]


def access(org: Annotated[str, Depends(current_org)]) -> ours.WorkAccess:
    return ours.WorkAccess(org)


def make_web(treadle: Treadle, *, worker: bool = True) -> FastAPI:
    web = FastAPI(lifespan=ours.lifespan(treadle, worker=worker))
    jobs = Depends(ours.client(treadle, tenant=current_org))

    @web.post("/signup", status_code=202)
    async def signup(user: User, client: Annotated[Client, jobs]) -> ours.Accepted:
        return ours.accepted(await client.enqueue(send(user.email), key=user.email))

    web.include_router(ours.work_router(treadle, access=access), prefix="/work")
    web.mount("/treadle", dashboard(treadle, access=lambda request: Access(actor="ann")))
    return web


@asynccontextmanager
async def calling(web: Any, **headers: str) -> AsyncGenerator[httpx.AsyncClient]:
    async with (
        web.router.lifespan_context(web),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(web), base_url="http://shop.example", headers=headers
        ) as caller,
    ):
        yield caller


# -- FastAPI -------------------------------------------------------------------------------------------------


async def test_work_is_accepted_and_followed_to_its_end() -> None:
    async with calling(make_web(Treadle("memory://", work=[send])), **{"x-user": "ada"}) as caller:
        answer = await caller.post("/signup", json={"email": "ada@example.org"})
        id = answer.json()["id"]
        assert (answer.status_code, answer.headers["location"]) == (202, f"/work/{id}")
        assert answer.json() == {
            "id": id,
            "existing": False,
            "links": {
                "state": f"/work/{id}",
                "wait": f"/work/{id}?wait=30",
                "events": f"/work/{id}/events",
            },
        }
        async with asyncio.timeout(PATIENCE):
            state = (await caller.get(answer.json()["links"]["wait"])).json()
        assert (state["status"], state["result"]) == ("success", "sent to ada@example.org")
        assert "event: end" in (await caller.get(answer.json()["links"]["events"])).text
        theirs = {"x-user": "bob"}
        for path in answer.json()["links"].values():
            assert (await caller.get(path, headers=theirs)).status_code == 404
            assert (await caller.get(path, headers={"x-user": "eve"})).status_code == 401
        assert (await caller.get(f"/work/{id}?wait=-1")).status_code == 422


async def test_a_client_belongs_to_the_tenant_of_the_request() -> None:
    treadle = Treadle("memory://", work=[send])
    async with calling(make_web(treadle, worker=False)) as caller:
        for user, existing in (("ada", False), ("bob", False), ("ada", True)):
            answer = await caller.post("/signup", json={"email": "a"}, headers={"x-user": user})
            assert answer.json()["existing"] is existing
        assert {item.tenant for item in (await treadle.list()).items} == {"acme", "zoo"}


def test_openapi_shows_the_bodies_and_the_refusals() -> None:
    schema = make_web(Treadle("memory://", work=[send])).openapi()

    def body(path: str, method: str, status: str) -> Any:
        return schema["paths"][path][method]["responses"][status]["content"]

    assert body("/signup", "post", "202") == {
        "application/json": {"schema": {"$ref": "#/components/schemas/AcceptedWork"}}
    }
    assert body("/work/{id}", "get", "200") == {
        "application/json": {"schema": {"$ref": "#/components/schemas/WorkState"}}
    }
    assert list(body("/work/{id}/events", "get", "200")) == ["text/event-stream"]
    assert list(body("/work/{id}/events", "get", "404")) == ["application/json"]
    state = schema["components"]["schemas"]["WorkState"]["properties"]
    assert "running" in state["status"]["enum"]
    assert state["outcome"]["enum"] == ["running", "succeeded", "failed", "cancelled"]
    assert {"type": "string", "format": "date-time"} in state["ended_at"]["anyOf"]
    names = [each["name"] for each in schema["paths"]["/work/{id}"]["get"]["parameters"]]
    assert names == ["id", "wait"]


@work(name="approve")
async def approve(ctx: Context) -> bool | None:
    return await ctx.signal("approval", bool)


async def test_a_signal_is_sent_and_shown_in_openapi() -> None:
    treadle = Treadle("memory://", work=[approve])
    web = FastAPI(lifespan=ours.lifespan(treadle, worker=True))
    web.include_router(ours.work_router(treadle, access=access, signals=["approval"]), prefix="/work")
    async with calling(web, **{"x-user": "ada"}) as caller:
        handle = await treadle.tenant("acme").enqueue(approve())
        answer = await caller.post(
            f"/work/{handle.id}/signals/approval", json=True, headers={"idempotency-key": "1"}
        )
        assert (answer.status_code, answer.json()) == (202, {"sent": True})
        assert await handle.result(PATIENCE) is True
        answer = await caller.post(
            f"/work/{handle.id}/signals/approval", json=True, headers={"x-user": "bob"}
        )
        assert answer.status_code == 404
    shown = web.openapi()["paths"]["/work/{id}/signals/{name}"]["post"]
    assert {"200", "202", "403", "404", "409", "413", "415", "429", "503"} <= set(shown["responses"])
    assert list(shown["requestBody"]["content"]) == ["application/json"]
    assert {each["name"] for each in shown["parameters"]} == {"id", "name", "Idempotency-Key"}
    plain = FastAPI()
    plain.include_router(ours.work_router(treadle, access=access), prefix="/work")
    assert "/work/{id}/signals/{name}" not in plain.openapi()["paths"]


def test_the_test_client_of_fastapi() -> None:
    """It runs the lifespan, and the app, on an event loop in another thread."""
    web = make_web(Treadle("memory://", work=[send]))
    for _ in range(2):
        with TestClient(web, headers={"x-user": "ada"}) as caller:
            answer = caller.post("/signup", json={"email": "ada@example.org"})
            assert caller.get(answer.json()["links"]["wait"]).json()["status"] == "success"
            page = caller.get("/treadle/items", headers={"accept": "application/json"})
            assert page.json()["items"]


async def test_a_plain_route_uses_the_client_from_its_thread() -> None:
    treadle = Treadle("memory://", work=[send])
    web = FastAPI(lifespan=ours.lifespan(treadle, worker=True))

    @web.post("/wait")
    def wait(client: Annotated[Client, Depends(ours.client(treadle))]) -> str:
        return client.sync.enqueue(send("ada")).result(timeout=PATIENCE)

    async with calling(web) as caller:
        assert (await caller.post("/wait")).json() == "sent to ada"


async def test_a_websocket_has_a_client_too() -> None:
    treadle = Treadle("memory://", work=[send])
    web = FastAPI()

    @web.websocket("/ws")
    async def follow(socket: WebSocket, client: Annotated[Client, Depends(plain.client(treadle))]) -> None:
        await socket.accept()
        handle = await client.enqueue(send("ada"))
        await socket.send_text(handle.id)
        await socket.close()

    def connect() -> str:
        with TestClient(web) as caller, caller.websocket_connect("/ws") as socket:
            return str(socket.receive_text())

    id = await asyncio.to_thread(connect)
    (item,) = await treadle.get(id)
    assert item is not None
    await treadle.close()


# -- the client of a request ---------------------------------------------------------------------------------


async def test_the_client_of_a_request_in_starlette() -> None:
    treadle = Treadle("memory://", work=[send])

    async def tenant_of(request: Any) -> str | None:
        tenant: str | None = request.headers.get("x-org")
        return tenant

    jobs = plain.client(treadle, tenant=tenant_of)

    async def signup(request: Request) -> Response:
        client = await jobs(request)
        return plain.accepted(await client.enqueue(send("ada")), at="https://api.example/v1/work/")

    web = Starlette(routes=[Route("/signup", signup, methods=["POST"])], lifespan=plain.lifespan(treadle))
    async with calling(web) as caller:
        answer = await caller.post("/signup", headers={"x-org": "acme"})
        assert answer.headers["location"] == f"https://api.example/v1/work/{answer.json()['id']}"
        (item,) = await treadle.tenant("acme").get(answer.json()["id"])
        assert item is not None
        for org in ({}, {"x-org": ""}, {"x-org": "x" * 300}):
            assert (await caller.post("/signup", headers=org)).status_code == 403


async def test_a_tenant_may_be_a_name() -> None:
    treadle = Treadle("memory://", work=[send])
    for made in (plain.client(treadle, tenant="acme"), plain.client(treadle.tenant("acme"))):
        client = await made(Request({"type": "http"}))
        handle = await client.enqueue(send("ada"))
        assert (await handle.state()).tenant == "acme"
    client = await ours.client(treadle, tenant="zoo")()
    assert (await (await client.enqueue(send("ada"))).state()).tenant == "zoo"
    assert await ours.client(treadle)() is treadle
    await treadle.close()


# -- the lifespan --------------------------------------------------------------------------------------------


async def test_an_inner_lifespan_lives_within_the_app() -> None:
    seen: list[str] = []
    treadle = Treadle("memory://", work=[send])

    @asynccontextmanager
    async def inner(web: Starlette) -> AsyncGenerator[dict[str, str]]:
        assert await treadle.enqueue(send("ada")).result(PATIENCE) == "sent to ada"
        seen.append("begun")
        yield {"mood": "good"}
        assert treadle.worker.running
        seen.append("ended")

    web = Starlette(lifespan=plain.lifespan(treadle, worker=True, inner=inner))
    async with web.router.lifespan_context(web) as state:
        assert state == {"mood": "good"}
        assert treadle.worker.running
    assert seen == ["begun", "ended"]
    assert not treadle.worker.running


async def test_a_lifespan_runs_no_worker_unless_told() -> None:
    treadle = Treadle("memory://", work=[send])
    entered = plain.lifespan(treadle)
    async with entered(None):
        assert not treadle.worker.running
        handle = await treadle.enqueue(send("ada"))
        assert (await handle.state()).status == "ready"
    async with plain.lifespan(Client(treadle.backend))(None):
        pass


async def test_a_server_does_not_start_without_its_store(tmp_path: Any) -> None:
    treadle = Treadle(f"sqlite:///{tmp_path}/nowhere/work.db", work=[send])
    with pytest.raises(BackendError, match="nowhere"):
        async with plain.lifespan(treadle)(None):
            pass


def test_mistakes_are_errors_where_they_are_made() -> None:
    treadle = Treadle("memory://")
    with pytest.raises(InputError, match="a Client has no worker"):
        plain.lifespan(treadle.tenant("acme"), worker=True)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="app"):
        plain.lifespan("memory://")  # type: ignore[call-overload]
    for module in (plain, ours):
        with pytest.raises(InputError, match="access"):
            module.work_router(treadle, access=None)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="tenant"):
            module.client(treadle, tenant=3)  # type: ignore[arg-type]
