"""Only a queue: submit items, claim them, settle them. No worker, no handlers.

Run it: python examples/queue_only.py
"""

import asyncio

from treadle import Abort, Client, Retry, work
from treadle.errors import LeaseLost


@work(name="mail.send", queue="mail", retry=Retry(attempts=2, base=0.05, jitter=0))
async def send(to: str, subject: str) -> str:
    raise NotImplementedError("the process that claims it sends it")


def smtp(to: str, subject: str, attempt: int) -> str:
    if "@" not in to:
        raise Abort(f"{to!r} is not an address")
    if subject == "flaky" and attempt == 1:
        raise ConnectionError("the server hung up")
    return f"250 accepted for {to}"


async def work_off(client: Client) -> None:
    """Claim and settle items until all have ended."""
    while any(count.status in ("ready", "scheduled") for count in await client.counts()):
        lease = await client.claim_one(queues=["mail"], lease=30)
        if lease is None:
            await asyncio.sleep(0.02)  # a retry is not due yet
            continue
        try:
            answer = smtp(**lease.input, attempt=lease.attempt)
        except Exception as error:  # noqa: BLE001  any failure is settled
            await lease.fail(error)  # retried as the policy says; `Abort` means never
            print(f"  failed  {lease.input['to']}: {error}")
        else:
            await lease.complete(answer)
            print(f"  sent to {lease.input['to']}, attempt {lease.attempt}")


async def main() -> None:
    async with Client("sqlite:///mail.db", work=[send]) as client:
        mails = [
            send("ada@example.org", "hello"),
            send("bob@example.org", "flaky"),
            send("no-address", "hello"),
        ]
        handles = await client.enqueue_many(mails)
        await work_off(client)
        print("results:")
        for handle in handles:
            state = await handle.state()
            print(f"  {state.status:8} {state.result or state.error}")

        # A lease that lapsed, or whose item was cancelled, cannot be settled.
        handle = await client.enqueue(send("eve@example.org", "hello"))
        lease = await client.claim_one(queues=["mail"], lease=30)
        assert lease is not None
        await handle.cancel()
        try:
            await lease.complete("250 accepted")
        except LeaseLost as error:
            print(f"too late: {error.reason}")


if __name__ == "__main__":
    asyncio.run(main())
