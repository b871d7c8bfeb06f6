"""`app.lines`, `app.related`, `app.list(reach=)`: what a client of one tenant sees, and what is refused."""

from __future__ import annotations

import pytest

from tests.engine.kit import MakeApp
from treadle import Client, InputError, UnsupportedError, work
from treadle.ports import PortsBackend, memory_pubsub, memory_queue, memory_store

pytestmark = pytest.mark.every_store


@work(name="mail.send")
async def send(n: int = 0) -> None: ...


async def test_a_client_of_one_tenant_sees_only_its_own(make_app: MakeApp) -> None:
    app = make_app(send)
    acme, beta = app.tenant("acme"), app.tenant("beta")
    for client in (acme, beta):
        await client.enqueue(send(), id="first", lane="l")
        await client.enqueue(send(), id="second", after=["first"])
    await beta.enqueue(send(), id="secret", after=["first"])
    assert [(line.tenant, line.lane, line.first) for line in await app.lines("default")] == [
        ("acme", "l", "first"),
        ("beta", "l", "first"),
    ]
    assert [line.tenant for line in await acme.lines("default")] == ["acme"]
    related = await acme.related("first")
    assert related is not None
    assert [each.id for each in related.dependents] == ["second"]
    assert await acme.related("secret") is None
    assert await app.tenant("other").lines("default") == []
    page = await acme.list(type="none", reach=1)
    assert page.items == ()  # a store that knows its types has no cursor here
    page = await acme.list(type="none", reach=1000, cursor=page.cursor)
    assert (page.items, page.cursor, page.reached_at) == ((), None, None)


async def test_bad_arguments_are_refused(make_app: MakeApp) -> None:
    app = make_app(send)
    for call in (
        lambda: app.list(reach=0),
        lambda: app.list(reach=True),
        lambda: app.lines(""),
        lambda: app.lines("default", count=0),
        lambda: app.related("first", count=-1),
    ):
        with pytest.raises(InputError):
            await call()


async def test_ports_do_not_have_them() -> None:
    client = Client(PortsBackend(memory_queue(), memory_pubsub(), memory_store()))
    for call in (
        lambda: client.list(reach=10),
        lambda: client.lines("default"),
        lambda: client.related("first"),
        client.problems,
    ):
        with pytest.raises(UnsupportedError):
            await call()
    await client.close()
