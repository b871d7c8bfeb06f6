"""Two customers share a queue. One submits very many items, and the other still starts at once. Neither sees
the other's items.

Run it: python examples/tenants.py
"""

import asyncio

from treadle import Context, NotFound, Treadle, work
from treadle.doers import balanced

STARTED: list[str] = []


@work(name="render")
async def render(ctx: Context, page: int) -> str:
    STARTED.append(ctx.tenant)
    return f"page {page} of {ctx.tenant}"


async def main() -> None:
    app = Treadle(work=[render], doer=balanced(2))
    acme, zoo = app.tenant("acme"), app.tenant("zoo")

    # acme submits a thousand pages first, then zoo submits three.
    await acme.enqueue_many([render(page) for page in range(1000)])
    few = await zoo.enqueue_many([render(page) for page in range(3)])

    async with app:  # the worker starts and serves the tenants in rotation
        for handle in few:
            await handle.result()
        print(f"zoo's 3 pages were done when acme had started {STARTED.count('acme')} of its 1000")
        print("the first ten:", " ".join(STARTED[:10]))

        # Items of another tenant are not found.
        try:
            await acme.handle(few[0].id).state()
        except NotFound as error:
            print("acme asks for zoo's page:", error)
        print(f"zoo sees {len((await zoo.list()).items)} items")

        # Each tenant has its own keys.
        first = await zoo.enqueue(render(7), key="invoice-7", key_scope="any")
        again = await zoo.enqueue(render(7), key="invoice-7", key_scope="any")
        other = await acme.enqueue(render(7), key="invoice-7", key_scope="any")
        print(f"the same key again: existing={again.existing}, the same item: {again.id == first.id}")
        print(f"the same key of another tenant: existing={other.existing}")
        await app.stop(drain=0)


if __name__ == "__main__":
    asyncio.run(main())
