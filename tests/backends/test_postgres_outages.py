"""PostgreSQL: lost connections, lost answers, cancelled calls."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import asyncpg
import pytest

from tests.backends.postgres_store import connected, opened
from tests.support.proxy import Proxy
from treadle import Client
from treadle.backends.postgres import PostgresBackend
from treadle.backends.postgres.wakeups import LONE_PER_SECOND, PER_SECOND, WHEN_BUSY
from treadle.errors import NotStarted, StoreUnavailable
from treadle.item import AuditNote, Demand, Fire, Heartbeat, Rejected, Schedule, Submission, Wake
from treadle.testing.contract.build import (
    apply,
    beat,
    claim,
    claim_ids,
    die,
    item,
    items,
    only,
    pause,
    settle_one,
    start_one,
    state,
    status,
    submit,
    submit_one,
    succeed,
)
from treadle.testing.contract.check import consistent
from treadle.testing.contract.wakeups import WakeRecorder

T = TypeVar("T")


@asynccontextmanager
async def behind_proxy(url: str) -> AsyncGenerator[tuple[PostgresBackend, Proxy]]:
    """A backend whose answers can be lost, with its usual statements prepared."""
    async with Proxy(url) as proxy, opened(proxy.url) as backend:
        await beat(backend)
        await submit(backend, item())
        await apply(backend, *[succeed(lease) for lease in await claim(backend)])
        yield backend, proxy


class TestLostAnswers:
    async def test_of_a_settle(self, prepared_url: str) -> None:
        """The backend repeats the settle, and finds that it was applied."""
        async with behind_proxy(prepared_url) as (backend, proxy):
            lease = await start_one(backend, item("a"))
            proxy.lose_answers()
            outcome = await settle_one(backend, succeed(lease, item("child")))
            assert (outcome.verb, outcome.again, proxy.lost) == ("applied", True, 1)
            assert await claim_ids(backend) == ["child"]
            await consistent(backend)

    async def test_of_a_submit(self, prepared_url: str) -> None:
        """The items are stored once, and answered as new: not as duplicates, not as existing."""
        async with behind_proxy(prepared_url) as (backend, proxy):
            proxy.lose_answers()
            plain, keyed = await submit(backend, item("a"), item("b", key="k"))
            assert [(one.id, one.existing, one.status) for one in (plain, keyed)] == [
                ("a", False, "ready"),
                ("b", False, "ready"),
            ]
            assert proxy.lost == 1
            assert sorted(await claim_ids(backend)) == ["a", "b"]

    async def test_of_a_submit_with_a_note(self, prepared_url: str) -> None:
        """There is one audit entry. A change with a note is not repeated: it could have two."""
        async with behind_proxy(prepared_url) as (backend, proxy):
            note = AuditNote(actor="ann")
            await backend.submit([Submission((item("warm"),), note=note)])
            await pause(backend, "warm", note=note)
            proxy.lose_answers()
            answer = only(await backend.submit([Submission((item("a"), item("b", key="k")), note=note)]))
            assert not isinstance(answer, Rejected)
            assert [one.existing for one in answer] == [False, False]
            assert proxy.lost == 1
            proxy.lose_answers()
            with pytest.raises(StoreUnavailable):
                await pause(backend, "q", note=note)
            entries = (await backend.audits()).entries[:2]
            assert [(entry.verb, entry.count) for entry in entries] == [("pause", 1), ("enqueue", 2)]

    async def test_of_a_submit_that_leases(self, prepared_url: str) -> None:
        """The lease is found again."""
        async with behind_proxy(prepared_url) as (backend, proxy):
            proxy.lose_answers()
            answer = await submit_one(backend, item("a", lease_to="w"))
            assert answer.lease is not None
            assert proxy.lost == 1
            await apply(backend, succeed(answer.lease))

    async def test_of_every_try_of_a_submit(self, prepared_url: str) -> None:
        """The caller gets an error, repeats the same submission, and it is answered as new."""
        async with behind_proxy(prepared_url) as (backend, proxy):
            submission = Submission((item("a"),))
            proxy.lose_answers(50)
            with pytest.raises(StoreUnavailable):
                await backend.submit([submission])
            proxy.lose_answers(0)
            answer = only(await backend.submit([submission]))
            assert not isinstance(answer, Rejected)
            assert (answer[0].id, answer[0].existing) == ("a", False)
            assert isinstance(only(await backend.submit([submission])), Rejected)

    async def test_of_a_claim(self, prepared_url: str) -> None:
        """A claim is not repeated: `unknown_leases` finds the leases whose answer was lost."""
        async with behind_proxy(prepared_url) as (backend, proxy):
            await submit(backend, item("a"))
            proxy.lose_answers()
            with pytest.raises(StoreUnavailable):
                await backend.claim(Demand(worker="w", limit=5))
            lease = only(await backend.unknown_leases("w", []))
            await apply(backend, succeed(lease))

    async def test_of_a_fire(self, prepared_url: str) -> None:
        """The schedule fires once, and the answer says that it did."""
        async with behind_proxy(prepared_url) as (backend, proxy):
            await backend.put_schedule(Schedule(name="s", next_at=1000.0))
            await backend.fire(Fire(name="s", at=1.0, next_at=2.0, items=(item("warm"),)))
            proxy.lose_answers()
            answer = await backend.fire(Fire(name="s", at=1000.0, next_at=2000.0, items=(item("a"),)))
            assert answer is not None
            assert not isinstance(answer, Rejected)
            assert [(one.id, one.existing) for one in answer] == [("a", False)]
            assert (proxy.lost, await claim_ids(backend)) == (1, ["a"])

    async def test_of_a_beat(self, prepared_url: str) -> None:
        """The first heartbeat of a worker is repeated, and the worker is alive."""
        async with behind_proxy(prepared_url) as (backend, proxy):
            proxy.lose_answers()
            await backend.beat(Heartbeat(worker="w", lease=100))
            assert proxy.lost == 1
            assert (await backend.claim(Demand(worker="w", limit=1))).alive


KILL = """
select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and application_name = 'treadle'
"""


class TestLostConnections:
    async def test_every_connection_is_ended(self, prepared_url: str) -> None:
        """The next call opens new ones. Nothing is lost, and no call fails."""
        async with opened(prepared_url) as backend, connected(prepared_url) as admin:
            await beat(backend)
            for n in range(5):
                await submit(backend, item(f"a{n}"))
                await admin.execute(KILL)
                lease = only(await claim(backend))
                await admin.execute(KILL)
                await apply(backend, succeed(lease))
                assert await status(backend, f"a{n}") == "success"

    async def test_connections_are_ended_all_the_time(self, prepared_url: str) -> None:
        """All connections are ended after each call that succeeds: every item still ends, exactly once."""
        async with opened(prepared_url) as backend, connected(prepared_url) as admin:
            await beat(backend)
            callers = PatientCallers(backend)

            async def kill() -> None:
                while True:
                    await callers.progress.wait()
                    callers.progress.clear()
                    await admin.execute(KILL)

            killing = asyncio.create_task(kill())
            await asyncio.gather(*(callers.produce(n) for n in range(5)))
            await callers.drain(50)
            killing.cancel()
            await asyncio.wait([killing])
            await consistent(backend)
            assert sum(count.count for count in await backend.counts(ended=True)) == 50

    async def test_the_listener_comes_back(self, prepared_url: str) -> None:
        """After a lost connection it listens again, and delivers a wake-up for everything."""
        async with opened(prepared_url) as backend, connected(prepared_url) as admin:
            recorder = WakeRecorder()
            await backend.subscribe(recorder)
            await admin.execute(KILL)
            await recorder.wait_until(lambda: any(wake.everything for wake in recorder.wakes))
            await backend.publish(Wake(items=(("t", "after"),)))
            await recorder.wait_for({("t", "after")})

    async def test_a_transaction_whose_connection_is_lost(self, prepared_url: str) -> None:
        """It raises `StoreUnavailable`, and is rolled back."""
        async with opened(prepared_url) as backend, connected(prepared_url) as admin:
            lease = await start_one(backend, item("a"))

            async def settle_and_die() -> None:
                async with backend.transaction() as transaction:
                    await transaction.settle([succeed(lease)])
                    await admin.execute(KILL)

            with pytest.raises(StoreUnavailable):
                await settle_and_die()
            assert await status(backend, "a") == "running"
            await apply(backend, die(lease))


class PatientCallers:
    """Callers that repeat their calls until they succeed."""

    def __init__(self, backend: PostgresBackend) -> None:
        self._backend = backend
        self.progress = asyncio.Event()

    async def patiently(self, call: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Repeat a call that may be repeated until it is answered."""
        while True:
            with suppress(StoreUnavailable):
                answer = await call(*arguments)
                self.progress.set()
                return answer

    async def produce(self, n: int) -> None:
        together = Submission(tuple(item(f"i{n}-{k}") for k in range(10)))
        assert not isinstance(only(await self.patiently(self._backend.submit, [together])), Rejected)

    async def drain(self, wanted: int) -> None:
        done: set[str] = set()
        while len(done) < wanted:
            with suppress(StoreUnavailable):
                await self._backend.claim(Demand(worker="w", limit=20))
            leases = await self.patiently(self._backend.unknown_leases, "w", [])
            settled = await self.patiently(self._backend.settle, [succeed(lease) for lease in leases])
            assert all(outcome.verb == "applied" for outcome in settled.outcomes)
            done.update(lease.id for lease in leases)


