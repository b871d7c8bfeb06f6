"""What an operator does, from beginning to end, with JavaScript and without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import Site, serve
from tests.browser.stock import DOWN, make_app, place, send
from treadle import Handle

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


@pytest.fixture
def site() -> Iterator[Site]:
    DOWN.clear()
    with serve(make_app()) as site:
        yield site


def enqueue_mail(site: Site, to: str) -> Handle[str, str]:
    async def enqueue() -> Handle[str, str]:
        return await site.app.enqueue(send(to))

    return site.call(enqueue())


def mark(page: Page) -> None:
    """Leave a mark that a reload would remove."""
    page.evaluate("window.notReloaded = true")


def is_marked(page: Page) -> bool:
    return bool(page.evaluate("window.notReloaded"))


def row(page: Page, text: str) -> Locator:
    return page.get_by_role("main").get_by_role("row").filter(has_text=text)


def test_watch_a_job_fail_and_requeue_it(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    page = open_page(site.url("/items"))
    mark(page)
    DOWN.add("down.example")
    handle = enqueue_mail(site, "ada@down.example")
    expect(row(page, handle.id[-8:])).to_contain_text("dead")
    expect(row(page, handle.id[-8:])).to_contain_text("down.example does not answer")
    assert is_marked(page)

    row(page, handle.id[-8:]).get_by_role("link", name=handle.id[-8:]).click()
    expect(page.get_by_role("region", name="Why")).to_contain_text("down.example does not answer")
    mark(page)
    DOWN.clear()
    page.get_by_role("button", name="Requeue").click()
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("succeeded")
    assert is_marked(page)
    assert site.call(handle.result(10)) == "sent to ada@down.example"


def test_requeue_without_javascript(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    DOWN.add("down.example")
    handle = enqueue_mail(site, "ada@down.example")
    page = open_page(site.url("/items"), java_script_enabled=False)
    page.get_by_role("link", name=handle.id[-8:]).click()
    DOWN.clear()
    page.get_by_role("button", name="Requeue").click()
    expect(page.get_by_role("status").first).to_contain_text("requeued 1 item")
    assert site.call(handle.result(10)) == "sent to ada@down.example"


@pytest.mark.parametrize("scripts", [True, False], ids=["javascript", "none"])
def test_pause_a_queue_and_resume_it(site: Site, open_page: OpenPage, scripts: bool) -> None:
    from playwright.sync_api import expect

    site.call(enqueue_mail(site, "ada@example.com").result(10))
    site.call(site.app.pause("newsletter"))  # a queue without items is listed if it is paused
    page = open_page(site.url("/queues/mail"), java_script_enabled=scripts)
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    expect(page.get_by_role("region", name="Why")).to_contain_text("paused")
    waiting = enqueue_mail(site, "bob@example.com")
    assert [state and state.status for state in site.call(site.app.get([waiting]))] == ["ready"]
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert site.call(waiting.result(10)) == "sent to bob@example.com"


def test_the_graph_of_a_fan_out_leads_to_its_items(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    async def order() -> str:
        handle = await site.app.enqueue(place(17, ["anvil", "magnet", "seed"]), workflow="order 17")
        await handle.group(10)
        return handle.id

    group = site.call(order())
    page = open_page(site.url(f"/items/{group}"))
    page.get_by_role("region", name="Belongs to").get_by_role("link", name="its own").click()
    graph = page.get_by_role("group", name="Graph")
    expect(graph.get_by_role("link")).to_have_count(5)
    expect(graph.get_by_role("link", name="order.reserve · success")).to_have_count(3)
    left = {
        name: graph.get_by_role("link", name=name).first.bounding_box()["x"]
        for name in (
            "order.place",
            "order.reserve",
            "order.ship",
        )
    }
    assert left["order.place"] < left["order.reserve"] < left["order.ship"]
    graph.get_by_role("link", name="order.ship").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("order.ship")


def test_typed_text_focus_and_choices_survive_live_updates(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    first = enqueue_mail(site, "ada@example.com")
    page = open_page(site.url("/items"))
    mark(page)
    page.get_by_role("checkbox", name=f"Select {first.id}").check()
    filter_ = page.get_by_role("combobox", name="Filter")
    filter_.press_sequentially("status:de")
    later = enqueue_mail(site, "bob@example.com")
    expect(row(page, later.id[-8:])).to_contain_text("success")
    expect(filter_).to_have_value("status:de")
    expect(filter_).to_be_focused()
    expect(page.get_by_role("checkbox", name=f"Select {first.id}")).to_be_checked()
    page.keyboard.type("ad")
    expect(filter_).to_have_value("status:dead")
    assert is_marked(page)


def test_with_the_keyboard_only(site: Site, open_page: OpenPage) -> None:
    """Filter, go down to a row, open it, requeue it."""
    from playwright.sync_api import expect

    DOWN.add("down.example")
    enqueue_mail(site, "ada@example.com")
    dead = enqueue_mail(site, "ada@down.example")
    page = open_page(site.url())
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page.get_by_role("heading", level=1)).to_have_text("Items")
    page.keyboard.press("/")
    page.keyboard.type("status:dead")
    page.keyboard.press("Enter")
    expect(page.get_by_role("main").get_by_role("row")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text(dead.id)
    DOWN.clear()
    page.keyboard.press("r")
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("succeeded")


def test_tab_reaches_everything_that_can_be_done(site: Site, open_page: OpenPage) -> None:
    """From the top of the page, in the order in which it is read, and each stop can be seen."""
    DOWN.add("down.example")
    dead = enqueue_mail(site, "ada@down.example")
    page = open_page(site.url(f"/items/{dead.id}"))
    page.get_by_role("button", name="Requeue").wait_for()
    stops: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => {
              const at = document.activeElement, shown = getComputedStyle(at);
              if (at === document.body) return null;
              if (shown.outlineStyle === 'none') return 'without outline: ' + at.outerHTML.slice(0, 200);
              return at.innerText || at.name || at.title;
            }"""
        )
        if stop is None:
            break
        stops.append(stop.strip())
    assert not [stop for stop in stops if stop.startswith("without outline")]
    wanted = ["Skip to the page", "Overview", "Audit", "Requeue", "Delete…", "mail.send"]
    assert [stop for stop in stops if stop in wanted] == wanted
