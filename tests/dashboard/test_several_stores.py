"""Several stores: lists say which store has what, show one of them, and name those that are left out."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest

from tests.dashboard.conftest import AS_JSON
from tests.dashboard.jobs import send
from treadle import Context, Result, Retry, Treadle, work
from treadle.backends.many import ManyStores
from treadle.backends.memory import MemoryBackend
from treadle.errors import StoreUnavailable
from treadle.testing import WrappedBackend

T = TypeVar("T")


class Link(WrappedBackend):
    is_down = False

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        if self.is_down and verb != "close":
            raise StoreUnavailable("connection refused")
        return await call()


@work(name="shop.order")
async def order(ctx: Context) -> Result[None, None]:
    return ctx.queue(send("a@example.org"))


@work(name="shop.fail", retry=Retry(attempts=1))
async def fail() -> None:
    raise OSError("no route")


@pytest.fixture
async def links(make_app: Any) -> AsyncIterator[tuple[Treadle, dict[str, Link]]]:
    links = {name: Link(MemoryBackend()) for name in ("eu", "us")}
    app: Treadle = make_app(lambda: ManyStores(links), order, send, fail)
    await app.start()
    for store in links:
        await app.place(store, store)
        await (await app.tenant(store).enqueue(order())).group(5)
        await (await app.tenant(store).enqueue(fail())).wait(5)
    await app.worker.drain()
    yield app, links
    for link in links.values():
        link.is_down = False


def cells(text: str) -> set[str]:
    """What the column says."""
    return set(re.findall(r'<td data-label="store">(\w*)</td>', text))


async def test_lists_have_a_column_and_a_filter(links: Any, visitor: Any) -> None:
    ann = visitor(links[0])
    text = (await ann.get("/items")).text
    assert cells(text) == {"eu", "us"}
    assert 'aria-label="Store"' in text
    assert 'href="/items?q=store%3Aus"' in text
    text = (await ann.get("/items", params={"q": "store:us"})).text
    assert cells(text) == {"us"}
    answer = await ann.get("/items", params={"q": "store:us"}, headers=AS_JSON)
    assert {each["store"] for each in answer.json()["items"]} == {"us"}
    text = (await ann.get("/groups")).text
    assert cells(text) == {"eu", "us"}
    assert 'href="/groups?store=us"' in text
    answer = await ann.get("/groups", params={"store": "us"}, headers=AS_JSON)
    assert [each["store"] for each in answer.json()["groups"]] == ["us"]
    assert "in eu, us" in (await ann.get("/dead")).text
    answer = await ann.get("/dead", params={"store": "us"}, headers=AS_JSON)
    assert [(each["count"], each["stores"]) for each in answer.json()["marks"]] == [(1, ["us"])]
    for store, dead in (("us", 1), ("", 2)):
        answer = await ann.get("/", params={"store": store}, headers=AS_JSON)
        assert [each["items"] for each in answer.json()["problems"] if each["kind"] == "dead"] == [dead]
        assert answer.json()["statuses"]["dead"]["count"] == dead
    assert "Throughput" not in (await ann.get("/", params={"store": "us"})).text


async def test_a_store_that_is_none_is_refused(links: Any, visitor: Any, make_app: Any) -> None:
    ann = visitor(links[0])
    assert (await ann.get("/groups", params={"store": "asia"})).status_code == 404
    assert (await ann.get("/items", params={"q": "store:asia"})).status_code == 400
    alone = visitor(make_app(MemoryBackend, send))
    assert (await alone.get("/", params={"store": "us"})).status_code == 404
    assert (await alone.get("/items", params={"q": "store:us"})).status_code == 400
    assert 'aria-label="Store"' not in (await alone.get("/items")).text


async def test_a_page_names_the_stores_that_are_left_out(links: Any, visitor: Any) -> None:
    app, stores = links
    ann = visitor(app)
    stores["us"].is_down = True
    for path in ("/", "/items", "/groups", "/workflows", "/dead", "/queues", "/types", "/tenants"):
        text = (await ann.get(path)).text
        assert "Stores that do not answer, and are left out: us" in text, path
    assert cells((await ann.get("/items")).text) == {"eu"}
    assert (await ann.get("/items", headers=AS_JSON)).status_code == 503


async def test_what_a_store_may_have_that_does_not_answer_is_not_said_to_be_nowhere(
    links: Any, visitor: Any
) -> None:
    app, stores = links
    (failed,) = (await app.tenant("us").list(type="shop.fail")).items
    (mark,) = await app.tenant("eu").dead.marks()
    await app.tenant("eu").dead.delete(mark=mark.mark)
    ann = visitor(app)
    stores["us"].is_down = True
    for path in (
        f"/items/{failed.id}",
        f"/items?q={failed.id}%20{failed.id}a",
        "/items?q=tenant:us",
        "/groups?store=us",
        f"/groups/{failed.id}",
        "/workflows/spring",
        "/dead",
        f"/dead/{mark.mark}",
        "/act/requeue?q=status:dead",
    ):
        text = (await ann.get(path)).text
        assert "in the stores that answer" in text, path
        assert "never w" not in text, path
        assert "nothing is dead" not in text, path


async def test_a_visitor_of_one_tenant_is_told_without_names(links: Any, visitor: Any) -> None:
    """An empty list would say that there is nothing."""
    app, stores = links
    stores["us"].is_down = True
    text = (await visitor(app, tenants=["us"]).get("/items")).text
    assert "Something is left out: a store does not answer" in text
    text = (await visitor(app, tenants=["eu"]).get("/items")).text
    assert 'aria-label="Store"' not in text
    assert not cells(text)