class TestPool:
    async def test_claims_cannot_starve_settling(self, prepared_url: str) -> None:
        """Some connections are reserved for settling and heartbeats."""
        async with opened(prepared_url, pool_size=4, reserved=2) as backend:
            lease = await start_one(backend, item("a"))
            pool = backend._calls.pool
            async with pool.connection(), pool.connection():
                waiting = asyncio.create_task(claim_ids(backend, worker="other"))
                async with asyncio.timeout(10):
                    await backend.beat(Heartbeat(worker="w", lease=100))
                    await apply(backend, succeed(lease))
                assert not waiting.done()
                waiting.cancel()
                await asyncio.wait([waiting])

    async def test_no_more_connections_than_allowed(self, prepared_url: str) -> None:
        """Also with many calls at once."""
        async with opened(prepared_url, pool_size=3, reserved=1) as backend, connected(prepared_url) as admin:
            await asyncio.gather(*(submit(backend, *items(5)) for _ in range(40)))
            count = "select count(*) from pg_stat_activity where application_name = 'treadle'"
            assert await admin.fetchval(f"{count} and datname = current_database()") <= 3

    async def test_a_cancelled_call_leaves_a_clean_pool(self, prepared_url: str) -> None:
        """No later call gets a connection with a statement under way."""
        async with opened(prepared_url, pool_size=2, reserved=1) as backend, connected(prepared_url) as admin:
            await submit(backend, item("a"))
            for steps in range(40):
                task = asyncio.create_task(backend.get(["a"]))
                for _ in range(steps % 8):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert (await state(backend, "a")).id == "a"
            idle = "select count(*) from pg_stat_activity where state like 'idle in%'"
            assert await admin.fetchval(f"{idle} and datname = current_database()") == 0

    async def test_a_connection_that_the_server_has_ended_is_used_no_more(self, prepared_url: str) -> None:
        """The server reports it before it closes the connection: in between the connection looks fine."""
        async with opened(prepared_url, pool_size=1, reserved=0) as backend:
            pool = backend._calls.pool
            ended: asyncpg.Connection | None = None
            with pytest.raises(asyncpg.AdminShutdownError):
                async with pool.connection() as ended:
                    raise asyncpg.AdminShutdownError("terminating connection due to administrator command")
            async with pool.connection() as connection:
                assert connection is not ended
                with pytest.raises(asyncpg.DivisionByZeroError):
                    await connection.fetchval("select 1 / 0")

    async def test_a_driver_that_has_lost_track_is_no_refusal(self, prepared_url: str) -> None:
        """The outcome is unknown: the call is repeated on another connection."""
        async with opened(prepared_url, pool_size=1, reserved=0) as backend:
            failures = [asyncpg.InternalClientError("cannot switch to state 12")]

            async def attempt() -> str:
                if failures:
                    raise failures.pop()
                return "done"

            assert await backend._calls.call_with_retries(attempt, repeatable=True) == "done"
            failures.append(asyncpg.InternalClientError("again"))
            with pytest.raises(StoreUnavailable):
                await backend._calls.call_with_retries(attempt, repeatable=False)

    async def test_a_closed_backend_says_so(self, prepared_url: str) -> None:
        """It raises `NotStarted`, not an error about pools or event loops."""
        backend = PostgresBackend(prepared_url)
        with pytest.raises(NotStarted):
            await backend.now()


