"""The types of what web frameworks get."""

from typing import Annotated, Any, assert_type

from fastapi import APIRouter, Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount, Router

from tests.typing.definitions import add
from treadle import Client, Handle, Treadle
from treadle.contrib import fastapi, starlette
from treadle.contrib.flask import FlaskTreadle
from treadle.dashboard import Access
from treadle.sync import SyncApp, SyncHandle

treadle = Treadle("memory://", work=[add])
Jobs = Annotated[Client, Depends(fastapi.client(treadle))]
api = FastAPI(lifespan=fastapi.lifespan(treadle, worker=True))


@api.post("/add", status_code=202)
async def enqueue(jobs: Jobs) -> fastapi.Accepted:
    handle = await jobs.enqueue(add(1, 2))
    assert_type(handle, Handle[int, int])
    assert_type(fastapi.accepted(handle), fastapi.AcceptedResponse)
    return fastapi.accepted(handle)


def tenant_of(request: Any) -> str:
    return str(request.headers["x-org"])


async def access(request: Request) -> starlette.WorkAccess | None:
    return starlette.WorkAccess(tenant_of(request), allows=lambda item: item.headers.get("user") == "ada")


def routers(client: Client) -> None:
    assert_type(fastapi.work_router(client, access=tenant_of), APIRouter)
    assert_type(starlette.work_router(client, access=access, max_wait=10), Router)
    api.include_router(fastapi.work_router(client, access=access), prefix="/work")
    Starlette(
        routes=[Mount("/work", starlette.work_router(client, access=access))],
        lifespan=starlette.lifespan(client),
    )


async def client_of_a_request(request: Request) -> None:
    jobs = starlette.client(treadle, tenant=tenant_of)
    assert_type(await jobs(request), Client)


def flask_app(web: Flask) -> None:
    jobs = FlaskTreadle(treadle, web)
    assert_type(jobs.sync, SyncApp)
    assert_type(jobs.sync.enqueue(add(1, 2)), SyncHandle[int, int])
    jobs.mount_dashboard(web, access=lambda: Access(actor="ann"))
