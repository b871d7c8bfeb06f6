"""A client of the bank's API, and what its answers mean for an attempt."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from treadle import Abort, Context, Defer


@dataclass
class Bank:
    """The bank. The id of the order is its idempotency key: to ask twice charges once."""

    http: httpx.AsyncClient

    async def charge(self, order: str, customer: str, cents: int) -> str:
        """Take the money of an order. Returns the id of the payment."""
        payment = {"customer": customer, "cents": cents}
        answer = await self.http.post("payments", json=payment, headers={"Idempotency-Key": order})
        match answer.status_code:
            case 402:  # trying again is pointless
                raise Abort("the card was declined")
            case 429:  # not now: this costs no attempt
                raise Defer(delay=float(answer.headers["Retry-After"]))
            case _:  # any other refusal is a failed attempt, and is retried
                answer.raise_for_status()
        id: str = answer.json()["id"]
        return id

    async def refund(self, order: str) -> None:
        """Give back the money of an order, if it was taken."""
        answer = await self.http.delete(f"payments/{order}")
        if answer.status_code != 404:
            answer.raise_for_status()


@dataclass
class Resources:
    """What the handlers of a worker share."""

    bank: Bank


@asynccontextmanager
async def resources_at(bank_url: str) -> AsyncGenerator[Resources]:
    """Open what handlers share, and close it when the worker stops."""
    async with httpx.AsyncClient(base_url=bank_url) as http:
        yield Resources(Bank(http))


def bank_of(ctx: Context) -> Bank:
    resources: Resources = ctx.resources
    return resources.bank
