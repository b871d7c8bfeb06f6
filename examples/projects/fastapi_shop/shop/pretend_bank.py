"""Stands in for the bank, so that the example needs no account. It keeps payments in memory."""

from typing import Annotated
from uuid import uuid4

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

LIMIT = 100_000
"""Payments above this many cents are declined."""


class Payment(BaseModel):
    customer: str
    cents: int
    id: str = ""


def pretend_bank(payments: dict[str, Payment] | None = None) -> FastAPI:
    """A bank that knows these payments, by their idempotency keys."""
    known = {} if payments is None else payments
    bank = FastAPI(title="Bank")

    @bank.post("/payments")
    async def pay(payment: Payment, idempotency_key: Annotated[str, Header()]) -> Payment:
        if payment.cents > LIMIT:
            raise HTTPException(402, "declined")
        return known.setdefault(idempotency_key, payment.model_copy(update={"id": uuid4().hex}))

    @bank.delete("/payments/{key}", status_code=204)
    async def refund(key: str) -> None:
        if known.pop(key, None) is None:
            raise HTTPException(404, "no such payment")

    return bank
