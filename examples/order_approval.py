"""An order is charged, waits for a person's approval without a worker, and is shipped. A second one is
refused, so its charge is undone.

Run it: python examples/order_approval.py
"""

import asyncio
from datetime import timedelta

from treadle import Abort, Context, Step, Treadle, WorkFailed, work
from treadle.events import Event, Suspended

MONEY = {"ada": 100, "bob": 100}


async def take_money(customer: str, amount: int, key: str) -> str:
    """A payment service. It would ignore a second call with the same key."""
    MONEY[customer] -= amount
    return customer


@work(name="order.refund")
async def refund(customer: str) -> None:
    MONEY[customer] += 40
    print(f"  refunded {customer}")


@work(name="order.label")
async def print_label(order: int) -> str:
    return f"label-{order}.pdf"


@work(name="order.invoice")
async def make_invoice(order: int) -> str:
    return f"invoice-{order}.pdf"


CHARGE = Step[str]("charge", undo=refund)


@work(name="order.fulfil")
async def fulfil(ctx: Context, order: int, customer: str) -> str:
    await ctx.step(CHARGE, take_money, customer, 40, key=ctx.key("charge"))
    approved = await ctx.signal("approval", bool, timeout=timedelta(days=1))
    if not approved:
        raise Abort("not approved")
    label, invoice = await ctx.run("papers", print_label(order), make_invoice(order))
    return f"shipped with {label} and {invoice}"


async def main() -> None:
    waiting = asyncio.Semaphore(0)

    def tell(event: Event) -> None:
        if isinstance(event, Suspended) and event.signal is not None:
            print(f"an order waits for: {event.signal}")
            waiting.release()

    app = Treadle("sqlite:///orders.db", work=[fulfil, refund, print_label, make_invoice], on_event=tell)
    async with app:
        orders = {name: await app.enqueue(fulfil(n, name)) for n, name in enumerate(MONEY, 1)}
        for _ in orders:
            await waiting.acquire()
        for click in (1, 2):
            sent = await app.signal(orders["ada"], "approval", True, key="ada")
            print(f"click {click}: {'sent' if sent else 'known'}")
        await app.signal(orders["bob"], "approval", False)
        print(f"ada: {await orders['ada'].result()}")
        try:
            await orders["bob"].group()  # it ends when the undo has ended
        except WorkFailed as error:
            print(f"bob: {error.error}")
        print(f"money: {MONEY}")


if __name__ == "__main__":
    asyncio.run(main())
