"""Awaits that were forgotten, with the rules of docs/types.md. Wrong lines are marked."""

# pyright: reportUnusedCallResult=true
# mypy: enable-error-code="unused-awaitable, truthy-bool"

from tests.typing.definitions import add
from treadle import Client, Context, work


async def forgotten(client: Client) -> None:
    client.enqueue(add(1, 2))  # E: nothing is submitted
    client.enqueue(add(1, 2)).result()  # E: nor here
    client.cancel("an-id")  # E: nothing is cancelled


@work
async def once(ctx: Context) -> int:
    ctx.claim("a")  # E: nothing is claimed
    if ctx.claim("b"):  # E: a coroutine is always true
        return 1
    return 2 if await ctx.claim("c") else 3
