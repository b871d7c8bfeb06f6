"""An app whose items the tests of the reading commands look at. Its store is named by the environment."""

from __future__ import annotations

import os

from treadle import Context, Result, Retry, Treadle

app = Treadle(os.environ.get("LOOKED_AT_URL", "memory://"), poll_interval=0.05)


@app.work(name="mail.send", retry=Retry(attempts=2, base=0.001))
async def send(user_id: int, address: str = "a@example.org") -> str:
    if user_id % 3 == 0:
        raise ConnectionError(f"no \x1b[31mroute to {address}")
    return f"sent to {address}"


@app.work(name="order.process")
async def order(ctx: Context, users: list[int]) -> Result[None, None]:
    return ctx.queue(*(send(user) for user in users))


@app.work(name="report")
async def report(day: str = "today") -> dict[str, str]:
    return {"day": day}
