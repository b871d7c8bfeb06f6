"""Lists: rows that open what they are about, and cards on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import Site, serve
from tests.browser.stock import ended, fill, make_app, send
from tests.browser.test_frame import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Page

PHONE = {"width": 390, "height": 844}
LONG = f"northwind-traders-{'international-' * 9}gmbh-{'x' * 60}"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(make_app()) as site:
        site.call(fill(site.app))
        site.call(long_name(site))
        yield site


async def long_name(site: Site) -> None:
    client = site.app.tenant(LONG)
    await ended(site.app, await client.enqueue(send("lost@down.example")))
    await client.enqueue_many([send(f"{n}@example.com") for n in range(3)], queue="newsletter")
    await client.by("ada").pause("imports")


def first_row(page: Page) -> tuple[str, str]:
    """The text of the first row's input or error, and the address of its item."""
    row = page.locator("tbody tr[data-row]").first
    return row.locator("td.wide").inner_text(), row.locator("th a").get_attribute("href") or ""


def test_a_click_anywhere_in_a_row_opens_its_item(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    page = open_page(site.url("/items?q=status:dead"))
    said, address = first_row(page)
    assert "down.example does not answer" in said
    assert 'to: "lost@down.example"' in said
    page.locator("input[data-choose]").first.check()
    assert "/items?q=" in page.url  # a checkbox stays a checkbox
    page.locator("tbody td.wide").first.click()
    expect(page).to_have_url(re.compile(re.escape(address)))
    page.go_back()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(re.escape(address)))


def test_text_in_a_row_can_be_selected(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url("/items?q=status:dead"))
    box = page.locator("tbody td.type").first.bounding_box()
    assert box
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 50, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    assert page.evaluate("String(getSelection())")
    assert "/items?q=" in page.url


COVERED = """() => [...document.querySelectorAll('.scroll tbody :is(td, th)')].flatMap(cell => {
  const box = cell.getBoundingClientRect()
  if (!box.width) return []
  cell.scrollIntoView({block: 'center'})
  const now = cell.getBoundingClientRect()
  const seen = document.elementFromPoint(now.left + now.width / 2, now.top + now.height / 2)
  const whole = now.left >= 0 && now.right <= innerWidth
  return whole && cell.closest('tr').contains(seen) ? [] : [cell.outerHTML.slice(0, 120)]
})"""


def test_on_a_phone_no_cell_is_covered_or_out_of_sight(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url(), viewport=PHONE)
    found: dict[str, list[str]] = {}
    for entry in PAGES:
        page.goto(site.url(entry.path))
        found[entry.path] = page.evaluate(COVERED)
    assert {path: cells for path, cells in found.items() if cells} == {}
    page.goto(site.url("/queues"))
    card = page.locator("tbody tr").filter(has_text="newsletter")
    said = card.locator("td[data-label=ready]").evaluate("cell => getComputedStyle(cell, '::before').content")
    assert "data-label" in said or "ready" in said


NARROW = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.scrollWidth)"


def test_a_long_name_of_a_tenant_pushes_no_column_out(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url(), viewport={"width": 1280, "height": 800})
    paths = [entry.path for entry in PAGES]
    wide = dict[str, list[int]]()
    for path in (*paths, "/items?q=status:dead", "/queues/newsletter", f"/?tenant={LONG}"):
        page.goto(site.url(path))
        wide[path] = page.eval_on_selector_all(".scroll", NARROW)
    assert {path: found for path, found in wide.items() if found} == {}


def test_the_button_of_the_keys_covers_none_of_them(site: Site, open_page: OpenPage) -> None:
    for screen in (PHONE, {"width": 1280, "height": 800}):
        page = open_page(site.url(), viewport=screen)
        page.keyboard.press("?")
        last = page.locator("#keys dl > :last-child").bounding_box()
        button = page.locator("#keys button").bounding_box()
        assert last
        assert button
        assert last["y"] + last["height"] + 8 <= button["y"]
