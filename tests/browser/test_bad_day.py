"""What pages say on a bad day, and that axe finds nothing serious in any of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

from tests.browser.bad_day import FAR, fill, make_app, others, pages
from tests.browser.conftest import OpenPage, left_out
from tests.browser.site import Site, serve
from tests.browser.test_lists import PHONE

if TYPE_CHECKING:
    from playwright.sync_api import Page

DESKTOP = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(make_app()) as site:
        site.call(fill(site.app))
        yield site


# ---------------------------------------------------------------------------------------------------- axe

FIND = """async () => {
  const {violations} = await axe.run(document, {resultTypes: ['violations']})
  const bad = violations.filter(each => ['serious', 'critical'].includes(each.impact))
  return bad.flatMap(each => each.nodes.slice(0, 3).map(node => `${each.id}: ${node.html.slice(0, 160)}`))
}"""


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("kind", [pages, pytest.param(others, marks=pytest.mark.another_seed)])
@pytest.mark.parametrize(
    ("scheme", "screen"),
    [
        ("light", DESKTOP),
        pytest.param("dark", PHONE, marks=pytest.mark.another_seed),
        pytest.param("dark", DESKTOP, marks=pytest.mark.another_seed),
        pytest.param("light", PHONE, marks=pytest.mark.another_seed),
    ],
)
def test_axe_finds_nothing_serious(
    site: Site,
    open_page: OpenPage,
    scheme: str,
    screen: dict[str, int],
    kind: Callable[[Site], Iterator[str]],
    part: int,
) -> None:
    page = open_page(site.url(), color_scheme=scheme, viewport=screen, faults="status of 40[04]")
    found: dict[str, list[str]] = {}
    for path in list(kind(site))[part::3]:
        page.goto(site.url(path))
        found[path] = findings(page)
    assert {path: each for path, each in found.items() if each} == {}


def findings(page: Page) -> list[str]:
    try:
        script = files("axe_playwright_python") / "axe.min.js"
    except ModuleNotFoundError:
        left_out("axe is not installed; `make browser` installs it.")
    page.evaluate(script.read_text())
    found: list[str] = page.evaluate(FIND)
    return found


# -------------------------------------------------------------------------------------------------- pauses


def test_lists_say_who_has_paused_a_queue_or_a_type_and_why(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url())
    said = "by ada@example.com .*: the bank asked for it"
    for path, name, expected in (
        ("/", "mail", f"paused {said}"),
        ("/queues", "mail", f"paused {said}"),
        ("/queues", "media", f"paused for acme {said}"),
        ("/types", "report.large", f"paused {said}; it ends in"),
    ):
        page.goto(site.url(path))
        row = page.locator("tbody tr").filter(has=page.get_by_role("link", name=name, exact=True))
        assert "‖" in row.inner_text()
        assert re.match(expected, row.locator("xpath=following-sibling::tr[1]").inner_text())


# ---------------------------------------------------------------------------------------------- ids and names

MADE = re.compile(r"[0-9a-f]{32}")


def test_ids_that_treadle_made_are_shown_by_their_end(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url())
    (dead, *_) = site.call(site.app.tenant("acme").list(status="dead")).items
    bulk = site.call(site.app.bulk.list())[0].id
    for path in ("/workers", "/groups", "/audit", f"/bulk/{bulk}"):
        page.goto(site.url(path))
        rows = page.locator("main tbody")
        rows.first.wait_for()
        assert MADE.findall(" ".join(rows.all_inner_texts())) == [], path
    page.goto(site.url(f"/items/{dead.id}?of=acme"))
    for part in (".facts", ".steps"):
        assert MADE.findall(" ".join(page.locator(part).all_inner_texts())) == []
    page.goto(site.url("/workers"))
    assert page.get_by_text("far.example.com:4711").is_visible()
    assert page.get_by_title(FAR).first.inner_text() == "…ffffffff"


def test_the_items_of_a_portion_are_links(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url(f"/bulk/{site.call(site.app.bulk.list())[0].id}"))
    page.locator("tbody a.id").last.click()
    page.get_by_role("heading", level=1).filter(has_text="payment.charge").wait_for()


def test_the_audit_does_not_take_the_name_of_a_limit_for_an_item(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url("/audit"))
    assert page.get_by_text("graphics card").first.is_visible()
    assert page.get_by_role("link", name="graphics card").count() == 0


# ------------------------------------------------------------------------------------------ before an action


def test_a_canary_is_proposed_where_the_items_run_at_once(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url())
    for verb, where, proposed in (
        ("requeue", "status:dead", "5"),
        ("update", "queue:mail", ""),
    ):
        page.goto(site.url(f"/act/{verb}?q={where}"))
        assert page.get_by_label("Canary").input_value() == proposed


# ------------------------------------------------------------------------------------------------ run times


def test_lost_attempts_stand_beside_run_times(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url("/types"))
    row = page.locator("tbody tr").filter(has=page.get_by_role("link", name="media.resize"))
    assert row.locator(".failed").inner_text() == "3"
    for path in ("/types/media.resize", "/queues/media", "/"):
        page.goto(site.url(path))
        assert page.get_by_text("lost attempts 3").is_visible()
