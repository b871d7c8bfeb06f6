"""Pictures of every page, light and dark, on a desktop and on a phone: `make shots`.

They show the shop of `make demo-web`, on a clock and with ids that are the same each time. All of them go to
`.demo/shots`, with sheets that show them side by side. Those of the docs go to `docs/images/dashboard`.
"""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from examples.demo_web import RARE, WORK, begin, keep_busy, make_app, serve_customers
from tests.browser.conftest import launch
from tests.browser.get_browser import get
from tests.browser.site import Site, serve
from treadle import Treadle
from treadle.backends.memory import MemoryBackend
from treadle.base.ids import id_generator
from treadle.dashboard.addresses import segment
from treadle.dashboard.site import ENTRIES
from treadle.metrics.names import SECONDS
from treadle.records import MINUTE, Stat

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROJECT = Path(__file__).parents[2]
ALL = PROJECT / ".demo" / "shots"
SHOWN = PROJECT / "docs" / "images" / "dashboard"
IN_DOCS = ("overview", "items", "item", "dead", "queue", "workers", "group", "schedules")
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
SCHEMES = ("light", "dark")
START = 1_780_301_400.0
"""Monday, 1 June 2026, 8:10 UTC."""
QUALITY = 70


class ShopClock:
    """Time passes as it does, from `START` on."""

    def __init__(self) -> None:
        self._ahead = START - time.time()

    def now(self) -> float:
        return time.time() + self._ahead

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def make_shop() -> Treadle:
    RARE.seed(7)
    clock = ShopClock()
    ids = id_generator(clock.now, random.Random(7))
    return make_app(MemoryBackend(clock), clock=clock, generate_id=ids)


async def live_a_while(app: Treadle) -> None:
    """A morning of the shop in a few seconds, the statistics of the day before, and what operators did."""
    await app.backend.add_stats(list(earlier_statistics(await app.backend.now())))
    await begin(app)
    for number in range(1000, 1080):
        await serve_customers(app, number)
        await asyncio.sleep(0.05)
    await asyncio.sleep(2)
    ada = app.by("ada@example.com", reason="the customer has a new card", address="192.0.2.7")
    await ada.dead.requeue(type="payment.charge")
    await app.by("bob@example.com").pause("imports")
    await app.by("bob@example.com", reason="the import was correct").resume("imports")
    await ada.bulk.start("requeue", type="mail.send", status="dead", rate=5)
    await asyncio.sleep(2)


def earlier_statistics(now: float) -> Iterator[Stat]:
    """A day of minutes: busy at noon, with an hour in which the mail server was down."""
    chance = random.Random(7)
    for minutes_ago in range(1, 24 * 60):
        at = (now // MINUTE - minutes_ago) * MINUTE
        hour = at % 86_400 / 3600
        for kind in WORK:
            usual = 300 / len(kind.name) * (1.2 + min(hour, 24 - hour) / 6)
            started = int(usual * chance.uniform(0.7, 1.3))
            broken = kind.name == "mail.send" and 200 < minutes_ago < 260
            failed = int(started * (0.6 if broken else chance.uniform(0, 0.05)))
            times = tuple(
                started if n == 6 else started // 9 if n in (5, 7) else 0 for n in range(len(SECONDS) + 1)
            )
            yield Stat(
                at=at,
                type=kind.name,
                queue=str(kind.options.get("queue") or "default"),
                started=started,
                succeeded=started - failed,
                failed=failed,
                retried=failed - failed // 3,
                dead=failed // 3,
                wait=times,
                run=times,
            )


def pages_of(site: Site) -> dict[str, str]:
    """The pages by name: those of the menu, and one of each kind below them."""
    app = site.app
    (dead,) = site.call(app.dead.list(type="import.row", limit=1)).items
    orders = site.call(app.list(type="order.place", status="success", limit=50)).items
    order = max(orders, key=lambda each: len(str(each.input)))
    group, mark = segment(order.group_id), site.call(app.dead.marks(count=1))[0].mark
    return {
        **{entry.section: entry.path for entry in ENTRIES},
        "item": f"/items/{segment(dead.id)}?of={dead.tenant}",
        "mark": f"/dead/{segment(mark)}",
        "queue": "/queues/media",
        "type": "/types/mail.send",
        "bulk action": f"/bulk/{site.call(app.bulk.list())[0].id}",
        "ask": "/act/requeue?q=status:dead",
        "hold": "/act/hold?q=queue:newsletter",
        "update": "/act/update?q=queue:newsletter",
        "workflows": "/workflows",
        "enqueue": "/types/mail.send/enqueue",
        "group": f"/groups/{group}?of={order.tenant}",
    }


def take(browser: Browser, site: Site, size: str, scheme: str) -> list[Path]:
    """Take pictures of all pages."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="UTC", locale="en-GB"
    )
    page = context.new_page()
    session = context.new_cdp_session(page)
    taken: list[Path] = []
    for name, path in pages_of(site).items():
        answer = page.goto(site.url(path))
        assert answer
        assert answer.status == 200, f"{path}: {answer.status}"
        page.get_by_role("heading", level=1).wait_for()
        page.screenshot()  # waits until the page is drawn; Playwright itself makes no WebP
        picture = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
        file = ALL / f"{name}-{scheme}-{size}.webp"
        file.write_bytes(base64.b64decode(picture["data"]))
        taken.append(file)
        if size == "desktop" and name in IN_DOCS:
            (SHOWN / f"{name}-{scheme}.webp").write_bytes(file.read_bytes())
    context.close()
    return taken


def write_sheet(browser: Browser, taken: list[Path], name: str) -> None:
    """One picture of several."""
    figures = "".join(
        f"<figure><figcaption>{file.stem}</figcaption><img src='{file.as_uri()}'></figure>" for file in taken
    )
    style = "body{display:flex;flex-wrap:wrap;font:14px sans-serif}figure{margin:6px}img{height:300px}"
    sheet = ALL / f"{name}.html"
    sheet.write_text(f"<!doctype html><style>{style}</style>{figures}")
    page = browser.new_page(viewport={"width": 1640, "height": 1000})
    page.goto(sheet.as_uri())
    page.screenshot(path=sheet.with_suffix(".png"), full_page=True)
    page.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    for directory in (ALL, SHOWN):
        directory.mkdir(parents=True, exist_ok=True)
    with serve(make_shop(), title="shop") as site, sync_playwright() as playwright:
        site.call(live_a_while(site.app), timeout=60)
        busy = site.begin(keep_busy(site.app))
        browser = launch(playwright, get())
        for size in SIZES:
            for scheme in SCHEMES:
                write_sheet(browser, take(browser, site, size, scheme), f"sheet-{size}-{scheme}")
        browser.close()
        busy.cancel()
    largest = max(file.stat().st_size for file in SHOWN.glob("*.webp"))
    print(f"Look at {ALL}/sheet-*.png. The largest picture of the docs has {largest // 1000} kB.")


if __name__ == "__main__":
    main()