async def test_without_notifications_everything_works(prepared_url: str) -> None:
    """Wake-ups then stay in the process. Nothing else depends on them."""
    async with opened(prepared_url, notify=False) as backend, opened(prepared_url, notify=False) as other:
        near, far = WakeRecorder(), WakeRecorder()
        await backend.subscribe(near)
        await other.subscribe(far)
        await backend.publish(Wake(ready=True))
        await submit(backend, item("a"))
        assert await claim_ids(other) == ["a"]
        assert (len(near.wakes), far.wakes) == (1, [])


async def test_behind_a_pooler(prepared_url: str) -> None:
    """In transaction mode the server session changes between calls, so no call may depend on its state. Here
    that state is discarded before each call."""
    async with opened(prepared_url, prepare=False, notify=False, pool_size=2, reserved=1) as backend:
        await beat(backend)
        for n in range(3):
            await submit(backend, item(f"a{n}"), item(f"k{n}", key=f"{n}"))
            await discard(backend)
            leases = await claim(backend)
            # With the children of the items that were settled before.
            assert {f"a{n}", f"k{n}"} <= {lease.id for lease in leases}
            await discard(backend)
            await apply(backend, *(succeed(lease, item(f"c{lease.id}")) for lease in leases))
            await discard(backend)
        assert "cca0" in {lease.id for lease in leases}
        await consistent(backend)


