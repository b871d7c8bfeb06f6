"""Every page, for every kind of visitor: what it shows, where it leads, and how often it asks the store.

The pages are those of `VIEWS`, so that none can be forgotten. A new part of a path needs a line in `names`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Match, Route

from tests.dashboard.conftest import AS_JSON, HOST, MakeApp, Visitor, make_store
from tests.dashboard.filled import DAY, WORK, fill
from tests.dashboard.jobs import report, said, send, state_of
from treadle import Treadle
from treadle.backend import Backend
from treadle.dashboard import Access, dashboard
from treadle.dashboard.app import VIEWS
from treadle.item import Heartbeat
from treadle.testing.counting import CountingBackend

MOST_CALLS = 11
"""The page of a queue makes them: its rates and its history are two of them."""
LINK = re.compile(r'<a\b[^>]*? href="([^"]*)"')
FORM = re.compile(r'<form\b[^>]*? method="(get|post)" action="([^"]*)"')
CHANGES = re.compile(r'"/(act/|[^"]*/(repair|drain|cancel|delete|update|complete|signal|edit|enqueue)\b)')
"""Addresses of what a reader may not do."""
ACCESS = {
    "ann": Access(actor="ann", can="all"),
    "reader": Access(actor="reader"),
    "of_a": Access(actor="of_a", can="all", tenants=["a"]),
    "of_b": Access(actor="of_b", can="all", tenants=["b"]),
    "nobody": None,
}
COLSPAN = re.compile(r'colspan="(\d+)"')
BUTTON = re.compile(r'<button\b[^>]*? formaction="([^"]*)"')


class Everything:
    """An app of which each page shows something."""

    def __init__(self, store: Callable[[], Backend]) -> None:
        self.counting = CountingBackend(store())
        self.app = Treadle(self.counting, work=WORK)

    async def open(self) -> None:
        app, of_a = self.app, self.app.tenant("a").by("bob", reason="a test")
        names = {"mark": await fill(app), "queue": "default", "type": "mail.send"}
        await of_a.pause("mails")
        await of_a.enqueue(report(DAY, 3), id="running")
        assert await of_a.claim_one(types=[report])
        await of_a.enqueue(send("x"), id="ready")
        bulk = (await of_a.bulk.start("requeue", status="dead", rate=0.01)).id
        await of_a.bulk.stop(bulk)
        self.paths: dict[str, bool] = {}
        """By path: whether it is about the whole fleet."""
        for view in VIEWS:
            for id in (bulk,) if view.path.startswith("/bulk") else ("late", "dead"):
                self.paths[view.path.format(**names, id=id)] = view.of_fleet
        del self.paths["/workflows/dead"]

    async def grow(self) -> None:
        """The same, with some thousand items more."""
        for tenant in ("a", "c"):
            await self.app.tenant(tenant).enqueue_many([send(f"{at}") for at in range(1500)], workflow="late")


@pytest.fixture(params=["memory", "sqlite"])
async def all_pages(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    found = Everything(make_store(request.param, request, tmp_path))
    await found.open()
    yield found
    await found.app.close()


async def test_every_page_for_every_visitor(all_pages: Everything) -> None:
    few = await counted(all_pages)
    async with visit(all_pages.app) as client:

        async def get(path: str, name: str, accept: str = "text/html") -> httpx.Response:
            params = {"of": "a"} if name in ("ann", "reader") else None
            return await client.get(path, params=params, headers={"x-name": name, "accept": accept})

        for path, of_fleet in all_pages.paths.items():
            page = await get(path, "ann")
            assert page.status_code == 200, (path, page.text)
            check_tables(page.text, path)
            assert (await get(path, "ann", "application/json")).json()
            seen = (await get(path, "reader")).text
            assert [action for method, action in forms(seen) if method == "POST"] == ["/settings"], path
            assert not CHANGES.search(seen), path
            assert (await get(path, "of_a")).status_code == (404 if of_fleet else 200), path
            assert "bob" not in (await get(path, "of_b")).text, path
            assert (await get(path, "nobody")).status_code == 403, path
    await all_pages.grow()
    many = await counted(all_pages)
    assert {path: count for path, count in many.items() if count > few[path]} == {}
    assert {path: count for path, count in few.items() if count > MOST_CALLS} == {}


async def test_pages_read_the_overview_and_the_orders_once(memory_store: Callable[[], Backend]) -> None:
    all_pages = Everything(memory_store)
    await all_pages.open()
    await all_pages.grow()
    shown = [path for path in all_pages.paths if re.fullmatch(r"/|/(queues|types)(/[^/]+)?|/tenants", path)]
    assert len(shown) >= 6
    async with visit(all_pages.app) as client:
        for path in shown:
            all_pages.counting.reset()
            assert (await client.get(path)).status_code == 200
            calls = all_pages.counting.calls
            assert (calls["overview"], calls["orders"]) == (1, 1), path


def visit(app: Treadle) -> httpx.AsyncClient:
    """A browser whose visitor is named by a header."""
    transport = httpx.ASGITransport(dashboard(app, access=lambda request: ACCESS[request.headers["x-name"]]))
    return httpx.AsyncClient(transport=transport, base_url=HOST, headers={"x-name": "ann"})


async def counted(all_pages: Everything) -> dict[str, int]:
    """How often each page asks the store."""
    calls: dict[str, int] = {}
    async with visit(all_pages.app) as client:
        await client.get("/limits?first")  # a dashboard compares its clock with that of the store
        for path in all_pages.paths:
            all_pages.counting.reset()
            answer = await client.get(path, params={"of": "a"})
            assert answer.status_code == 200, (path, answer.text)
            calls[path] = all_pages.counting.total()
    return calls


def width_of(cell: str) -> int:
    """How many columns a cell takes."""
    found = COLSPAN.search(cell)
    return int(found[1]) if found else 1


def check_tables(text: str, path: str) -> None:
    """Each row has as many cells as its table has heads."""
    for table in re.findall(r"<table\b.*?</table>", text, re.DOTALL):
        cells = [re.findall(r"<t[hd]\b[^>]*>", row) for row in re.findall(r"<tr\b.*?</tr>", table, re.DOTALL)]
        widths = [sum(width_of(cell) for cell in row) for row in cells]
        assert len(set(widths)) == 1, (path, widths)


async def test_every_link_and_form_meets_a_route(memory_store: Callable[[], Backend]) -> None:
    all_pages = Everything(memory_store)
    await all_pages.open()
    await all_pages.grow()
    web = dashboard(all_pages.app, access=lambda request: None)
    async with visit(all_pages.app) as client:
        for name in ("ann", "of_a"):
            client.headers["x-name"] = name
            links: set[str] = set()
            for path, of_fleet in all_pages.paths.items():
                if of_fleet and name == "of_a":
                    continue
                text = (await client.get(path, params={"of": "a"} if name == "ann" else None)).text
                found = {("GET", unescape(link)) for link in LINK.findall(text)} | forms(text)
                assert [each for each in found if route_of(web, *each) is None] == [], path
                links |= {link for method, link in found if method == "GET" and not link.startswith("#")}
            for link in sorted(links):
                answer = await client.get(link)
                assert answer.status_code in (200, 303), (link, answer.status_code)


def route_of(web: Starlette, method: str, address: str) -> str | None:
    """The path of the route that answers. None: there is none. Links within a page need none."""
    scope = {"type": "http", "method": method, "path": unquote(urlsplit(address).path), "root_path": ""}
    if address.startswith("#"):
        return address
    return next(
        (
            route.path
            for route in web.routes
            if isinstance(route, Route) and route.name != "nothing" and route.matches(scope)[0] is Match.FULL
        ),
        None,
    )


async def test_hints_of_filters_name_no_types_of_other_tenants(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    app = make_app(memory_store, *WORK)
    await fill(app)  # tenant `c` has an item of mail.send
    served = Heartbeat(worker="w2", lease=60, types=("bank.pay", "mail.send"))
    await app.backend.beat(served)
    for tenants, shown in ((None, True), (["c"], False)):
        page = (await visitor(app, tenants=tenants).get("/items")).text
        assert 'value="type:mail.send"' in page
        assert ("bank.pay" in page) is shown


async def test_names_that_two_tenants_have_are_not_mixed_up(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    app = make_app(memory_store, *WORK)
    await fill(app)
    ann, of_c = visitor(app), visitor(app, tenants=["c"])
    for path in ("/groups/late", "/workflows/late"):
        page = (await ann.get(path, params={"of": "c"}, headers=AS_JSON)).json()
        assert (page["tenant"], len(page["items"])) == ("c", 1)
        assert len((await ann.get(path, headers=AS_JSON)).json()["items"]) == 1
    item = (await ann.get("/items/late", params={"of": "c"})).text
    filters = [unescape(link) for link in LINK.findall(item) if "q=" in link]
    assert len(filters) == 2  # of its group, of its key
    for link in filters:
        shown = (await ann.get(link, headers=AS_JSON)).json()["items"]
        assert [(each["id"], each["tenant"]) for each in shown] == [("late", "c")]
    (cancel,) = [
        unescape(link) for link in LINK.findall((await ann.get("/groups/late?of=c")).text) if "/act" in link
    ]
    assert "Cancel 1 item" in (await ann.get(cancel)).text
    (cancel,) = [
        unescape(link) for link in LINK.findall((await of_c.get("/groups/late")).text) if "/act" in link
    ]
    assert "Cancel 1 item" in (await of_c.get(cancel)).text


async def test_the_failed_part_of_a_group_runs_again(
    memory_store: Callable[[], Backend], make_app: MakeApp, visitor: Visitor
) -> None:
    app = make_app(memory_store, *WORK)
    await fill(app)
    ann, of_c = visitor(app), visitor(app, tenants=["c"])
    page = await ann.get("/groups/dead", params={"of": "a"})
    (action,) = [action for method, action in forms(page.text) if action != "/settings"]
    assert action == "/groups/dead/repair?of=a"
    assert (await of_c.post(action)).status_code == 404
    assert said(await ann.post(action, data={"reason": "fixed"})) == (303, "/groups/dead?of=a&done=requeue.1")
    assert (await state_of(app.tenant("a"), "dead")).status == "ready"
    (entry,) = [each for each in (await app.audits()).entries if each.count]
    assert (entry.actor, entry.tenant, entry.reason) == ("ann", "a", "fixed")
    assert (await ann.post(action)).status_code == 409  # nothing failed
    bulk = await app.by("ann").bulk.start("delete", status="scheduled")
    assert (await ann.post(f"/groups/{bulk.id}/repair")).status_code == 409
    assert forms((await ann.get(f"/groups/{bulk.id}")).text) == {("POST", "/settings")}


def forms(text: str) -> set[tuple[str, str]]:
    """Where the forms of a page are sent to: method and address."""
    found = {(method.upper(), unescape(action)) for method, action in FORM.findall(text)}
    return found | {("POST", unescape(action)) for action in BUTTON.findall(text)}
