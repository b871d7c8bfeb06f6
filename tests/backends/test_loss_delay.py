"""How long an item waits after it has lost its workers: SQL and Lua have the rule in their own words."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from tests.backends.postgres_store import connected, opened
from tests.backends.redis_store import RedisSubject
from treadle.store.rules.settlement import LONGEST_LOSS_DELAY, loss_delay

CASES = [
    (losses, number)
    for losses in (2, 3, 4, 5, 6, 7, 8, 12, 13, 1000)
    for number in (0, 1, 2, 7, 499, 500, 12_345, 10**6 + 3, 10**9 + 7)
]
WANTED = [loss_delay(losses, number) for losses, number in CASES]


def test_the_cases_reach_the_longest_delay() -> None:
    """And some are below it."""
    assert min(WANTED) <= 1 < LONGEST_LOSS_DELAY / 2 < max(WANTED) <= LONGEST_LOSS_DELAY


async def test_postgres_delays_a_lost_item_as_the_rules_do(prepared_url: str) -> None:
    async with opened(prepared_url), connected(prepared_url) as admin:
        rows = await admin.fetch(
            "select treadle.loss_delay(c.losses, c.no) from unnest($1::int[], $2::bigint[]) c(losses, no)",
            *map(list, zip(*CASES, strict=True)),
        )
    assert [row[0] for row in rows] == pytest.approx(WANTED, abs=1e-9)


async def test_redis_delays_a_lost_item_as_the_rules_do(valkey_url: str) -> None:
    lua = files("treadle.backends.redis").joinpath("lua/lib/transitions.lua").read_text()
    function = re.search(r"^local function loss_delay.*?^end", lua, re.MULTILINE | re.DOTALL)
    assert function is not None
    script = function[0] + "\nreturn tostring(loss_delay(tonumber(ARGV[1]), tonumber(ARGV[2])))"
    subject = RedisSubject(valkey_url)
    await subject.backend.open()
    found = [
        float(await subject.backend._link.command(b"EVAL", script, 0, losses, number, on="read"))
        for losses, number in CASES
    ]
    await subject.close()
    assert found == pytest.approx(WANTED, abs=1e-9)
