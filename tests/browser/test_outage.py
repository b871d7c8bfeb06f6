"""What a visitor sees while the store or the dashboard is away, and after access was taken away."""

from __future__ import annotations

from tests.browser.conftest import OpenPage
from tests.browser.site import serve
from tests.browser.stock import make_app
from treadle.backends.memory import MemoryBackend
from treadle.dashboard import Access
from treadle.testing.faults import FaultyBackend

EXPECTED = "Failed to load resource|net::ERR"


def test_a_page_says_that_it_is_old_and_goes_on_by_itself(open_page: OpenPage) -> None:
    from playwright.sync_api import expect

    backend = FaultyBackend(MemoryBackend())
    granted: list[Access | None] = [Access(actor="ada", can="all")]

    def access(_: object) -> Access | None:
        return granted[0]

    with serve(make_app(backend=backend), works=False, access=access) as site:
        site.call(site.app.pause("mail"))
        page = open_page(site.url("/queues/mail"), faults=EXPECTED)
        alert, banner = page.locator("#alerts"), page.locator("#banner")
        expect(page.get_by_role("button", name="Resume")).to_be_visible()

        with backend.faults.outage():
            page.get_by_role("button", name="Resume").click()
            expect(alert).to_contain_text("It may or may not have happened")
            expect(banner).to_contain_text("the store does not answer. What is shown is as of")
            expect(page.get_by_role("button", name="Resume")).to_be_visible()
            late = open_page(site.url("/queues/mail"), faults=EXPECTED)
            expect(late.get_by_role("heading", level=1)).to_have_text("The store does not answer")

        expect(banner).to_be_hidden()
        expect(late.get_by_role("button", name="Resume")).to_be_visible()
        page.context.set_offline(True)
        page.get_by_role("button", name="Resume").click()
        expect(alert).to_contain_text("No answer: it may or may not have happened")
        page.context.set_offline(False)
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
        expect(alert).to_be_empty()

        granted[0] = None
        expect(page.locator("#main")).to_contain_text("You have no access to this page any more")
        expect(page.get_by_role("button", name="Pause", exact=True)).to_have_count(0)
