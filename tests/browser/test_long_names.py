"""Names of the greatest length: a page breaks or cuts them, and is no wider than the screen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import Site, serve
from tests.browser.test_frame import DESKTOP, PHONE
from treadle import Context, Result, Retry, Treadle, WorkFailed, work
from treadle.dashboard import Access
from treadle.dashboard.addresses import segment
from treadle.doers import concurrency

LONG = "W" * 250
ID = "W" * 128


@work(name=LONG, queue=LONG, retry=Retry(attempts=1), doer=concurrency(5, name=LONG))
async def long_work(given: dict[str, str]) -> None:
    raise ValueError(LONG)


@work(name=f"root.{LONG}"[:250])
async def long_root(ctx: Context) -> Result[None, None]:
    return ctx.queue([long_work({LONG: LONG}) for _ in range(3)])


def long_app() -> Treadle:
    app = Treadle(work=[long_work, long_root], worker_id=LONG, log_failures=False)
    app.schedule(LONG, every=3600, run=lambda: long_work({}), queue=LONG)
    return app


async def fill(app: Treadle) -> str:
    """Returns the mark of what died."""
    client = app.tenant(LONG)
    options: dict[str, Any] = {"key": LONG, "lane": LONG, "workflow": LONG, "headers": {LONG: LONG}}
    handle = await client.enqueue(long_work({LONG: LONG}), id=ID, **options)
    with suppress(WorkFailed):
        await handle.result(10)
    await client.enqueue(long_work({}), id=f"{ID[1:]}x", delay=3600, **{**options, "key": None})
    await client.enqueue(long_work({}), id=f"{ID[1:]}y", after=f"{ID[1:]}x")
    await client.enqueue(long_root(), id=f"{ID[1:]}z").group(10, partial=True)
    await client.by(LONG[:200], reason=LONG).pause(LONG)
    await client.by(LONG[:200], reason=LONG).bulk.start("trigger", key=LONG)
    return (await app.dead.marks())[0].mark


def pages(mark: str) -> Iterator[str]:
    """Every page that shows one of the names."""
    yield from ("/", "/items", "/dead", "/queues", "/types", "/workers", "/schedules", "/limits", "/tenants")
    yield from ("/audit", "/bulk", f"/dead/{mark}", f"/?tenant={LONG}", f"/items?tenant={LONG}")
    for id in (ID, f"{ID[1:]}x", f"{ID[1:]}y", f"{ID[1:]}z"):
        yield from (f"/items/{id}?of={LONG}", f"/items/{id}?tenant={LONG}")
    yield from (f"/items?q=queue:{LONG}", f"/items?q=type:{LONG}%20tenant:{LONG}")
    yield from (f"/queues/{LONG}", f"/types/{LONG}", f"/types/{LONG}/enqueue", f"/workers/{LONG}/drain")
    yield from (f"/groups/{ID[1:]}z?of={LONG}", f"/workflows/{LONG}?of={LONG}", f"/schedules/{LONG}/cancel")
    yield from (f"/items/{ID}/{verb}?of={LONG}" for verb in ("edit", "delete"))
    yield from (f"/items/{ID[1:]}x/{verb}?of={LONG}" for verb in ("complete", "update"))
    yield f"/act/requeue?q=type:{segment(LONG)}"


def visitor(_: object) -> Access:
    return Access(actor=LONG, can="all")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(long_app(), access=visitor, title=LONG) as site:
        yield site


TOO_WIDE = """() => {
  const room = document.documentElement.clientWidth
  const wide = document.documentElement.scrollWidth - room
  const out = [...document.body.querySelectorAll('*')].filter(each =>
    each.getBoundingClientRect().right > room + 1 && !each.closest('.scroll, .graph, .menu, .traceback'))
  return wide > 0 ? `${wide} px: ${out.slice(-3).map(each => each.outerHTML.slice(0, 100)).join(' | ')}` : ''
}"""


@pytest.mark.parametrize("screen", [DESKTOP, pytest.param(PHONE, marks=pytest.mark.another_seed)])
def test_no_page_is_wider_than_the_screen(site: Site, open_page: OpenPage, screen: dict[str, int]) -> None:
    mark = site.call(first_mark(site.app))
    page = open_page("about:blank", origin=site.origin, viewport=screen)
    found = dict[str, str]()
    for path in pages(mark):
        answer = page.goto(site.url(path))
        found[path.replace(LONG, "LONG").replace(ID[1:], "ID")] = (
            page.evaluate(TOO_WIDE)
            if answer and answer.status == 200
            else f"status {answer and answer.status}"
        )
    assert {path: wide for path, wide in found.items() if wide} == {}


def test_on_a_phone_what_died_of_what_is_read_without_a_scroll(site: Site, open_page: OpenPage) -> None:
    site.call(first_mark(site.app))
    page = open_page(site.url("/dead"), origin=site.origin, viewport=PHONE)
    width = "box => [box.scrollWidth, box.clientWidth]"
    wanted, room = page.eval_on_selector(".scroll:has(.marks)", width)
    assert wanted <= room
    assert page.locator(".marks .error").first.is_visible()


async def first_mark(app: Treadle) -> str:
    marks = await app.dead.marks()
    return marks[0].mark if marks else await fill(app)
