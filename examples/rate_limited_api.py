"""An API allows five calls per second for each customer. Two processes share the limit, which the store
counts.

Run it: python examples/rate_limited_api.py
"""

import asyncio
import signal
import sys
import time

from treadle import Client, Context, Defer, Worker, work
from treadle.doers import balanced, rate_limited

STORE = "sqlite:///api.db"
REFUSED: set[str] = set()


@work(
    name="api.sync",
    # Per lane: each customer has its own limit. Each process runs at most ten items at once.
    doer=rate_limited(5, window=1.0, per="lane", inner=balanced(10)),
    # The lane is computed from the arguments.
    options=lambda given: {"lane": given["customer"]},
)
async def sync_contact(ctx: Context, customer: str, contact: int) -> float:
    # The API answers one call with 429. The item is deferred, which counts no attempt.
    if contact == 3 and ctx.id not in REFUSED:
        REFUSED.add(ctx.id)
        raise Defer(delay=0.2)
    return time.time()


async def run_worker() -> None:
    """A worker process. It runs until SIGTERM."""
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    async with Client(STORE, work=[sync_contact]) as client:
        await Worker(client).run(until=terminated)


async def main() -> None:
    command = (sys.executable, __file__, "worker")
    workers = [await asyncio.create_subprocess_exec(*command) for _ in range(2)]
    calls = [(customer, n) for n in range(8) for customer in ("ada", "bob")]
    try:
        async with Client(STORE, work=[sync_contact]) as client:
            handles = await client.enqueue_many([sync_contact(*call) for call in calls])
            times = [await handle.result(timeout=30) for handle in handles]
            states = await client.get(handles)
    finally:
        for worker in workers:
            worker.terminate()
            await worker.wait()

    for customer in ("ada", "bob"):
        own = sorted(at - min(times) for at, (who, _) in zip(times, calls, strict=True) if who == customer)
        print(f"{customer}:", " ".join(f"{at:.1f}" for at in own), "seconds")
    names = sorted({state.worker or "" for state in states if state})
    for name in names:
        print(f"worker {name[-6:]} made {sum(state.worker == name for state in states if state)} calls")


if __name__ == "__main__":
    asyncio.run(run_worker() if sys.argv[1:] == ["worker"] else main())
