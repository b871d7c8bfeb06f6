"""Logs: what attempts have logged is kept with the item, the last ones, until it is removed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.item import Filter, Lease, Record
from treadle.store.rules.settlement import KEPT_ATTEMPTS

from .build import (
    apply,
    claim_one,
    defer,
    die,
    item,
    release,
    retry,
    settle_one,
    start,
    start_one,
    status,
    submit,
    succeed,
)
from .steps import sleep, step, suspend
from .subject import Subject, needs


async def log(backend: Backend, lease: Lease, text: bytes) -> None:
    """Record a log, which must be accepted."""
    assert await backend.record([Record(lease=lease, log=text)]) == [None]


class LogCases:
    @needs("steps")
    async def test_a_log_comes_with_the_settlement(self, backend: Backend) -> None:
        """Items without one have none."""
        leases = {lease.id: lease for lease in await start(backend, item("a"), item("b"), item("c"))}
        await apply(
            backend,
            replace(succeed(leases["a"]), log=b"of a"),
            succeed(leases["b"]),
            replace(die(leases["c"]), log=b"of c"),
        )
        assert [await backend.logs(id) for id in ("a", "b", "c", "missing")] == [[b"of a"], [], [b"of c"], []]
        assert await status(backend, "a") == "success"
        assert await status(backend, "c") == "dead"

    @needs("steps")
    async def test_each_attempt_has_one_log(self, backend: Backend) -> None:
        """However it ended. An attempt that was given back has one of its own too."""
        lease = await start_one(backend, item("a"))
        for n, end in enumerate((retry, defer, release)):
            await apply(backend, replace(end(lease), log=b"%d" % n))
            lease = await claim_one(backend)
        await apply(backend, replace(suspend(lease, sleep(seconds=0.0)), log=b"3"))
        lease = await claim_one(backend)
        await apply(backend, succeed(lease))
        assert await backend.logs("a") == [b"0", b"1", b"2", b"3"]

    @needs("steps")
    async def test_a_running_item_replaces_its_log(self, backend: Backend) -> None:
        """A record with a log is no progress, and changes nothing else."""
        lease = await start_one(backend, item("a"))
        await log(backend, lease, b"one")
        assert await backend.logs("a") == [b"one"]
        await log(backend, lease, b"one two")
        both = Record(lease=lease, steps=(step("s"),), progress=b"p", chunks=(b"c",), first_chunk=1, log=b"x")
        assert await backend.record([both, Record(lease=lease, progress=b"q")]) == [None, None]
        assert await backend.logs("a") == [b"x"]
        assert [chunk.value for chunk in await backend.stream("a")] == [b"c"]
        await apply(backend, replace(succeed(lease), log=b"all"))
        assert await backend.logs("a") == [b"all"]

    @needs("steps")
    async def test_a_settlement_without_a_log_keeps_what_was_recorded(self, backend: Backend) -> None:
        """The attempt has logged nothing since."""
        lease = await start_one(backend, item("a"))
        await log(backend, lease, b"so far")
        await apply(backend, succeed(lease))
        assert await backend.logs("a") == [b"so far"]

    @needs("steps")
    async def test_only_the_owner_writes(self, backend: Backend) -> None:
        """The log of a token that no longer owns its item is left out. So is a repeated one."""
        old = await start_one(backend, item("a"))
        await apply(backend, replace(retry(old), log=b"first"))
        lease = await claim_one(backend)
        assert await backend.record([Record(lease=old, log=b"late")]) != [None]
        assert (await settle_one(backend, replace(succeed(old), log=b"late"))).verb != "rejected"
        await apply(backend, replace(succeed(lease), log=b"second"))
        assert await backend.logs("a") == [b"first", b"second"]

    @needs("steps")
    async def test_the_last_ones_are_kept(self, subject: Subject) -> None:
        """As many as failed attempts in the history."""
        backend = subject.backend
        lease = await start_one(backend, item("a", attempts=None))
        other = await start_one(backend, item("other"))
        await log(backend, other, b"its own")
        for n in range(KEPT_ATTEMPTS + 2):
            await apply(backend, replace(retry(lease), log=b"%d" % n))
            await subject.advance(1)
            lease = await claim_one(backend)
        await log(backend, lease, b"last")
        kept = [b"%d" % n for n in range(3, KEPT_ATTEMPTS + 2)]
        assert await backend.logs("a") == [*kept, b"last"]
        assert await backend.logs("other") == [b"its own"]

    @needs("steps", "operating")
    async def test_a_requeued_item_keeps_its_logs(self, backend: Backend) -> None:
        """As it keeps its history. An item that is deleted takes its logs with it."""
        lease = await start_one(backend, item("a"))
        await apply(backend, replace(die(lease), log=b"dead"))
        await backend.requeue(Filter(status=("dead",)))
        lease = await claim_one(backend)
        await apply(backend, replace(succeed(lease), log=b"well"))
        assert await backend.logs("a") == [b"dead", b"well"]
        await backend.delete(["a"])
        assert await backend.logs("a") == []
        await submit(backend, item("a"))
        assert await backend.logs("a") == []

    @needs("steps")
    async def test_logs_go_with_the_item(self, subject: Subject) -> None:
        """They can be read until the item is pruned."""
        backend = subject.backend
        lease = await start_one(backend, item("a", keep=10.0))
        await log(backend, lease, b"so far")
        await apply(backend, replace(succeed(lease), log=b"all"))
        await subject.advance(11)
        assert await backend.prune() == 1
        assert await backend.logs("a") == []
        await submit(backend, item("a"))
        assert await backend.logs("a") == []

    @needs("steps")
    async def test_logs_of_other_tenants(self, backend: Backend) -> None:
        """An id is read in one tenant, or in all."""
        lease = await start_one(backend, item("a", tenant="x"))
        await apply(backend, replace(succeed(lease), log=b"of x"))
        assert await backend.logs("a", tenant="x") == [b"of x"]
        assert await backend.logs("a") == [b"of x"]
        assert await backend.logs("a", tenant="y") == []

    @needs("steps")
    async def test_many_logs_in_one_call(self, backend: Backend) -> None:
        """Also large ones, and any bytes."""
        leases = await start(backend, *(item(f"i{n}") for n in range(150)))
        large = bytes(range(256)) * 64
        await apply(backend, *(replace(succeed(lease), log=lease.id.encode() + large) for lease in leases))
        for lease in leases[::20]:
            assert await backend.logs(lease.id) == [lease.id.encode() + large]

    @needs("steps", "transactions")
    async def test_a_log_is_undone_with_its_transaction(self, backend: Backend) -> None:
        """It is there if the transaction commits."""
        lease = await start_one(backend, item("a"))
        with pytest.raises(ZeroDivisionError):
            await _settle_and_fail(backend, lease)
        assert await backend.logs("a") == []
        async with backend.transaction() as tx:
            await tx.settle([replace(succeed(lease), log=b"within")])
        assert await backend.logs("a") == [b"within"]


async def _settle_and_fail(backend: Backend, lease: Lease) -> None:
    async with backend.transaction() as tx:
        await tx.settle([replace(succeed(lease), log=b"undone")])
        raise ZeroDivisionError
