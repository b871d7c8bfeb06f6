"""Enqueuing, and what comes of it, taken for something else. The lines at fault are marked."""

from tests.typing.definitions import add, flow
from treadle import Client


def want_int(_: int) -> None: ...


def want_str(_: str) -> None: ...


async def not_awaited(client: Client) -> None:
    want_int(client.enqueue(add(1, 2)))  # E: a call that is not awaited is not its value
    want_int(client.enqueue(add(1, 2)).result())  # E: nor is a coroutine
    client.enqueue(add(1, 2)).id  # E: it has no id before it is submitted  # noqa: B018
    client.enqueue(add(1, 2)).cancel()  # E: and nothing to cancel


async def not_typed_so(client: Client) -> None:
    want_str(await client.enqueue(add(1, 2)).result())  # E: S is int
    want_int(await client.enqueue(flow(["a"])).result())  # E: S is None
    want_int(await client.enqueue(flow(["a"])).group())  # E: G is wider
    want_int(await client.enqueue(add(1, 2)))  # E: the handle, not the value


async def not_so_called(client: Client) -> None:
    await client.enqueue(add)  # E: the type itself
    await client.enqueue(add.fn)  # E: the function
    await client.enqueue(add(1, 2), dealy=5)  # E: unknown option
    await client.enqueue(add(1, 2), after=[5])  # E: not an id
    await client.enqueue(add(1, 2), key_scope="closed")  # E: not a scope
    await client.enqueue(add(1, 2), {"a": 1})  # E: arguments are given to the type
