"""Wrong uses of enqueue calls, handles and results. Wrong lines are marked."""

from tests.typing.definitions import add, flow
from treadle import Client


def want_int(_: int) -> None: ...


def want_str(_: str) -> None: ...


async def not_awaited(client: Client) -> None:
    want_int(client.enqueue(add(1, 2)))  # E: a call that is not awaited is not its value
    want_int(client.enqueue(add(1, 2)).result())  # E: nor is a coroutine
    client.enqueue(add(1, 2)).id  # E: it has no id before it is submitted  # noqa: B018
    client.enqueue(add(1, 2)).cancel()  # E: it cannot be cancelled before it is submitted


async def wrong_types(client: Client) -> None:
    want_str(await client.enqueue(add(1, 2)).result())  # E: S is int
    want_int(await client.enqueue(flow(["a"])).result())  # E: S is None
    want_int(await client.enqueue(flow(["a"])).group())  # E: G is wider
    want_int(await client.enqueue(add(1, 2)))  # E: the handle, not the value


async def wrong_calls(client: Client) -> None:
    await client.enqueue(add)  # E: the type itself
    await client.enqueue(add.fn)  # E: the function
    await client.enqueue(add(1, 2), dealy=5)  # E: unknown option
    await client.enqueue(add(1, 2), after=[5])  # E: not an id
    await client.enqueue(add(1, 2), key_scope="closed")  # E: not a scope
    await client.enqueue(add(1, 2), {"a": 1})  # E: arguments are given to the type
