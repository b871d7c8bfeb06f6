"""What all pages have in common: the menu, the two schemes, narrow screens, keys, and the way in."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import Site, serve
from tests.browser.stock import fill, make_app
from tests.cli.forks import common_server
from treadle.dashboard.app import VIEWS
from treadle.dashboard.site import ENTRIES

if TYPE_CHECKING:
    from playwright.sync_api import Page

EXISTING = {view.path for view in VIEWS}
PAGES = [entry for entry in ENTRIES if entry.path in EXISTING]
DESKTOP = {"width": 1280, "height": 720}
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(make_app()) as site:
        site.call(fill(site.app))
        yield site


def through_the_menu(page: Page) -> Iterator[str]:
    """Go to each page of the menu. Yields its name."""
    from playwright.sync_api import expect

    for entry in PAGES:
        link = page.get_by_role("navigation").get_by_role("link", name=entry.title, exact=True)
        link.click()
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(link).to_have_attribute("aria-current", "page")
        expect(page.get_by_role("main")).not_to_be_empty()
        yield entry.title


def background(page: Page) -> int:
    """How light the page is, from 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) // 3


@pytest.mark.parametrize(
    ("scheme", "low", "high", "screen"), [("light", 200, 255, DESKTOP), ("dark", 0, 55, PHONE)]
)
def test_every_page_in_both_schemes_fits_on_its_screen(
    site: Site, open_page: OpenPage, scheme: str, low: int, high: int, screen: dict[str, int]
) -> None:
    page = open_page(site.url(), color_scheme=scheme, viewport=screen)
    width = {name: page.evaluate("document.documentElement.scrollWidth") for name in through_the_menu(page)}
    assert list(width) == [entry.title for entry in PAGES]
    assert {name: wide for name, wide in width.items() if wide > screen["width"]} == {}
    assert low <= background(page) <= high


def test_on_a_phone_the_menu_shows_the_entry_of_the_page(site: Site, open_page: OpenPage) -> None:
    """Also when the counts have come, which make entries before it wider."""
    from playwright.sync_api import expect

    page = open_page(site.url(), viewport=PHONE)
    for entry in (PAGES[0], PAGES[len(PAGES) // 2], PAGES[-1]):
        page.goto(site.url(entry.path))
        expect(page.locator(".menu [data-count]").first).to_be_visible()
        expect(page.locator(".menu [aria-current]")).to_be_in_viewport(ratio=1)


def test_the_switch_wins_over_the_scheme_of_the_system(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url(), color_scheme="light")
    page.get_by_role("button", name="change to dark").click()
    page.get_by_role("button", name="change to light").wait_for()
    assert background(page) < 55
    page.reload()
    assert background(page) < 55


def test_every_page_without_javascript(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url(), java_script_enabled=False)
    assert len(list(through_the_menu(page))) == len(PAGES)
    page.get_by_role("button", name="change to dark").click()
    assert page.locator("html").get_attribute("data-scheme") == "dark"


def test_the_keys_are_shown_and_go_to_pages(site: Site, open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    page = open_page(site.url())
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    for entry in PAGES:
        page.keyboard.press("g")
        page.keyboard.press(entry.key)
        link = page.get_by_role("navigation").get_by_role("link", name=entry.title, exact=True)
        expect(link).to_have_attribute("aria-current", "page")


APP = """
from tests.browser.stock import make_app
app = make_app()
"""


@pytest.fixture
def printed_link(tmp_path: Path) -> Iterator[str]:
    """The link that `treadle web` prints."""
    (tmp_path / "linked.py").write_text(APP)
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": f"{tmp_path}:{root}", "PATH": ""}
    process = common_server().start_with_pipes(
        ["treadle", "web", "linked:app", "--port", "0"], tmp_path, environment
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        yield next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_the_printed_link_lets_one_browser_in(printed_link: str, open_page: OpenPage) -> None:
    page = open_page(printed_link)
    assert "token" not in page.url
    assert page.get_by_role("heading", level=1).inner_text() == "Overview"
    page.reload()
    assert page.get_by_role("heading", level=1).inner_text() == "Overview"
    other = open_page(printed_link, faults="403")
    assert "this link was used" in other.inner_text("body")
