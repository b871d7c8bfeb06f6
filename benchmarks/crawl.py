"""A recursive crawl whose pages are groups in groups, against a flat fan-out of as many items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.measure import Figure, Stopwatch, rounds
from benchmarks.stores import Stores
from treadle import Context, Result, Treadle, work

BRANCHES = 4
DEPTH = 6
PAGES = 5_000


def below(n: int, pages: int) -> range:
    """The pages that page `n` links to: a tree of depth 6, if there are 5,000 pages."""
    return range(BRANCHES * n + 1, min(BRANCHES * (n + 1), pages - 1) + 1)


@work(name="crawl.page")
async def page(ctx: Context, n: int, pages: int) -> Result[Any, int]:
    """A page with links is a group. `merge` adds the page itself."""
    links = below(n, pages)
    if not links:
        return ctx.result(1, append=lambda old: (old or 0) + 1)
    return ctx.group([page(link, pages) for link in links]).next(merge())


@work(name="crawl.merge")
async def merge(ctx: Context) -> Result[int]:
    (found,) = await ctx.results(ctx.dependencies)
    return ctx.result(found + 1, append=lambda old: (old or 0) + found + 1)


@work(name="crawl.index")
async def index(ctx: Context) -> int:
    """How many pages it sees."""
    (found,) = await ctx.results(ctx.dependencies)
    return found


@work(name="crawl.crawl")
async def crawl(ctx: Context, pages: int) -> Result[None, int]:
    return ctx.group(page(0, pages)).next(index())


@work(name="crawl.leaf")
async def leaf(ctx: Context) -> Result[int]:
    """It counts itself, as a page does."""
    return ctx.result(1, append=lambda old: (old or 0) + 1)


@work(name="crawl.count")
async def count(ctx: Context) -> Result[int]:
    found = len(await ctx.results(ctx.dependencies))
    return ctx.result(found, final=True)


@work(name="crawl.flat")
async def flat(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue([leaf() for _ in range(n)]).next(count())


WORK = (page, merge, index, crawl, leaf, count, flat)


class CrawlCases:
    """The cases on one kind of store."""

    def __init__(self, stores: Stores, kind: str, pages: int) -> None:
        self._stores = stores
        self._kind = kind
        self._pages = pages
        inner = sum(len(below(n, pages)) > 0 for n in range(pages))
        self._items = pages + 2 * inner
        """Pages, an item that closes each group, and a merge for each."""

    async def crawled(self) -> float:
        """Microseconds per item."""
        async with self._stores.fresh(self._kind) as url, Treadle(url, work=WORK) as app:
            with Stopwatch() as watch:
                assert await app.enqueue(crawl(self._pages)).group() == self._pages
        return watch.seconds * 1e6 / self._items

    async def flat(self) -> float:
        async with self._stores.fresh(self._kind) as url, Treadle(url, work=WORK) as app:
            with Stopwatch() as watch:
                assert await app.enqueue(flat(self._items)).group() == self._items
        return watch.seconds * 1e6 / self._items


async def crawls(stores: Stores, kinds: Sequence[str], pages: int, times: int) -> dict[str, list[Figure]]:
    figures: dict[str, list[Figure]] = {}
    for kind in kinds:
        cases = CrawlCases(stores, kind, pages)
        figures[kind] = await rounds(
            [("crawl, per item", "us", cases.crawled), ("flat, per item", "us", cases.flat)], times, kind
        )
    return figures
