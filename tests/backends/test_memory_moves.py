"""Tenants that leave a store in memory: it lets no one wait while it is read."""

from __future__ import annotations

import pytest

from tests.backends.memory_audit import audit
from treadle.backends.memory import MemoryBackend
from treadle.errors import StoreUnavailable
from treadle.item import Heartbeat, Limit, PermitRequest
from treadle.store.rules.tenant_moves import committed
from treadle.testing.contract.build import apply, item, start, start_one, state, submit, succeed
from treadle.testing.contract.tenant_moves import MINE, freeze, give, mark_of, moves


async def test_a_tenant_that_is_used_while_it_is_read_stays() -> None:
    """Nothing of it is lost. What others do is no matter, nor that a worker lives."""
    backend = MemoryBackend()
    running, _ = await start(backend, item("mine"), item("runs"))
    mark = await freeze(backend)
    away = committed(mark, mark.move, mark.freeze, await backend.now())
    assert away is not None
    async with moves(backend).give(MINE, mark) as giving:
        assert len(await giving.read()) > 1
        await submit(backend, item("later"))
        with pytest.raises(StoreUnavailable, match="--resume"):
            await giving.commit(away)
    async with moves(backend).give(MINE, mark) as giving:
        await apply(backend, succeed(running))
        with pytest.raises(StoreUnavailable, match="--resume"):
            await giving.commit(away)
    assert await mark_of(backend) == mark
    assert (await state(backend, "mine")).status == "success"
    assert (await state(backend, "later")).status == "ready"
    async with moves(backend).give(MINE, mark) as giving:
        await submit(backend, item("theirs", tenant="neighbour"))
        await backend.beat(Heartbeat(worker="w", lease=500.0))
        await giving.commit(away)
    assert await backend.get(["mine", "later"], tenant=MINE) == [None, None]
    assert (await state(backend, "theirs", "neighbour")).status == "ready"
    assert audit(backend) == []


async def test_permits_of_its_leases_are_free_when_it_has_left() -> None:
    """So are they if the worker returns them later."""
    backend = MemoryBackend()
    request = PermitRequest((Limit("one at once", 1, algorithm="slots"),), 1)
    mine = await start_one(backend, item("mine"))
    of_lease = PermitRequest(request.limits, 1, lease=mine)
    assert (await backend.take_permits([of_lease], worker="w"))[0].count == 1
    assert (await backend.take_permits([request], worker="w"))[0].count == 0
    await give(backend, await freeze(backend))
    assert (await backend.take_permits([request], worker="w"))[0].count == 1
    await backend.return_permits([of_lease], worker="w")
    assert (await backend.take_permits([request], worker="w"))[0].count == 0
    assert audit(backend) == []
