"""Treadle in Starlette, FastAPI and other ASGI apps. Needs the extra `treadle[web]`.

    treadle = Treadle("postgresql://...", work=[send])
    jobs = client(treadle)

    async def signup(request):
        client = await jobs(request)
        return accepted(await client.enqueue(send("ada@example.org")))

    routes = [
        Route("/signup", signup, methods=["POST"]),
        Mount("/work", work_router(treadle, access=access)),
    ]
    web = Starlette(routes=routes, lifespan=lifespan(treadle))

======================  ====================================================================
`lifespan`              connect when the server starts, close when it stops; a worker if wanted; and
                        `client`: the client of a request, bound to its tenant
`work_router`           the routes: the state of an item, a long poll, a stream of events, signals; and
                        `accepted`: the answer 202 for work that was enqueued
`work_state`            an item as the router shows it, and what of it a caller may see; reads items, and
                        waits for their end
======================  ====================================================================

FastAPI: `treadle.contrib.fastapi` has the same names, and takes dependencies of FastAPI. See docs/fastapi.md.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("starlette") is None:
    raise ImportError(
        "treadle.contrib.starlette needs starlette: pip install 'treadle[web]'", name="starlette"
    )

from .lifespan import client, lifespan
from .work_router import Accepted, AcceptedResponse, AcceptedWork, accepted, work_router
from .work_state import WorkAccess, WorkDeath, WorkGroup, WorkProgress, WorkState

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
