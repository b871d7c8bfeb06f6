"""PostgreSQL: steps and signals in transactions of users, and beside other calls."""

import asyncio

import pytest

from tests.backends.postgres_store import WRONG, connected, opened
from tests.backends.test_postgres_transactions import User, by_asyncpg, every_driver
from treadle.errors import InputError
from treadle.item import GROUP_MARK, AuditNote, Lease, Record, Signal, Wake
from treadle.testing.contract.build import (
    apply,
    claim,
    claim_ids,
    claim_one,
    dependent,
    item,
    items,
    only,
    start,
    start_one,
    state,
    status,
    statuses,
    submit,
    succeed,
)
from treadle.testing.contract.check import consistent
from treadle.testing.contract.steps import (
    awaits,
    record,
    recorded,
    send,
    step,
    step_named,
    step_names,
    suspend,
    suspended,
)
from treadle.testing.contract.wakeups import WakeRecorder

GO = Signal(id="a", name="go", value=b"sent", key="k")


class TestSignalInTransaction:
    @every_driver
    async def test_it_wakes_its_item_if_the_transaction_commits(self, warm_url: str, user: User) -> None:
        async with opened(warm_url) as backend, connected(warm_url) as admin:
            await admin.execute("create table mine (id text)")
            await suspended(backend, awaits())
            async with user(warm_url, True) as (tx, execute):
                await execute("insert into mine values ('a')")
                answers = await backend.signal([GO, GO, Signal(id="missing", name="go")], tx=tx)
                assert [answer.verb for answer in answers] == ["stored", "existing", "not_found"]
                assert (answers[0].status, answers[0].woken) == ("ready", ("work", "default"))
                assert await status(backend, "a") == "scheduled"
            assert await admin.fetchval("select count(*) from mine") == 1
            assert (await step_named(backend, "go")).value == b"sent"
            assert (await claim_one(backend)).resumes
            await consistent(backend)

    @every_driver
    async def test_nothing_is_left_if_it_rolls_back(self, warm_url: str, user: User) -> None:
        """Neither the signal nor its key is stored, and no wake-up is sent."""
        async with opened(warm_url) as backend:
            recorder = WakeRecorder()
            await backend.subscribe(recorder)
            await suspended(backend, awaits())
            async with user(warm_url, False) as (tx, _):
                await backend.signal([GO], tx=tx)
            await backend.publish(Wake(items=(("t", "afterwards"),)))
            await recorder.wait_for({("t", "afterwards")})
            assert not any(wake.ready for wake in recorder.wakes)
            assert not (await step_named(backend, "go")).over
            assert only(await backend.signal([GO])).woken is not None

    async def test_the_wake_up_is_sent_with_the_commit(self, warm_url: str) -> None:
        """Only if an item is ready then."""
        async with opened(warm_url) as backend, opened(warm_url) as other:
            recorder = WakeRecorder()
            await other.subscribe(recorder)
            await suspended(backend, awaits())
            for name in ("stop", "go"):
                async with by_asyncpg(warm_url, True) as (tx, _):
                    await backend.signal([Signal(id="a", name=name)], tx=tx)
                    await other.publish(Wake(items=(("t", name),)))
                    await recorder.wait_for({("t", name)})
                    assert not any(wake.ready for wake in recorder.wakes)
            await recorder.wait_until(lambda: any(wake.ready for wake in recorder.wakes))
            assert await claim_ids(other) == ["a"]

    @every_driver
    async def test_a_note_is_stored_with_it(self, warm_url: str, user: User) -> None:
        """It counts the signals that were stored."""
        async with opened(warm_url) as backend:
            await start_one(backend, item("a"))
            note = AuditNote(actor="ann", reason="by phone")
            async with user(warm_url, True) as (tx, _):
                await backend.signal([GO, GO], tx=tx, note=note)
            entry = only((await backend.audits()).entries)
            assert (entry.verb, entry.ids, entry.count) == ("signal", ("a", "a"), 1)

    async def test_a_connection_without_a_transaction_is_refused(self, warm_url: str) -> None:
        async with opened(warm_url) as backend, connected(warm_url) as connection:
            await suspended(backend, awaits())
            with pytest.raises(InputError, match="BEGIN one first"):
                await backend.signal([GO], tx=connection)

    async def test_the_item_goes_on_until_it_waits_or_ends(self, warm_url: str) -> None:
        """An open transaction with a signal keeps nobody from claiming the item and recording its steps."""
        async with opened(warm_url) as backend:
            lease, other = await start(backend, item("a"), item("b"))
            async with by_asyncpg(warm_url, True) as (tx, _):
                await backend.signal([GO], tx=tx)
                async with asyncio.timeout(5):
                    await record(backend, lease, step("one"), progress=b"half")
                suspending = asyncio.create_task(backend.settle([suspend(lease, awaits()), succeed(other)]))
                async with asyncio.timeout(30):
                    while await status(backend, "b") != "success":  # noqa: ASYNC110  no event
                        await asyncio.sleep(0.05)
                assert not suspending.done()
            assert [outcome.verb for outcome in (await suspending).outcomes] == ["applied", "applied"]
            assert (await step_named(backend, "go")).value == b"sent"
            assert await status(backend, "a") == "ready"

    async def test_an_item_that_does_not_wait_is_claimed_meanwhile(self, warm_url: str) -> None:
        async with opened(warm_url) as backend:
            await submit(backend, item("a"))
            async with by_asyncpg(warm_url, True) as (tx, _):
                await backend.signal([GO], tx=tx)
                lease = await claim_one(backend)
            await apply(backend, suspend(lease, awaits()))
            assert (await step_named(backend, "go")).value == b"sent"


