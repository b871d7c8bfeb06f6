"""A web API whose routes store work, and answer at once: 202, and where to ask for the result.

It calls itself here, with a worker in the same process. For a server: uvicorn examples.fastapi_orders:app

Run it: python examples/fastapi_orders.py
"""

import asyncio
from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

from treadle import Client, Treadle, work
from treadle.contrib.fastapi import Accepted, WorkAccess, accepted, client, lifespan, work_router


class Order(BaseModel):
    item: str
    count: int = 1


@work(name="orders.ship")
async def ship(order: Order) -> str:
    await asyncio.sleep(0.1)
    return f"{order.count} x {order.item} shipped"


treadle = Treadle("sqlite:///orders.db", work=[ship])
app = FastAPI(lifespan=lifespan(treadle, worker=True))


def current_org(x_org: Annotated[str, Header()]) -> str:
    """In a real program: what the authentication says."""
    if x_org not in ("acme", "zoo"):
        raise HTTPException(401, "who are you?")
    return x_org


def access(org: Annotated[str, Depends(current_org)]) -> WorkAccess:
    """What a caller may see: the work of its tenant."""
    return WorkAccess(org)


Jobs = Annotated[Client, Depends(client(treadle, tenant=current_org))]


@app.post("/orders", status_code=202)
async def post_order(order: Order, jobs: Jobs) -> Accepted:
    # A double click is one order: the key finds the open item.
    return accepted(await jobs.enqueue(ship(order), key=order.item))


app.include_router(work_router(treadle, access=access), prefix="/work")


async def main() -> None:
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop", headers={"X-Org": "acme"}) as caller,
    ):
        order = {"item": "lamp", "count": 2}
        for answer in [await caller.post("/orders", json=order), await caller.post("/orders", json=order)]:
            print(answer.status_code, "existing:", answer.json()["existing"])
        links = (await caller.post("/orders", json=order)).json()["links"]
        print("now:  ", (await caller.get(links["state"])).json()["status"])
        print("then: ", (await caller.get(links["wait"])).json()["result"])
        print("events:", (await caller.get(links["events"])).text.split("\n")[2])
        print("another tenant:", (await caller.get(links["state"], headers={"X-Org": "zoo"})).status_code)


if __name__ == "__main__":
    asyncio.run(main())
