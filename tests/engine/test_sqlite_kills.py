"""kill -9 of a worker on a SQLite file: the system releases its lock, and its items are freed long before its
lease lapses. (`make bench` measures how soon.)"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.kit import PATIENCE
from treadle import Context, Retry, Treadle, work

LEASE = 600.0

VICTIM = f"""
import asyncio, sys
from treadle import Context, Treadle, work

@work(name="long")
async def long(ctx: Context) -> int:
    print("began", flush=True)
    await asyncio.sleep({LEASE})
    return 1

async def main():
    async with Treadle(sys.argv[1], work=[long], lease={LEASE}):
        await asyncio.sleep({LEASE})

asyncio.run(main())
"""


@work(name="long", retry=Retry(attempts=2))
async def long(ctx: Context) -> int:
    return ctx.attempt


@pytest.mark.usefixtures("processes")
async def test_a_killed_workers_items_run_again_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    app = Treadle(url, work=[long], lease=LEASE)
    handles = await app.enqueue_many([long() for _ in range(3)])
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, url], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        assert victim.stdout is not None
        for _ in handles:
            assert (await asyncio.to_thread(victim.stdout.readline)).strip() == "began"
        async with app:
            victim.kill()
            assert [await handle.result(PATIENCE) for handle in handles] == [2, 2, 2]
            history = (await handles[0].state()).history
            assert [failed.error_type for failed in history] == ["LeaseLost"]
    finally:
        victim.kill()
        victim.communicate()
