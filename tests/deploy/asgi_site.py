"""A Starlette app for tests that start servers with several processes. Each of them is a worker too."""

from __future__ import annotations

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from treadle import Treadle, work
from treadle.contrib.starlette import WorkAccess, lifespan, work_router


@work(name="double")
async def double(number: int) -> int:
    return 2 * number


treadle = Treadle(os.environ["SHOP_URL"], work=[double], poll_interval=0.2)


async def enqueue(request: Request) -> Response:
    handle = await treadle.enqueue(double(int(request.path_params["number"])))
    return JSONResponse({"id": handle.id, "pid": os.getpid()}, 202)


web = Starlette(
    routes=[
        Route("/double/{number}", enqueue, methods=["POST"]),
        Mount("/work", work_router(treadle, access=lambda request: WorkAccess(None))),
    ],
    lifespan=lifespan(treadle, worker=True),
)
