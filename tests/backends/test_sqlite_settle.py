"""The usual settlements on SQLite, which one statement applies: what it must leave to the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

from treadle.backends.sqlite import SqliteBackend, settle
from treadle.backends.sqlite.statements import Tx
from treadle.item import Contribution, Demand, Heartbeat, Item, Lease, Settlement, Submission
from treadle.testing import ManualClock

OWN = Contribution()


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "work.db", clock=ManualClock(1000.0))
    await backend.open()
    yield backend
    await backend.close()


async def leased(backend: SqliteBackend, *items: Item) -> dict[str, Lease]:
    await backend.submit([Submission(items)])
    await backend.beat(Heartbeat(worker="w", lease=60.0))
    claim = await backend.claim(Demand(worker="w", limit=10))
    return {lease.id: lease for lease in claim.leases}


def plain(id: str, **options: Any) -> Item:
    return Item(id=id, type="t", input=b"", **options)


def success(lease: Lease, **given: Any) -> Settlement:
    fields: dict[str, Any] = {"result": b"1", "contribution": OWN} | given
    return Settlement(lease=lease, kind="success", **fields)


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(tx: Tx, settlements: Sequence[Settlement]) -> None: ...

    monkeypatch.setattr(settle, "settle_plain", never)


@pytest.mark.parametrize(
    "given",
    [{}, {"contribution": None}, {"contribution": Contribution(final=True)}, {"result": None}, {"ran": 0.5}],
)
async def test_plain_settlements_store_what_others_store(
    tmp_path: Path, given: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    stored: list[Any] = []
    for way in ("plain", "general"):
        if way == "general":
            request.getfixturevalue("general")
        clock = ManualClock(1000.0)
        backend = SqliteBackend(tmp_path / f"{way}.db", clock=clock)
        await backend.open()
        leases = await leased(backend, plain("a", keep=5.0), plain("b", lane="x", priority=3))
        clock.advance(2.0)
        settled = await backend.settle([success(lease, **given) for lease in leases.values()])
        states = [astuple(state) for state in await backend.get(["a", "b"]) if state is not None]
        groups = [astuple(group) for group in await backend.group(["a", "b"]) if group is not None]
        await backend.close()
        stored.append((settled, states, groups))
    assert len(stored[0][1]) == 2
    assert stored[0] == stored[1]


async def test_a_batch_with_a_stale_token_changes_nothing_twice(backend: SqliteBackend) -> None:
    """What the one statement had stored is taken back, and what had ended before stays."""
    leases = await leased(backend, plain("ended"), plain("open"), plain("other"))
    await backend.settle([success(leases["ended"], result=b"first")])
    settled = await backend.settle(
        [success(leases["open"]), success(leases["ended"], result=b"again"), success(leases["other"])]
    )
    assert [(one.verb, one.again) for one in settled.outcomes] == [
        ("applied", False),
        ("applied", True),
        ("applied", False),
    ]
    states = await backend.get(["ended", "open", "other"])
    assert [state.result for state in states if state is not None] == [b"first", b"1", b"1"]
    assert [group.id for group in settled.effects.ended_groups] == ["open", "other"]


async def test_a_token_twice_in_a_batch_settles_once(backend: SqliteBackend) -> None:
    leases = await leased(backend, plain("a"))
    settled = await backend.settle([success(leases["a"]), success(leases["a"])])
    assert [(one.verb, one.again) for one in settled.outcomes] == [("applied", False), ("applied", True)]


async def test_a_plain_end_releases_what_waits_for_it(backend: SqliteBackend) -> None:
    leases = await leased(backend, plain("a"), plain("b", after=("a",), need=1))
    settled = await backend.settle([success(leases["a"])])
    assert [item.id for item in settled.effects.released] == ["b"]


async def test_a_removed_worker_settles_nothing(backend: SqliteBackend) -> None:
    leases = await leased(backend, plain("a"))
    await backend.remove_worker("w")
    settled = await backend.settle([success(leases["a"])])
    assert [one.verb for one in settled.outcomes] == ["stale"]
    (state,) = await backend.get(["a"])
    assert state is not None
    assert state.status == "ready"