async def discard(backend: PostgresBackend) -> None:
    """Discard the state of the pool's sessions."""
    pool = backend._calls.pool
    async with pool.connection() as first, pool.connection(vital=True) as second:
        await first.execute("discard all")
        await second.execute("discard all")


async def test_wake_ups_are_collected(prepared_url: str) -> None:
    """A thousand in a row are sent as a few notifications, and none is left out."""
    async with Client(prepared_url) as client, opened(prepared_url) as other:
        recorder = WakeRecorder()
        await other.subscribe(recorder)
        for n in range(1000):
            client._core.wakeups.ended([("t", f"i{n}")], [])
            await asyncio.sleep(0)
        await recorder.wait_for({("t", f"i{n}") for n in range(1000)})
        assert len(recorder.wakes) < 20


@pytest.mark.parametrize(
    ("times", "count", "rate"), [(1, 60, LONE_PER_SECOND), (2, 10, PER_SECOND / 2), (100, 10, WHEN_BUSY)]
)
async def test_the_rate_of_notifications_is_bounded(
    prepared_url: str, times: int, count: int, rate: float
) -> None:
    """They are sent less often when each stands for many."""
    async with opened(prepared_url) as backend:
        began = asyncio.get_running_loop().time()
        for _ in range(count):
            await backend.publish(Wake(ready=True, times=times))
        assert asyncio.get_running_loop().time() - began > (count - 1) / rate - 0.01


async def test_closing_a_client_sends_the_collected_wake_ups(prepared_url: str) -> None:
    """Also those that wait because of the bounded rate."""
    async with opened(prepared_url) as other:
        recorder = WakeRecorder()
        await other.subscribe(recorder)
        async with Client(prepared_url) as client:
            for n in range(5):
                client._core.wakeups.ended([("t", f"i{n}")], [])
                await asyncio.sleep(0)
        await recorder.wait_for({("t", f"i{n}") for n in range(5)})


async def test_a_statement_keeps_its_connection(prepared_url: str) -> None:
    """Also if other statements are called in between: the server has the statement prepared there."""
    async with opened(prepared_url) as backend:
        pool = backend._calls.pool
        one = await pool.lend(False, "one")
        other = await pool.lend(False, "other")
        for first, second in ((one, other), (other, one)):
            pool.take_back(first, False)
            pool.take_back(second, False)
            assert (await pool.lend(False, "one"), await pool.lend(False, "other")) == (one, other)
        pool.take_back(one, False)
        one.terminate()
        third = await pool.lend(False, "one")
        assert third not in (one, other)
        assert not third.is_closed()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_submit_waits_for_an_uncommitted_id(prepared_url: str, commits: bool) -> None:
    """It waits, with short lock timeouts, until the other transaction commits or rolls back."""
    async with opened(prepared_url) as backend, connected(prepared_url) as user:
        transaction = user.transaction()
        await transaction.start()
        await backend.submit([Submission((item("a"),))], tx=user)
        waiting = asyncio.ensure_future(backend.submit([Submission((item("a"),))]))
        await until_blocked(user)
        await (transaction.commit() if commits else transaction.rollback())
        (answer,) = await waiting
        assert isinstance(answer, Rejected) == commits
        assert await status(backend, "a") == "ready"


async def until_blocked(connection: asyncpg.Connection) -> None:
    """Wait until another session waits for a lock of this connection."""
    waiters = "select 1 from pg_stat_activity where pg_backend_pid() = any(pg_blocking_pids(pid))"
    while not await connection.fetch(waiters):  # noqa: ASYNC110  no event
        await asyncio.sleep(0.01)
