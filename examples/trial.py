"""A trial of 30 days with three reminders, in one function. The clock of this program jumps to each of them.

Run it: python examples/trial.py
"""

import asyncio
from datetime import timedelta

from treadle import Context, MemoryBackend, Treadle, work
from treadle.testing import ManualClock, run_inline, travel

clock = ManualClock()
BEGAN = clock.now()
REMIND_ON = (7, 21, 28)


async def mail(text: str) -> None:
    print(f"day {(clock.now() - BEGAN) / 86_400:2.0f}: {text}")


@work(name="trial.run")
async def trial(ctx: Context, user: str) -> str:
    passed = 0
    for day in REMIND_ON:
        paid = await ctx.signal("paid", bool, timeout=timedelta(days=day - passed), step=f"paid by day {day}")
        if paid:
            await ctx.step("thank", mail, f"thank you, {user}")
            return "customer"
        await ctx.step(f"remind on day {day}", mail, f"{user}, {30 - day} days are left")
        passed = day
    await ctx.sleep("last days", timedelta(days=30 - passed))
    await ctx.step("bye", mail, f"goodbye, {user}")
    return "gone"


async def main() -> None:
    app = Treadle(MemoryBackend(clock), work=[trial], clock=clock, keep=timedelta(days=90))
    async with run_inline(app):
        ada, bob = await app.enqueue(trial("Ada")), await app.enqueue(trial("Bob"))
        await travel(app, timedelta(days=10))
        await app.signal(ada, "paid", True)
        await travel(app, timedelta(days=30))
        print(f"Ada: {await ada.result()}, Bob: {await bob.result()}")


if __name__ == "__main__":
    asyncio.run(main())
