"""Two customers on one queue: one floods it, the other does not notice. Neither sees the other's work.

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

    # acme is first, with a thousand pages. zoo comes later, with three.
    await acme.enqueue_many([render(page) for page in range(1000)])
    few = await zoo.enqueue_many([render(page) for page in range(3)])

    async with app:  # now the work begins; tenants take turns
        for handle in few:
            await handle.result()
        print(f"zoo's 3 pages were done when acme had started {STARTED.count('acme')} of its 1000")
        print("the first ten:", " ".join(STARTED[:10]))

        # What is another's is not there.
        try:
            await acme.handle(few[0].id).state()
        except NotFound as error:
            print("acme asks for zoo's page:", error)
        print(f"zoo sees {len((await zoo.list()).items)} items")

        # A key is a tenant's own.
        first = await zoo.enqueue(render(7), key="invoice-7", key_scope="any")
        again = await zoo.enqueue(render(7), key="invoice-7", key_scope="any")
        other = await acme.enqueue(render(7), key="invoice-7", key_scope="any")
        print(f"the same key again: existing={again.existing}, the same item: {again.id == first.id}")
        print(f"the same key of another tenant: existing={other.existing}")
        await app.stop(drain=0)


if __name__ == "__main__":
    asyncio.run(main())
