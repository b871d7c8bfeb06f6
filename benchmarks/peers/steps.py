"""Durable steps beside DBOS and Absurd, on PostgreSQL: workflows of ten steps, each recorded by itself.

    python -m benchmarks.peers.steps [--workflows 1000] [--rounds 3]

Each runs in a process of its own, worker and submitter together, in turn with the others, on a new database.
Peers are tuned as in `benchmarks/peers`. Processor time is that of the process, not of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.stores import stores

STEPS = 10
PEERS = {"treadle": "treadle", "dbos": "dbos", "absurd": "absurd_sdk"}


async def one(n: int) -> int:
    return n


async def ours(url: str, count: int) -> None:
    from treadle import Context, Treadle, work

    @work(name="flow")
    async def flow(ctx: Context, i: int) -> int:
        return sum([await ctx.step(f"step {n}", one, n) for n in range(STEPS)])

    async with Treadle(url, work=[flow]) as app:
        handles = await app.enqueue_many([flow(i) for i in range(count)])
        assert {await handle.result() for handle in handles} == {sum(range(STEPS))}


async def dbos(url: str, count: int) -> None:
    from dbos import DBOS

    DBOS(
        config={
            "name": "steps",
            "system_database_url": url.replace("postgresql://", "postgresql+psycopg://"),
            "log_level": "ERROR",
            "run_admin_server": False,
            "sys_db_pool_size": 20,
        }
    )
    step = DBOS.step()(one)

    @DBOS.workflow()
    async def flow(i: int) -> int:
        return sum([await step(n) for n in range(STEPS)])

    DBOS.launch()
    await DBOS.register_queue_async("steps", polling_interval_sec=0.02, worker_concurrency=100)
    handles = [await DBOS.enqueue_workflow_async("steps", flow, i) for i in range(count)]
    found = {await handle.get_result(polling_interval_sec=0.02) for handle in handles}
    assert found == {sum(range(STEPS))}
    DBOS.destroy()


async def absurd(url: str, count: int) -> None:
    import psycopg
    from absurd_sdk import AsyncAbsurd
    from absurdctl import BUNDLED_SCHEMA_SQL

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(BUNDLED_SCHEMA_SQL)
    app = AsyncAbsurd(url)
    await app.create_queue("default")

    @app.register_task("flow")
    async def flow(given: Any, ctx: Any) -> int:
        total = 0
        for n in range(STEPS):
            total += await ctx.step(f"step {n}", lambda n=n: one(n))
        return total

    worker = asyncio.create_task(app.start_worker(concurrency=50, batch_size=50, poll_interval=0.01))
    ids = [(await app.spawn("flow", {"i": i}, queue="default"))["task_id"] for i in range(count)]
    left = "select count(*) from absurd.t_default where state in ('pending', 'running', 'sleeping')"
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(left).fetchone() != (0,):  # noqa: ASYNC110  it has no event for it
            await asyncio.sleep(0.02)
    assert len(ids) == count
    worker.cancel()


RUN: dict[str, Callable[[str, int], Coroutine[Any, Any, None]]] = {
    "treadle": ours,
    "dbos": dbos,
    "absurd": absurd,
}


def measure(peer: str, url: str, count: int) -> None:
    """In the process of a peer."""
    began, used = time.perf_counter(), time.process_time()
    asyncio.run(RUN[peer](url, count))
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    print(json.dumps({"rate": count * STEPS / seconds, "cpu": cpu / count / STEPS * 1e6}), flush=True)


async def compare(count: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {}
    peers = [peer for peer, module in PEERS.items() if find_spec(module) is not None]
    with stores(("postgres",)) as opened:
        for _ in range(rounds):
            for peer in peers:
                async with opened.fresh("postgres") as url:
                    command = [sys.executable, "-m", "benchmarks.peers.steps", "--run", peer, url, str(count)]
                    done = await asyncio.to_thread(
                        subprocess.run, command, check=False, capture_output=True, text=True, timeout=300
                    )
                    if done.returncode:
                        print(peer, done.stderr[-1500:], file=sys.stderr)
                        continue
                    found.setdefault(peer, []).append(json.loads(done.stdout.splitlines()[-1]))
    return found


def show(found: dict[str, list[dict[str, float]]]) -> None:
    table = Table("", "steps/s", "of treadle's", "us of CPU per step")
    median = {peer: statistics.median(each["rate"] for each in runs) for peer, runs in found.items()}
    for peer, runs in found.items():
        rates = [each["rate"] for each in runs]
        cpu = statistics.median(each["cpu"] for each in runs)
        spread = f"{median[peer]:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        table.add_row(peer, spread, f"{median[peer] / median['treadle']:.2f}", f"{cpu:,.0f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.peers.steps", description=__doc__)
    parser.add_argument("--workflows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        measure(given.run[0], given.run[1], int(given.run[2]))
    else:
        show(asyncio.run(compare(given.workflows, given.rounds)))


if __name__ == "__main__":
    main()