class TestRecord:
    async def test_a_locked_item_delays_no_other(self, warm_url: str) -> None:
        """A transaction has recorded a step of one of the items. The others are written at once."""
        async with opened(warm_url) as backend:
            leases = await start(backend, *items(5))
            async with backend.transaction() as transaction:
                assert await transaction.record([_record(leases[2], "mine")]) == [None]
                recording = asyncio.create_task(backend.record([_record(one, "s") for one in leases]))
                async with asyncio.timeout(30):
                    while not await step_names(backend, leases[4].id):  # noqa: ASYNC110  no event
                        await asyncio.sleep(0.02)
                assert await step_names(backend, leases[2].id) == []
            assert await recording == [None] * 5
            assert await step_names(backend, leases[2].id) == ["mine", "s"]

    async def test_later_steps_of_an_attempt_leave_the_open_row_alone(self, warm_url: str) -> None:
        async with opened(warm_url) as backend, connected(warm_url) as admin:
            lease = await start_one(backend, item("a"))
            await record(backend, lease, step("one"), progress=b"1", chunks=(b"c",), first_chunk=1)
            before = await admin.fetchval("select ctid::text from treadle.open_item")
            await record(backend, lease, step("two"), progress=b"2", chunks=(b"d",), first_chunk=2)
            assert await admin.fetchval("select ctid::text from treadle.open_item") == before

    async def test_names_may_have_control_characters(self, warm_url: str) -> None:
        async with opened(warm_url) as backend:
            lease = await start_one(backend, item("a"))
            await record(backend, lease, step("a\nb"), step("\x01"), step("\x1f"))
            assert await step_names(backend) == ["a\nb", "\x01", "\x1f"]
            await apply(backend, suspend(lease, awaits("x\ny")))
            assert (await send(backend, "x\ny", key="\n")).woken is not None


async def test_what_an_item_recorded_goes_with_it(warm_url: str) -> None:
    """Also of open items, and of those that were requeued."""
    async with opened(warm_url) as backend, connected(warm_url) as admin:
        leases = await start(backend, *items(6, keep=0.0, keep_dead=0.0))
        for lease in leases[:4]:
            await record(backend, lease, step("one"), progress=b"p", chunks=(b"c",), first_chunk=1)
            await send(backend, id=lease.id)
        await send(backend, id=leases[4].id)
        await apply(backend, *(succeed(lease) for lease in leases[1:]))
        await backend.cancel([leases[0].id])
        await backend.requeue([leases[0].id], cancelled=True)
        assert (await state(backend, leases[0].id)).has_steps
        assert await backend.prune() == 5
        await backend.delete([leases[0].id])
        for table in ("step", "mail", "progress", "chunk"):
            assert await admin.fetchval(f"select count(*) from treadle.{table}") == 0, table


async def test_taken_signals_leave_only_their_keys(warm_url: str) -> None:
    async with opened(warm_url) as backend, connected(warm_url) as admin:
        lease = await start_one(backend, item("a"))
        await send(backend, "x")
        await send(backend, "y", key="k")
        await apply(backend, suspend(lease, awaits("x"), awaits("y"), awaits("z"), awaits("w")))
        await send(backend, "z")
        await send(backend, "w", key="k")
        left = await admin.fetch("select name, taken, key, value from treadle.mail order by seq")
        assert [tuple(row) for row in left] == [("y", True, "k", None), ("w", True, "k", None)]
        assert {one.value for one in (await recorded(backend)).steps} == {b"sent"}


async def test_what_waits_for_the_group_of_a_suspended_item_waits_for_its_children(warm_url: str) -> None:
    """Children make a group of a lone item, also if its group is awaited already."""
    async with opened(warm_url) as backend, connected(warm_url) as admin:
        lease = await start_one(backend, item("a"))
        await submit(backend, dependent(f"{GROUP_MARK}a", id="last"))
        for child in ("b", "c"):
            await apply(backend, suspend(lease, awaits(), children=(item(child, queue="other"),)))
            await send(backend)
            lease = await claim_one(backend, queues=("default",))
        await apply(backend, succeed(lease))
        for lease in await claim(backend):
            assert await statuses(backend, "a", "last") == ["success", "blocked"]
            for wrong, query in WRONG.items():
                assert await admin.fetch(query) == [], wrong
            await apply(backend, succeed(lease))
        assert await statuses(backend, "last") == ["ready"]
        await consistent(backend)


def _record(lease: Lease, name: str) -> Record:
    return Record(lease=lease, steps=(step(name),))
