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

from importlib.util import find_spec

if find_spec("fastapi") is None:
    raise ImportError(
        "treadle.contrib.fastapi needs fastapi: pip install fastapi 'treadle[web]'", name="fastapi"
    )

from treadle.contrib.starlette import (
    Accepted,
    AcceptedResponse,
    AcceptedWork,
    WorkAccess,
    WorkDeath,
    WorkGroup,
    WorkState,
    accepted,
    lifespan,
)

from .routes import client, work_router

__all__ = [
    "Accepted",
    "AcceptedResponse",
    "AcceptedWork",
    "WorkAccess",
    "WorkDeath",
    "WorkGroup",
    "WorkState",
    "accepted",
    "client",
    "lifespan",
    "work_router",
]
