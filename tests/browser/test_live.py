"""Pages follow the store without a reload, and what the visitor has typed, opened and scrolled to stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import Site, serve
from tests.browser.stock import DOWN, ended, make_app, place, send

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Request


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(make_app()) as site:
        yield site


def fail_once(site: Site) -> None:
    DOWN.add("down.example")
    site.call(_fail(site))


async def _fail(site: Site) -> None:
    await ended(site.app, await site.app.enqueue(send("ada@down.example")))


def tile(page: Page, text: str) -> Locator:
    return page.get_by_role("region", name="Items by status").get_by_role("link", name=text)


def mark(page: Page) -> None:
    """Leave a mark that a reload would remove."""
    page.evaluate("window.notReloaded = true")


def is_marked(page: Page) -> bool:
    return bool(page.evaluate("window.notReloaded"))


def test_a_page_follows_the_store_until_it_is_paused(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    page, other = open_page(site.url()), open_page(site.url())
    for each in (page, other):
        mark(each)
        expect(tile(each, "0 dead")).to_be_visible()
    fail_once(site)
    for each in (page, other):
        expect(tile(each, "1 dead")).to_be_visible()

    page.keyboard.press("p")
    expect(page.get_by_role("button", name="paused")).to_be_visible()
    fail_once(site)
    expect(tile(other, "2 dead")).to_be_visible()
    assert tile(page, "1 dead").is_visible()

    page.keyboard.press("p")
    expect(tile(page, "2 dead")).to_be_visible()
    assert is_marked(page)
    assert is_marked(other)


def test_what_is_open_and_where_the_page_is_scrolled_to_stay(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    site.call(site.app.pause("default"))
    group = site.call(_place(site))
    page = open_page(site.url(f"/groups/{group}"), viewport={"width": 800, "height": 300})
    mark(page)
    expect(page.get_by_role("link", name="order.place · ready")).to_be_visible()
    graph = page.get_by_role("group", name="Graph")
    graph.focus()
    page.evaluate("window.scrollTo(0, 150)")
    scrolled = page.evaluate("window.scrollY")
    assert scrolled > 100

    site.call(site.app.resume("default"))
    expect(page.get_by_role("link", name="order.ship · success")).to_be_visible()
    expect(graph).to_be_focused()
    # The browser keeps the first line that is visible in its place: a button above it is gone.
    assert page.evaluate("window.scrollY") == pytest.approx(scrolled, abs=10)
    assert is_marked(page)


async def _place(site: Site) -> str:
    return (await site.app.enqueue(place(1, ["anvil", "magnet"]))).id


def test_seven_windows_of_one_browser_share_one_stream(site: Site, open_page: OpenPage) -> None:
    """A browser has six connections to a host: with a stream for each window, the seventh did not load."""
    from playwright.sync_api import expect

    first = open_page(site.url())
    streams: dict[Request, Page] = {}
    first.context.on("requestfailed", lambda request: streams.pop(request, None))
    pages = [first, *(first.context.new_page() for _ in range(6))]
    for page in pages:
        page.on("request", lambda each, page=page: _add_stream(streams, each, page))
        page.goto(site.url())
        mark(page)
    for dead in (1, 2, 3):  # the window that has the stream is closed twice
        fail_once(site)
        for page in pages:
            expect(tile(page, f"{dead} dead")).to_be_visible()
        assert len(set(streams.values())) == 1
        (leader,) = set(streams.values())
        pages.remove(leader)
        leader.close()
        streams.clear()
    assert all(is_marked(page) for page in pages)


def _add_stream(streams: dict[Request, Page], request: Request, page: Page) -> None:
    if request.url.endswith("/live"):
        streams[request] = page


def test_a_window_that_cannot_talk_to_others_has_its_own_stream(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    page = open_page(site.url())
    page.context.add_init_script("delete window.BroadcastChannel")
    page.reload()
    fail_once(site)
    expect(tile(page, "1 dead")).to_be_visible()
