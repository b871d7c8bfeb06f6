"""kill -9 at random moments: no acknowledged item is lost, no effect is done twice. See also `make chaos`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.chaos.report import ChaosReport, recovery
from tests.chaos.run import ChaosRun
from tests.chaos.stores import PostgresStore, RedisStore, SqliteStore
from tests.support.records import record
from tests.support.run import OWN
from tests.support.valkey import ValkeyServer

KILLS = int(os.environ.get("TREADLE_KILLS", "25"))
ITEMS = int(os.environ.get("TREADLE_ITEMS", "400"))
SERVER_KILLS = int(os.environ.get("TREADLE_SERVER_KILLS", "1"))
TIMEOUT = 300 + 5 * KILLS + ITEMS / 10
SYNCS = ["always", "everysec"] if "TREADLE_KILLS" in os.environ else ["always"]


def check_and_record(report: ChaosReport, name: str) -> None:
    sys.stdout.write(f"\n{name}: {report}")
    report.check()
    if "TREADLE_KILLS" in os.environ:
        record(
            f"kills on {name}",
            f"make chaos KILLS={KILLS} ITEMS={ITEMS} SERVER_KILLS={SERVER_KILLS}",
            items=report.items,
            kills=report.kills,
            suspended=report.pauses,
            cut=report.cuts,
            restarts=report.restarts,
            lost=0,
            twice=0,
            recovery=recovery(report.recoveries),
        )
    assert report.acknowledged > KILLS


@pytest.mark.timeout(TIMEOUT)
async def test_sqlite_survives_killed_and_suspended_processes(tmp_path: Path) -> None:
    """Every item ends once, with its effect exactly once."""
    store = SqliteStore(tmp_path / "work.db")
    await store.prepare()
    check_and_record(await ChaosRun(store, tmp_path, seed=1, items=ITEMS).run(KILLS), "SQLite")


@pytest.mark.timeout(TIMEOUT)
async def test_postgres_survives_kills_cut_connections_and_restarts(
    postgres_store: PostgresStore, tmp_path: Path
) -> None:
    """The server is killed, and is restarted in order once."""
    await postgres_store.prepare()
    report = await ChaosRun(postgres_store, tmp_path, seed=2, items=ITEMS, server_kills=SERVER_KILLS).run(
        KILLS
    )
    check_and_record(report, "PostgreSQL")
    assert report.restarts == SERVER_KILLS + 1


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("sync", SYNCS)
async def test_redis_survives_kills_cut_connections_and_restarts(
    sync: str, run_directory: Path, tmp_path: Path
) -> None:
    """The server is killed, and is restarted in order once."""
    server = ValkeyServer(Path(mkdtemp(prefix=OWN, dir=run_directory)), settings={"appendfsync": sync})
    server.start()
    try:
        store = RedisStore(server.url, server)
        report = await ChaosRun(store, tmp_path, seed=3, items=ITEMS, server_kills=SERVER_KILLS).run(KILLS)
        check_and_record(report, f"Valkey, {sync}")
        assert report.restarts == SERVER_KILLS + 1
    finally:
        server.kill()
