"""Lists: rows that open what they are about, and cards on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import Site, serve
from tests.browser.stock import fill, make_app
from tests.browser.test_frame import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Page

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(make_app()) as site:
        site.call(fill(site.app))
        yield site


def first_row(page: Page) -> tuple[str, str]:
    """The text of the first row's input or error, and the address of its item."""
    row = page.locator("tbody tr[data-row]").first
    return row.locator("td.wide").inner_text(), row.locator("th a").get_attribute("href") or ""


def test_a_click_anywhere_in_a_row_opens_its_item(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    page = open_page(site.url("/items?q=status:dead"))
    said, address = first_row(page)
    assert "down.example does not answer" in said
    assert 'to: "eve@down.example"' in said
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
