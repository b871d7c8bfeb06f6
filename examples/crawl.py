"""Groups in groups: a crawl whose index waits for every page, however deep, and the repair of a broken one.

Each page with links is a group of its own. What comes after it reads the value of that group.

Run it: python examples/crawl.py
"""

import asyncio

from treadle import Abort, Context, GroupFailed, Result, Treadle, work

SITE = {
    "/": ["/docs", "/blog", "/about"],
    "/docs": ["/docs/start", "/docs/groups"],
    "/blog": ["/blog/2024", "/blog/2025"],
    "/blog/2025": ["/blog/2025/nested"],
}
down = {"/blog/2025/nested"}


@work
async def page(ctx: Context, url: str) -> Result[set[str] | None, set[str]]:
    if url in down:
        raise Abort(f"{url} does not answer")
    links = SITE.get(url, [])
    if not links:
        return ctx.result({url}, append=lambda old: {url, *(old or ())})
    return ctx.group([page(link) for link in links]).next(merge(url))


@work
async def merge(ctx: Context, url: str) -> Result[set[str]]:
    """Runs when everything below the page has ended. Add the page itself, and pass them on."""
    (below,) = await ctx.results(ctx.dependencies)
    found = {url, *below}
    return ctx.result(found, append=lambda old: {*found, *(old or ())})


@work
async def index(ctx: Context) -> list[str]:
    (pages,) = await ctx.results(ctx.dependencies)
    return sorted(pages)


@work
async def crawl(ctx: Context) -> Result[None, set[str] | list[str]]:
    return ctx.group(page("/")).next(index())


async def main() -> None:
    async with Treadle(work=[page, merge, index, crawl]) as app:
        handle = await app.enqueue(crawl())
        try:
            await handle.group()
        except GroupFailed as error:
            print("failed:", error.error)
            print("and so could not run:", [death.type for death in error.failed[1:]])

        down.clear()  # the page answers again
        print("open again:", await app.repair(handle.group_id))
        pages = await handle.group()
        print(f"{len(pages)} pages:", *pages)


if __name__ == "__main__":
    asyncio.run(main())
