"""A Starlette app for tests that start a server: `uvicorn tests.contrib.asgi_shop:web`."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from treadle import Context, Treadle, work
from treadle.contrib.starlette import WorkAccess, accepted, client, lifespan, work_router
from treadle.operate.operator import core_of


@work(name="sleep")
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


@work(name="count")
async def count(ctx: Context, chunks: int) -> str:
    """Emit numbers, and wait for a signal after the first half."""

    async def emit(first: int) -> None:
        for n in range(first, first + chunks):
            await ctx.emit(n)
            await asyncio.sleep(0.005)

    await ctx.step("first half", emit, 1)
    await ctx.signal("go", bool)
    await ctx.step("second half", emit, chunks + 1)
    return "counted"


treadle = Treadle("memory://", work=[sleep, count], poll_interval=0.1, drain=0.1)
jobs = client(treadle)


async def enqueue(request: Request) -> Response:
    seconds = float(request.query_params["seconds"])
    return accepted(await (await jobs(request)).enqueue(sleep(seconds)))


async def enqueue_count(request: Request) -> Response:
    chunks = int(request.query_params["chunks"])
    return accepted(await (await jobs(request)).enqueue(count(chunks)))


async def inside(request: Request) -> Response:
    """What the process holds."""
    waiters = core_of(treadle).waiters
    return JSONResponse({"waits": len(waiters.groups.futures)})


web = Starlette(
    routes=[
        Route("/sleep", enqueue, methods=["POST"]),
        Route("/count", enqueue_count, methods=["POST"]),
        Route("/inside", inside),
        Mount("/work", work_router(treadle, access=lambda request: WorkAccess(None), signals=["go"])),
    ],
    lifespan=lifespan(treadle, worker=True),
)
