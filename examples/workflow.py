"""Fan out, then report: prices are fetched from every supplier at once, and compared when all have answered.

A handler returns what should happen next. One supplier does not answer, and the report says so.

Run it: python examples/workflow.py
"""

import asyncio

from treadle import Abort, Context, Result, Treadle, TreadleError, WorkFailed, work

PRICES = {
    "Adams & Sons": {"bolt": 0.12, "nut": 0.07},
    "Bricks Ltd": {"bolt": 0.10, "nut": 0.09},
    "Closed Corp": None,
    "Dales": {"bolt": 0.15, "nut": 0.05},
}


@work
async def fetch(supplier: str) -> dict[str, float]:
    prices = PRICES[supplier]
    if prices is None:
        raise Abort(f"{supplier} has gone out of business")  # a retry would not help
    return prices


@work
async def compare(ctx: Context, suppliers: list[str]) -> list[str]:
    """Runs when every fetch has ended, with success or not. The answers are in the order of the fetches."""
    answers = await ctx.results(fetch, return_exceptions=True)
    lines: list[str] = []
    for part in ("bolt", "nut"):
        offers = [
            (prices[part], name)
            for name, prices in zip(suppliers, answers, strict=True)
            if not isinstance(prices, TreadleError)
        ]
        price, name = min(offers)
        lines.append(f"{part:5} {price:.2f}  {name}")
    failed = [error for error in answers if isinstance(error, WorkFailed)]
    return [*lines, *(f"no prices: {error.error}" for error in failed)]


@work
async def survey(ctx: Context, suppliers: list[str]) -> Result[None, dict[str, float] | list[str]]:
    fetches = [fetch(supplier) for supplier in suppliers]
    return ctx.queue(fetches).next(compare(suppliers), when="all_done")


async def main() -> None:
    async with Treadle(work=[fetch, compare, survey]) as app:
        handle = await app.enqueue(survey(list(PRICES)))
        lines = await handle.group()  # the value of the group: the last contribution
        print("the best prices:", *lines, sep="\n  ")

        page = await app.list(group_id=handle.group_id, oldest_first=True)
        print(
            "what ran:",
            *(f"{item.type.partition('.')[2]:8} {item.status}" for item in page.items),
            sep="\n  ",
        )


if __name__ == "__main__":
    asyncio.run(main())
