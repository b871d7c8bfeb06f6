"""Steps in a browser: a signal is sent with the form, and the page follows the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import Site, serve
from treadle import Context, Handle, Treadle, work

if TYPE_CHECKING:
    from playwright.sync_api import Page


async def charge(order: int) -> dict[str, int]:
    return {"charged": order}


@work(name="order.fulfil")
async def fulfil(ctx: Context, order: int) -> str:
    await ctx.step("charge", charge, order)
    approval = await ctx.signal("approval", dict[str, bool])
    for n in range(3):
        await ctx.emit(f"first part {n}")
    await ctx.progress(1, 2, "half of it")
    await ctx.signal("rest", bool)
    await ctx.emit("second part")
    return f"approved: {approval}"


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(Treadle("memory://", work=[fulfil], poll_interval=0.05)) as site:
        yield site


def enqueue(site: Site) -> Handle[str, str]:
    async def begin() -> Handle[str, str]:
        return await site.app.enqueue(fulfil(17))

    return site.call(begin())


def mark(page: Page) -> None:
    """Leave a mark that a reload would remove."""
    page.evaluate("window.notReloaded = true")


@pytest.mark.parametrize("scripts", [True, False], ids=["javascript", "none"])
def test_send_a_signal_with_the_form(site: Site, open_page: OpenPage, scripts: bool) -> None:
    from playwright.sync_api import expect

    handle = enqueue(site)
    page = open_page(site.url("/items"), java_script_enabled=scripts, faults="400")
    if not scripts:
        page.wait_for_timeout(500)
        page.reload()
    expect(page.get_by_role("row").filter(has_text=handle.id[-8:])).to_contain_text("when the signal comes")
    page.get_by_role("link", name=handle.id[-8:]).click()
    timeline = page.get_by_role("region", name="Timeline")
    expect(timeline).to_contain_text('{"charged":17}')
    expect(timeline).to_contain_text("waits for the signal approval")
    timeline.get_by_role("link", name="Send…").click()
    expect(page.get_by_label("Name required")).to_have_value("approval")
    page.get_by_label("Value, as JSON").fill("{")
    page.get_by_label("Reason").fill("the boss said yes")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("no JSON")
    page.get_by_label("Value, as JSON").fill('{"ok": true}')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status").first).to_contain_text("sent the signal")
    site.call(site.app.signal(handle.id, "rest", True))
    assert site.call(handle.result(10)) == "approved: {'ok': True}"
    page.goto(site.url("/audit"))
    expect(page.get_by_role("main")).to_contain_text("the boss said yes")


def test_a_page_follows_progress_and_the_stream(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    handle = enqueue(site)
    page = open_page(site.url(f"/items/{handle.id}"))
    mark(page)
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("waits for the signal approval")
    assert not page.get_by_role("region", name="Stream").is_visible()
    site.call(site.app.signal(handle.id, "approval", {"ok": True}))
    stream = page.get_by_role("region", name="Stream")
    expect(stream.get_by_role("listitem")).to_have_count(3)
    expect(page.get_by_role("region", name="Progress")).to_contain_text("1 of 2, 50.0 %")
    expect(page.get_by_role("region", name="Progress")).to_contain_text("half of it")
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("waits for the signal rest")
    site.call(site.app.signal(handle.id, "rest", True))
    expect(stream.get_by_role("listitem").last).to_contain_text("second part")
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("succeeded")
    assert page.evaluate("window.notReloaded")


def test_requeue_from_a_step(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    handle = enqueue(site)
    page = open_page(site.url(f"/items/{handle.id}"))
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("waits for the signal approval")
    site.call(site.app.cancel(handle.id))
    mark(page)
    page.get_by_role("button", name="Requeue from here (charge)").click()
    expect(page.get_by_role("status").first).to_contain_text("requeued 1 item")
    expect(page.get_by_role("region", name="Timeline")).to_contain_text("waits for the signal approval")
    assert page.evaluate("window.notReloaded")
