"""A thousand dead letters: requeue them all, watch the progress, stop it, and let the rest follow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import Site, serve
from tests.browser.stock import DOWN, make_app, send
from treadle.dashboard.actions import act

MANY = 1000


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(act, "COUNT_SECONDS", 10.0)  # a busy machine counts to the end too
    DOWN.add("down.example")
    with serve(make_app()) as site:
        site.call(_die(site))
        DOWN.clear()
        yield site


async def _die(site: Site) -> None:
    await site.app.enqueue_many([send(f"reader{n}@down.example") for n in range(MANY)])
    await site.app.worker.drain()
    assert await count_dead(site) == MANY


async def count_dead(site: Site) -> int:
    counts = (await site.app.overview()).counts
    return sum(each.count for each in counts if each.status == "dead")


def number(text: str | None) -> int:
    return int(re.sub(r"\D", "", text or "") or -1)


@pytest.mark.timeout(120)
def test_requeue_a_thousand_with_progress_and_stop(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    page = open_page(site.url("/dead"))
    page.get_by_role("link", name="Requeue all…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Requeue 1,000 items")
    page.get_by_label("Items a second").fill("100")
    page.get_by_role("button", name="Requeue").click()
    assert site.call(count_dead(site)) == MANY, "a change of this many items needs a reason"
    page.get_by_label("Reason").fill("the mail server is back")
    page.get_by_role("button", name="Requeue").click()

    progress = page.get_by_role("region", name="Progress")
    changed = progress.get_by_role("definition").first
    expect(progress).to_contain_text("of 1,000 looked at")
    expect(changed).to_have_text(re.compile("[1-9]05"))  # it follows by itself, after a canary of 5
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("main")).to_contain_text("stopped")
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    done = number(changed.text_content())
    assert 0 < done < MANY
    assert site.call(count_dead(site)) == MANY - done

    page.goto(site.url("/dead"))
    page.get_by_role("link", name="Requeue all…").click()
    page.get_by_label("Reason").fill("the rest")
    page.get_by_role("button", name="Requeue").click()
    expect(changed).to_have_text(f"{MANY - done:,}")
    assert site.call(count_dead(site)) == 0

    page.goto(site.url("/audit"))
    expect(page.get_by_role("main")).to_contain_text("ada@example.com")
    expect(page.get_by_role("main")).to_contain_text("the mail server is back")
