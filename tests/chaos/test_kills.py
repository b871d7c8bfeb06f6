"""kill -9 at random moments: nothing acknowledged is lost, no effect done twice. `make chaos` does more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.storm import Storm, prepare

KILLS = int(os.environ.get("TREADLE_KILLS", "20"))


@pytest.mark.timeout(300)
async def test_kills_on_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'work.db'}"
    await prepare(url)
    account = await Storm(url, tmp_path, seed=1).blow(KILLS)
    account.check()
    assert account.acknowledged > KILLS


@pytest.mark.timeout(300)
async def test_kills_on_postgres(postgres_url: str, tmp_path: Path) -> None:
    await prepare(postgres_url)
    account = await Storm(postgres_url, tmp_path, seed=2).blow(KILLS)
    account.check()
    assert account.acknowledged > KILLS
