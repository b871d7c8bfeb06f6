"""One item that kills its process harms no other: all others succeed, and it ends `dead: lease_lost`.

In `make test` with few short items, in `make chaos` with `INNOCENTS=1000` items of 5 s and the defaults.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.poison import PoisonRun
from tests.support.records import record

INNOCENTS = int(os.environ.get("TREADLE_INNOCENTS", "0"))
SMALL: dict[str, Any] = {"innocents": 60, "seconds": 0.2, "retry": {"max_losses": 3}, "concurrency": 4}
"""After three losses an item runs alone."""
LARGE: dict[str, Any] = {"innocents": INNOCENTS, "seconds": 5.0}


async def check(url: str, directory: Path, store: str, kind: str) -> None:
    """kind `late`: the poison kills its process only after some time, as one does that runs out of memory."""
    size = LARGE if INNOCENTS else SMALL
    after = 0.0 if kind != "late" else 3.0 if INNOCENTS else 0.1
    report = await PoisonRun(url, directory, after=after, sync=kind == "in threads", **size).run()
    name = f"poison {kind} on {store}"
    sys.stdout.write(f"\n{name}: {report}\n")
    report.check()
    if INNOCENTS:
        record(
            name,
            f"make chaos INNOCENTS={INNOCENTS}",
            innocents=INNOCENTS,
            succeeded=report.ends["success"],
            deaths=report.deaths,
            seconds=report.innocent_seconds,
        )


def kinds(*few: str) -> list[str]:
    """The kinds of poison to try: all of them in `make chaos`."""
    return ["at once", "late", "in threads"] if INNOCENTS else list(few)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", kinds("at once", "in threads"))
async def test_sqlite_poison_harms_no_other_item(tmp_path: Path, kind: str) -> None:
    await check(f"sqlite:///{tmp_path / 'work.db'}", tmp_path, "SQLite", kind)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", kinds("late"))
async def test_postgres_poison_harms_no_other_item(postgres_url: str, tmp_path: Path, kind: str) -> None:
    await check(postgres_url, tmp_path, "PostgreSQL", kind)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", kinds("at once"))
async def test_redis_poison_harms_no_other_item(valkey_url: str, tmp_path: Path, kind: str) -> None:
    await check(valkey_url, tmp_path, "Valkey", kind)
