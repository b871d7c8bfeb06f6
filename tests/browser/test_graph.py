"""The graph of a workflow: it is searched, zoomed and dragged, also if it is large and changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import Site, serve
from tests.browser.stock import make_app
from treadle.item import Demand, ErrorInfo, Heartbeat, Item, Lease, Settlement, Submission

if TYPE_CHECKING:
    from playwright.sync_api import Page

PER_LAYER = 25
FAILED = ("n140", "n300", "n499")


@pytest.fixture
def site() -> Iterator[Site]:
    with serve(make_app(), works=False) as site:
        yield site


async def fill(site: Site, layers: int) -> None:
    backend = site.app.backend
    await backend.submit([Submission(tuple(_item(n) for n in range(layers * PER_LAYER)))])
    await backend.beat(Heartbeat(worker="w", lease=60))
    for _ in range(layers):
        leases = (await backend.claim(Demand(worker="w", limit=PER_LAYER))).leases
        await backend.begin(leases)
        await backend.settle([_settlement(lease) for lease in leases])


def _item(n: int) -> Item:
    return Item(
        id=f"n{n}",
        type="mail.send" if n % 2 else f"other.{n}",
        input=b'{"to":"reader-%d@example.com"}' % n,
        workflow="large",
        after=(f"n{n - PER_LAYER}",) if n >= PER_LAYER else (),
        need=int(n >= PER_LAYER),
        counting="done",
        key=f"key {n}" if n % 5 == 0 else None,
    )


def _settlement(lease: Lease) -> Settlement:
    if lease.id in FAILED:
        return Settlement(lease=lease, kind="dead", reason="aborted", failure=ErrorInfo("Abort", "no"))
    return Settlement(lease=lease, kind="success")


def in_sight(page: Page, id: str) -> bool:
    """Whether a node is within the box that scrolls."""
    box, node = page.locator("#graph").bounding_box(), page.locator(f"#node-{id}").bounding_box()
    assert box
    assert node
    inside = box["x"] <= node["x"] and node["x"] + node["width"] <= box["x"] + box["width"]
    return inside and box["y"] <= node["y"] and node["y"] + node["height"] <= box["y"] + box["height"]


def test_five_hundred_nodes_are_searched_and_the_failed_ones_found(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    site.call(fill(site, 20))
    page = open_page(site.url("/workflows/large"))
    further = page.locator("#graph-tools button[value=next]")  # by role it takes long in a large page
    expect(further).to_have_text("Next failed (3)")
    further.click()
    assert page.locator("#graph a").count() == 500
    assert in_sight(page, "n140")
    assert not in_sight(page, "n499")
    page.keyboard.press("n")
    page.keyboard.press("n")
    expect(page.locator("#graph-tools output")).to_have_text("3 of 3")
    assert in_sight(page, "n499")
    assert page.locator("tr[data-node]").first.inner_text().split()[:4] == ["key", "140", "✕", "dead"]

    page.keyboard.press("/")
    page.keyboard.type("mail.send reader-271@")
    page.keyboard.press("Enter")
    expect(page.locator("#graph-tools output")).to_have_text("1 of 1")
    assert in_sight(page, "n271")
    assert page.locator("#graph a[data-hit]").count() == 1
    assert page.locator("tr[data-node]:visible").count() == 0  # the list has the first 100


def test_a_graph_is_zoomed_and_dragged_and_stays_so_when_the_page_follows(
    site: Site, open_page: OpenPage
) -> None:
    from playwright.sync_api import expect

    site.call(fill(site, 6))
    page = open_page(site.url("/workflows/large"))
    box = page.locator("#graph")
    page.keyboard.press("0")
    assert in_sight(page, "n0")
    assert in_sight(page, "n140")
    for _ in range(8):
        page.keyboard.press("+")
    wide = page.locator("#graph svg").bounding_box()
    assert wide
    before = box.evaluate("box => box.scrollLeft")
    place = box.bounding_box()
    assert place
    page.mouse.move(place["x"] + 300, place["y"] + 150)
    page.mouse.down()
    page.mouse.move(place["x"] + 180, place["y"] + 150, steps=4)
    page.mouse.up()
    assert box.evaluate("box => box.scrollLeft") == pytest.approx(before + 120, abs=2)
    assert page.url == site.url("/workflows/large")  # no link was opened

    site.call(site.app.requeue(["n140"]))
    expect(page.locator("#node-n140 .node.ready")).to_be_attached()
    assert page.locator("#graph svg").bounding_box() == wide | {"x": wide["x"] - 120}
    assert box.evaluate("box => box.scrollLeft") == pytest.approx(before + 120, abs=2)
