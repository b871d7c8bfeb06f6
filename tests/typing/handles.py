"""The types of enqueuing: S from `.result()`, G from `.group()` and from awaiting the handle."""

from typing import Any, assert_type

from tests.typing.definitions import Receipt, add, flow, send
from treadle import Client, GroupRef, Handle, Retry, Treadle, Work, group
from treadle.handle import EnqueueCall
from treadle.item import ItemState, Page
from treadle.sync import SyncClaimedLease, SyncHandle, SyncScheduleHandle


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


def blocking(app: Treadle, client: Client) -> None:
    """The sync side has the arguments of the async side, and returns what awaiting it returns."""
    handle = app.sync.enqueue(flow(["a"]))
    assert_type(handle, SyncHandle[None, int | Receipt])
    assert_type(handle.group(timeout=5), int | Receipt)
    assert_type(handle.result(), None)
    assert_type(client.tenant("acme").sync.get("id"), list[ItemState | None])
    assert_type(client.sync.list("dead", limit=5, oldest_first=True), Page)
    assert_type(client.sync.cancel([handle.id]), int)
    assert_type(client.sync.complete(handle.id, 5), None)
    assert_type(client.sync.edit(handle.state(), add(1, 2)), SyncHandle[int, int])
    assert_type(app.sync.dead.requeue(type="mail.send"), int)
    assert_type(app.sync.claim_one(queues=["mail"], lease=5), SyncClaimedLease | None)
    assert_type(app.sync.schedule("often", every=5, run=lambda: add(1, 2)), SyncScheduleHandle)
    assert_type(app.sync.schedules.trigger("often"), SyncHandle[Any, Any] | None)
    assert_type(app.sync.call(app.enqueue(add(1, 2))), Handle[int, int])
    assert_type(app.sync.call(app.enqueue(add(1, 2)).result()), int)
    assert_type(app.sync.start(), None)


def wider(handle: Handle[int, int | Receipt]) -> Handle[int | None, object]:
    """A handle is covariant: a handle of fewer types can be used as one of more."""
    return handle
