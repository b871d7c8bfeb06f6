"""How a type checker sees headers, submit middlewares and telemetry. Never run."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_type

from treadle import Client, Context, Result, Treadle, work
from treadle.contrib.otel import OpenTelemetry
from treadle.submit_middleware import NewItem, SubmitNext


@work
async def show(ctx: Context) -> Result[Any, Any]:
    assert_type(ctx.headers, Mapping[str, str])
    return ctx.queue(show(), headers={}).next(show(), headers=ctx.headers)


async def with_user(items: Sequence[NewItem], call_next: SubmitNext) -> None:
    for item in items:
        assert_type(item.headers, dict[str, str])
        item.headers["user"] = item.tenant
    await call_next()


app = Treadle(submit_middleware=[with_user], telemetry=OpenTelemetry(link="parent"))
client = Client(submit_middleware=(with_user,), telemetry=None)


async def submit() -> None:
    await app.enqueue(show(), headers={"request": "r-1"})
    await client.enqueue_many([show()], headers={"request": "r-1"})
    app.sync.enqueue(show(), headers={"request": "r-1"})
    app.schedule("often", every=1, run=show, headers={"by": "often"})
