"""An app for the tests of reading commands. Tests put an app of their own in its place."""

from __future__ import annotations

from typing import Annotated

from treadle import Context, Result, Retry, Secret, Treadle, work


@work(name="mail.send", retry=Retry(attempts=2, base=0.001))
async def send(user_id: int, address: str = "a@example.org") -> str:
    if user_id % 3 == 0:
        raise ConnectionError(f"no \x1b[31mroute to {address}")
    return f"sent to {address}"


@work(name="order.process")
async def order(ctx: Context, users: list[int]) -> Result[None, None]:
    return ctx.queue(*(send(user) for user in users))


@work(name="report")
async def report(day: str = "today") -> dict[str, str]:
    return {"day": day}


@work(name="log_in")
async def log_in(user: str, pass_code: Annotated[str, Secret]) -> None: ...


TYPES = [send, order, report, log_in]
app = Treadle(work=TYPES)
