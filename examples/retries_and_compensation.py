"""A trip is booked. The hotel's server fails sometimes, and the flight is full, so the money is refunded.

Run it: python examples/retries_and_compensation.py
"""

import asyncio

from treadle import Abort, Context, Failure, GroupFailed, Result, Retry, Treadle, WorkFailed, work

ACCOUNT = {"ada": 500}


@work(name="trip.refund")
async def refund(failure: Failure) -> None:
    """Submitted in the same step that makes an item dead, so it cannot get lost."""
    customer = failure.input["customer"]
    ACCOUNT[customer] += 100
    print(f"  refunded 100 to {customer}, because: {failure.error}")


@work(name="trip.hotel", retry=Retry(attempts=4, base=0.05, factor=2, jitter=0.2))
async def book_hotel(ctx: Context, customer: str) -> str:
    if ctx.attempt < 3:
        raise ConnectionError(f"no answer (attempt {ctx.attempt})")
    return f"room 12 for {customer}"


@work(name="trip.flight", on_dead=refund)
async def book_flight(customer: str) -> str:
    raise Abort(f"no seat left for {customer}")  # dead at once, although two attempts are left


@work(name="trip.book")
async def book(ctx: Context, customer: str) -> Result[None, str]:
    ACCOUNT[customer] -= 200
    return ctx.queue(book_hotel(customer), book_flight(customer))


async def main() -> None:
    async with Treadle(work=[book, book_hotel, book_flight, refund]) as app:
        print("booking:")
        handle = await app.enqueue(book("ada"))
        try:
            await handle.group()  # ends when every item has ended, including the refund
        except GroupFailed as error:
            print(f"  the booking failed: {error.error}")

        page = await app.list(group_id=handle.group_id, oldest_first=True)
        print("what became of it:")
        for item in page.items:
            why = f" ({item.reason}: {item.error})" if item.reason else ""
            print(f"  {item.type:12} {item.status}, {item.attempt} of {item.attempts} attempts{why}")

        (hotel,) = [item.id for item in page.items if item.type == "trip.hotel"]
        print("what went wrong with the hotel before it went well:")
        for failed in (await app.handle(hotel).state()).history:
            print(f"  attempt {failed.attempt}: {failed.error_type}: {failed.message}")

        (flight,) = (await app.dead.list(type="trip.flight")).items
        try:
            await app.handle(flight.id).result()
        except WorkFailed as error:
            print(f"waiting for the flight raises: {error.error} (reason: {error.reason})")
        print(f"ada has {ACCOUNT['ada']} left")


if __name__ == "__main__":
    asyncio.run(main())
