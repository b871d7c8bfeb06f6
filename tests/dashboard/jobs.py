"""Work types for tests of actions, and what tests do with them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Annotated, Any

import httpx

from treadle import Abort, Client, Secret, Treadle, work
from treadle.item import ItemState
from treadle.retry import Retry


@work(name="mail.send", retry=Retry(attempts=1))
async def send(to: str, subject: str = "hello", password: str = "") -> str:
    """Send a mail."""
    return to


@work(name="report.make", queue="reports")
async def report(day: date, pages: int, tags: list[str] | None = None, draft: bool = False) -> date:
    """Make the report of a day."""
    return day


@work(name="bank.pay")
async def pay(amount: int, pin: Annotated[str, Secret]) -> int:
    return amount


@work(name="card.read")
async def read_card(number: str) -> dict[str, str]:
    return {"number": number}


async def die(app: Treadle, types: Iterable[Any] | None = None) -> None:
    """Let all ready items die, without a worker."""
    while (lease := await app.claim_one(types=types)) is not None:
        await lease.fail(Abort("no route"))


async def state_of(app: Client, id: str) -> ItemState:
    (found,) = await app.get([id])
    assert found is not None
    return found


def said(answer: httpx.Response) -> tuple[int, str]:
    """The status, and where it leads."""
    return answer.status_code, answer.headers.get("location", "")
