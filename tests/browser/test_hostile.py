"""Whatever producers store, pages show it as text: nothing of it runs, loads, moves or reorders anything."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.browser.conftest import OpenPage
from tests.browser.site import PATH, Site, serve
from tests.browser.stock import ended
from treadle import Context, Result, Retry, Treadle, work
from treadle.doers import concurrency

if TYPE_CHECKING:
    from playwright.sync_api import Page

IMAGE = "<img data-injected src=x onerror=alert(1)>"
SCRIPT = "</script></title></textarea><script data-injected>alert(2)</script>"
QUOTES = "\"' onfocus=alert(3) autofocus data-injected='"
LINK = "javascript:alert(4)//{{7*7}}${7*7}%3Cb%3E"
SLASHES = "../../\\evil/?a=b&c=d#e;%2F%00~"
LONG = "W" * 250
ARABIC = "طلب جديد"
HIDDEN = "\u202egnp.exe\u2066\u0000\u001b[31m\r\n"
"""Names may hold no such characters. Texts of errors and inputs may."""
NAMES = (IMAGE, SCRIPT, QUOTES, LINK, SLASHES, LONG, ARABIC)

IDS = ("..", ".", "javascript:alert-4-", "-", "CON", "W" * 128, "__proto__")
"""The worst that ids can be."""

REORDERS = re.compile("[\u202a-\u202e\u2066-\u2069]")
HUGE = {"text": IMAGE + HIDDEN, SCRIPT: QUOTES, "long": "x" * 100_000, "number": 2**70, "bytes": [LINK] * 3}


async def hostile_work(given: dict[str, Any]) -> None:
    raise ValueError(f"{IMAGE}{SCRIPT}{QUOTES}{HIDDEN}{LONG * 20}")


async def hostile_root(ctx: Context) -> Result[None, None]:
    return ctx.queue([type_(HUGE) for type_ in TYPES[:3]])


TYPES = [
    work(name=name, queue=name, retry=Retry(attempts=1), doer=concurrency(5, name=name))(hostile_work)
    for name in NAMES
]
ROOT = work(name=f"root {IMAGE}")(hostile_root)


def hostile_app() -> Treadle:
    app = Treadle(work=[*TYPES, ROOT], worker_id=f"worker {IMAGE}", log_failures=False)
    for name in NAMES:
        app.schedule(name, every=3600, run=lambda: TYPES[0]({}), queue=name)
    return app


async def fill(app: Treadle) -> None:
    for name, type_, id in zip(NAMES, TYPES, IDS, strict=True):
        options: dict[str, Any] = {
            "key": name,
            "lane": name,
            "workflow": name,
            "headers": {name: HIDDEN + IMAGE},
        }
        client = app.tenant(name)
        await ended(app, await client.enqueue(type_(HUGE), id=id, **options))
        await client.enqueue(type_(HUGE), delay=3600, **{**options, "key": None})
    await app.enqueue(ROOT(), workflow=SCRIPT).group(10, partial=True)
    await app.pause(IMAGE)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve(hostile_app(), title=IMAGE) as site:
        site.call(fill(site.app))
        yield site


def kind(url: str) -> tuple[str, ...]:
    """Pages with the same kind differ only in what they are about."""
    parts = urlsplit(url)
    path = parts.path.removeprefix(PATH).strip("/").split("/")
    names = [part if n != 1 or len(path) < 2 else "*" for n, part in enumerate(path)]
    return (*names, *sorted({name for name, _ in parse_qsl(parts.query)}))


def crawl(page: Page, start: str, alike: int) -> Iterator[tuple[str, int]]:
    """Open all pages that can be reached by links, at most `alike` of each kind. Yields their addresses and
    the status of the answer."""
    waiting, seen, counted = [start], {start}, Counter[tuple[str, ...]]()
    while waiting:
        url = waiting.pop(0)
        counted[kind(url)] += 1
        if counted[kind(url)] > alike:
            continue
        answer = page.goto(url)
        yield url, answer.status if answer else 0
        for link in page.evaluate(LINKS):
            found = link.partition("#")[0]
            if found not in seen:
                seen.add(found)
                waiting.append(found)


LINKS = """[...document.querySelectorAll('a:not([download])')]
  .map(link => new URL(link.getAttribute('href'), location).href)"""
FACTS = """() => ({
  injected: document.querySelectorAll('[data-injected]').length,
  text: document.body.innerText,
  wide: document.documentElement.scrollWidth - window.innerWidth,
  title: document.title,
})"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("alike", [1, pytest.param(2, marks=pytest.mark.another_seed)])
def test_hostile_names_and_texts_do_nothing_on_any_page(site: Site, open_page: OpenPage, alike: int) -> None:
    """The guard of `open_page` would find scripts that run, and what is loaded from elsewhere. `make proof`
    opens more pages of each kind."""
    page = open_page("about:blank", origin=site.origin)
    opened, wrong = Counter[str](), list[tuple[str, str]]()
    for url, status in crawl(page, site.url(), alike):
        facts = page.evaluate(FACTS)
        problems = {
            f"status {status}": status != 200,
            "elsewhere": not url.startswith(site.url()),
            "injected": facts["injected"],
            "reordered": REORDERS.search(facts["text"]),
            f"{facts['wide']} px too wide": facts["wide"] > 0,
            "no title": IMAGE not in facts["title"],
        }
        wrong += [(problem, url) for problem, found in problems.items() if found]
        opened[kind(url)[0]] += 1
    assert not wrong, "\n".join(f"{problem}: {url}" for problem, url in wrong)
    assert {"", "items", "dead", "queues", "types", "workers", "groups", "workflows"} <= set(opened), opened
