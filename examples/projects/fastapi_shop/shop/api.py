"""The routes. An order is answered at once, with 202 and the place to ask for its progress."""

from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel, ConfigDict
from treadle import Client, Treadle
from treadle.contrib.fastapi import Accepted, WorkAccess, accepted, client, lifespan, work_router
from treadle.dashboard import dashboard

from shop.models import Order, Session
from shop.orders import KeyReused, NewOrder, UnknownProduct, place
from shop.staff import staff

NAME = Header(pattern="^[!-~]{1,255}$")
"""What may be the name of a tenant, and a key: at most 255 bytes, and nothing invisible."""


def current_customer(x_customer: Annotated[str, NAME]) -> str:
    """Who is asking. In a real shop: what the login says."""
    return x_customer


Customer = Annotated[str, Depends(current_customer)]


def own_work(customer: Customer) -> WorkAccess:
    """Customers see the work of their own orders, and why one failed."""
    return WorkAccess(tenant=customer, errors=True)


class OrderView(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: str
    sku: str
    count: int
    cents: int
    status: str
    note: str


def create_api(treadle: Treadle, inner: Any = None) -> FastAPI:
    """The web app. It stores work in `treadle`, and runs none. `inner` is a lifespan of its own."""
    api = FastAPI(title="Shop", lifespan=lifespan(treadle, inner=inner))
    customers_client = Depends(client(treadle, tenant=current_customer))

    @api.post("/orders", status_code=202)
    async def place_order(
        new: NewOrder,
        idempotency_key: Annotated[str, NAME],
        customer: Customer,
        client: Annotated[Client, customers_client],
    ) -> Accepted:
        try:
            async with Session.begin() as session:
                handle = await place(session, client, customer, new, idempotency_key)
        except UnknownProduct:
            raise HTTPException(404, f"there is no {new.sku}") from None
        except KeyReused:
            raise HTTPException(422, "this Idempotency-Key belongs to another order") from None
        return accepted(handle)

    @api.get("/orders/{id}")
    async def show_order(id: str, customer: Customer) -> OrderView:
        async with Session() as session:
            order = await session.get(Order, id)
        if order is None or order.customer != customer:
            raise HTTPException(404, "there is no such order")
        return OrderView.model_validate(order)

    api.include_router(work_router(treadle, access=own_work), prefix="/work")
    api.mount("/treadle", dashboard(treadle, access=staff, title="Shop"))
    return api
