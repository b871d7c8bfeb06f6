"""The types of enqueuing: S from `.result()`, G from `.group()` and from awaiting the handle."""

from typing import Any, assert_type

from tests.typing.definitions import Receipt, add, flow, send
from treadle import Client, GroupRef, Handle, Retry, Work, group
from treadle.handle import EnqueueCall


async def enqueuing(client: Client) -> None:
    assert_type(client.enqueue(add(1, 2)), EnqueueCall[int, int])
    assert_type(await client.enqueue(add(1, 2)), Handle[int, int])
    assert_type(await client.enqueue(add(1, 2)).result(), int)
    assert_type(await client.enqueue(add(1, 2)).result(timeout=5), int)
    assert_type(await client.enqueue(flow(["a"])).result(), None)
    assert_type(await client.enqueue(flow(["a"])).group(timeout=None), int | Receipt)
    assert_type(
        await client.enqueue(send("a"), delay=5, retry=Retry(attempts=2), key="k", tx=object()),
        Handle[Receipt, Receipt],
    )


async def waiting(client: Client) -> None:
    handle = await client.enqueue(flow(["a"]))
    assert_type(await handle, int | Receipt)
    assert_type(await handle.group(), int | Receipt)
    assert_type(await handle.group(partial=True), int | Receipt)
    assert_type(await client.enqueue(flow(["a"])).group(partial=True), int | Receipt)
    assert_type(await client.repair(handle.group_id), int)
    assert_type(await handle.result(), None)
    assert_type((handle.id, handle.group_id, handle.existing), tuple[str, str, bool])


async def depending(client: Client, handle: Handle[int, int], work: Work[int, int]) -> None:
    await client.enqueue(send("a"), after=[handle, work, "id"], when="all_done")
    await client.enqueue(send("a"), after=handle)
    await client.enqueue(send("a"), after=[group(handle), group(work), group("id"), work])
    assert_type(group(handle), GroupRef)


async def by_name(client: Client) -> None:
    assert_type(await client.enqueue("math.add", {"a": 1, "b": 2}).result(), Any)


async def many(client: Client) -> None:
    assert_type(await client.enqueue_many([add(1, 2), add(3, 4)]), list[Handle[int, int]])


def wider(handle: Handle[int, int | Receipt]) -> Handle[int | None, object]:
    """A handle is covariant: a handle of fewer types can be used as one of more."""
    return handle
