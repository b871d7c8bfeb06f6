"""Steps: what running items record, how they are suspended and woken, signals, streams."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.errors import ConflictError, NotTriggerable
from treadle.item import (
    MOST_UNREAD,
    NEVER,
    AuditNote,
    Filter,
    Item,
    ItemUpdate,
    Lease,
    Record,
    Recorded,
    Settlement,
    Signal,
    Signalled,
    StepRecord,
)

from .build import (
    apply,
    beat,
    cancel,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    connections,
    defer,
    die,
    group,
    item,
    near,
    only,
    pause,
    release,
    resume,
    retry,
    settle_one,
    start,
    start_one,
    state,
    status,
    statuses,
    submit,
    submit_one,
    succeed,
    verdicts,
)
from .check import consistent
from .subject import Subject, needs, set_back

HOUR = 3600.0

# -------------------------------------------------------------------------------------------------- shorthand


def step(name: str, value: bytes | None = b"value", **fields: Any) -> StepRecord:
    return StepRecord(name=name, value=value, **fields)


def sleep(name: str = "nap", seconds: float = HOUR) -> StepRecord:
    return StepRecord(name=name, kind="sleep", delay=seconds, over=False)


def awaits(signal: str = "go", name: str | None = None, seconds: float | None = None) -> StepRecord:
    """A wait for a signal."""
    return StepRecord(name=name or signal, kind="signal", signal=signal, delay=seconds, over=False)


def suspend(lease: Lease, *steps: StepRecord, children: tuple[Item, ...] = ()) -> Settlement:
    return Settlement(lease=lease, kind="suspend", steps=steps, children=children)


async def record(backend: Backend, lease: Lease, *steps: StepRecord, **more: Any) -> None:
    """Record these, which must be accepted."""
    assert await backend.record([Record(lease=lease, steps=steps, **more)]) == [None]


async def recorded(backend: Backend, id: str = "a", tenant: str | None = None) -> Recorded:
    found = only(await backend.steps([id], tenant=tenant))
    assert found is not None
    return found


async def step_names(backend: Backend, id: str = "a") -> list[str]:
    """Those that are not forgotten."""
    return [one.name for one in (await recorded(backend, id)).steps if one.kind != "forgotten"]


async def step_named(backend: Backend, name: str, id: str = "a") -> StepRecord:
    return only(one for one in (await recorded(backend, id)).steps if one.name == name)


async def send(
    backend: Backend, name: str = "go", value: bytes | None = b"sent", *, id: str = "a", **more: Any
) -> Signalled:
    return only(await backend.signal([Signal(id=id, name=name, value=value, **more)]))


async def suspended(backend: Backend, *waits: StepRecord, **fields: Any) -> None:
    """Store an item, `a`, that is suspended with these waits."""
    lease = await start_one(backend, item("a", **fields))
    await apply(backend, suspend(lease, *waits))


# ---------------------------------------------------------------------------------------------------- record


class RecordCases:
    @needs("steps")
    async def test_steps_are_read_as_they_were_recorded(self, backend: Backend) -> None:
        """In the order in which they were recorded, with when, and in which attempt."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, step("one", b"1", took=0.5), step("two", None, undo=b"undo"))
        await record(backend, lease, step("three", b"\x00" * 100_000, kind="failure"))
        one, two, three = (await recorded(backend)).steps
        assert (one.name, one.kind, one.value, one.took, one.undo) == ("one", "value", b"1", 0.5, None)
        assert (two.name, two.value, two.undo, two.over) == ("two", None, b"undo", True)
        assert (three.name, three.kind, three.value) == ("three", "failure", b"\x00" * 100_000)
        assert {each.attempt for each in (one, two, three)} == {1}
        assert one.at == near(await backend.now())
        assert (await state(backend, "a")).status == "running"

    @needs("steps")
    async def test_a_step_of_a_name_takes_the_place_of_the_one_before(self, backend: Backend) -> None:
        """So a call that is repeated changes nothing. The order stays."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, step("one", b"1"), step("two", b"2"))
        await record(backend, lease, step("one", b"new"))
        await record(backend, lease, step("one", b"new"))
        assert [(each.name, each.value) for each in (await recorded(backend)).steps] == [
            ("one", b"new"),
            ("two", b"2"),
        ]

    @needs("steps", "operating")
    async def test_a_stale_token_records_nothing(self, subject: Subject) -> None:
        """Each record is refused, or written, on its own."""
        backend = subject.backend
        lost, done, ended, good = await start(backend, *(item(id) for id in "abcd"))
        await backend.remove_worker("w")
        await beat(backend)
        leases = {lease.id: lease for lease in await claim(backend)}
        await apply(backend, succeed(leases["b"]))
        await backend.cancel(["c"])
        stale = [lost, leases["b"], leases["c"]]
        asked = [Record(lease=lease, steps=(step("x"),), progress=b"p") for lease in (*stale, leases["d"])]
        answers = await backend.record(asked)
        assert answers[0] == "taken"
        assert None not in answers[:3]
        assert answers[2] == "cancelled"
        assert answers[3] is None
        assert [await step_names(backend, id) for id in "abcd"] == [[], [], [], ["x"]]
        assert (await recorded(backend, "a")).progress is None
        assert (done.id, ended.id, good.id) == ("b", "c", "d")

    @needs("steps")
    async def test_a_lease_of_an_item_that_does_not_exist_records_nothing(self, backend: Backend) -> None:
        """It is answered as lost, and nothing is left behind."""
        lease = await start_one(backend, item("a"))
        await apply(backend, succeed(lease))
        await backend.delete(["a"])
        assert await backend.record([Record(lease=lease, steps=(step("x"),))]) == ["not_found"]
        assert await backend.steps(["a"]) == [None]

    @needs("steps")
    async def test_a_step_is_progress(self, backend: Backend) -> None:
        """The failures before it do not count any more, and the current attempt is the first."""
        await submit(backend, item("a"))
        for _ in range(2):
            await apply(backend, retry(await claim_one(backend)))
        lease = await claim_one(backend)
        assert (lease.attempt, lease.failures) == (3, 2)
        await record(backend, lease, step("one"))
        found = await state(backend, "a")
        assert (found.attempt, found.failures, len(found.history)) == (1, 0, 2)
        await apply(backend, retry(lease))
        again = await claim_one(backend)
        assert (again.attempt, again.failures, again.has_steps) == (2, 1, True)
        await consistent(backend)

    @needs("steps")
    async def test_a_step_ends_the_row_of_losses(self, backend: Backend) -> None:
        """To record a step is progress: workers that died before do not count any more."""
        await submit(backend, item("a"))
        await claim_one(backend)
        await backend.remove_worker("w")
        lease = await claim_one(backend)
        assert lease.losses == 1
        await backend.begin([lease])
        await record(backend, lease, step("one"))
        assert (await state(backend, "a")).losses == 0
        await backend.remove_worker("w")
        assert (await claim_one(backend)).losses == 1

    @needs("steps")
    async def test_progress_alone_gives_no_attempt_back(self, backend: Backend) -> None:
        """Only a step is progress in this sense: failures before stay counted."""
        await submit(backend, item("a"))
        await apply(backend, retry(await claim_one(backend)))
        lease = await claim_one(backend)
        await record(backend, lease, progress=b"half", chunks=(b"c",), first_chunk=1)
        assert (await state(backend, "a")).failures == 1
        assert (await recorded(backend)).progress == b"half"

    @needs("steps")
    async def test_a_claim_says_whether_there_are_steps(self, backend: Backend) -> None:
        """The engine reads steps only of items that have some."""
        plain, lease = await start(backend, item("b"), item("a"))
        assert not lease.has_steps
        await record(backend, lease, step("one"))
        await apply(backend, retry(plain), retry(lease))
        found = {one.id: one for one in await claim(backend)}
        assert (found["a"].has_steps, found["b"].has_steps) == (True, False)
        assert not found["a"].resumes
        shown = {one.id: one.has_steps for one in (await backend.get(["a", "b"])) if one is not None}
        assert shown == {"a": True, "b": False}

    @needs("steps")
    async def test_steps_stay_after_the_end_and_go_with_the_item(self, subject: Subject) -> None:
        """They can be read until the item is deleted or pruned."""
        backend = subject.backend
        lease = await start_one(backend, item("a", keep=10.0))
        await record(backend, lease, step("one"), progress=b"p", chunks=(b"c",), first_chunk=1)
        assert (await send(backend)).verb == "stored"
        await apply(backend, succeed(lease))
        assert await step_names(backend) == ["one"]
        assert (await state(backend, "a")).has_steps
        await subject.advance(11)
        assert await backend.prune() == 1
        assert await backend.steps(["a"]) == [None]
        assert await backend.stream("a") == []
        await submit(backend, item("a"))
        found = await recorded(backend)
        assert (found.steps, found.unread, found.progress, found.chunks) == ((), 0, None, 0)
        assert not (await claim_one(backend)).has_steps

    @needs("steps")
    async def test_many_records_in_one_call(self, backend: Backend) -> None:
        """Each is answered on its own, in order."""
        leases = await start(backend, *(item(f"i{n}") for n in range(200)))
        asked = [Record(lease=lease, steps=(step("s", lease.id.encode()),)) for lease in leases]
        assert await backend.record(asked) == [None] * 200
        found = await backend.steps([lease.id for lease in leases])
        assert [only(one.steps).value for one in found if one is not None] == [
            lease.id.encode() for lease in leases
        ]

    @needs("steps")
    async def test_several_records_of_one_item_in_one_call(self, backend: Backend) -> None:
        """They are written in order."""
        lease = await start_one(backend, item("a"))
        records = [Record(lease=lease, steps=(step(name, b"1"),)) for name in ("z", "y", "z")]
        assert await backend.record(records) == [None, None, None]
        assert await step_names(backend) == ["z", "y"]

    @needs("steps", "transactions")
    async def test_steps_are_undone_with_their_transaction(self, backend: Backend) -> None:
        """A step that was recorded in a transaction is there only if it commits."""
        lease = await start_one(backend, item("a"))
        async with backend.transaction() as tx:
            assert await tx.record([Record(lease=lease, steps=(step("kept"),))]) == [None]
        with pytest.raises(ZeroDivisionError):
            await _record_and_fail(backend, lease)
        assert await step_names(backend) == ["kept"]
        await apply(backend, succeed(lease))
        async with backend.transaction() as tx:
            assert await tx.record([Record(lease=lease, steps=(step("late"),))]) != [None]
        assert await step_names(backend) == ["kept"]

    @needs("steps")
    async def test_names_are_any_text(self, backend: Backend) -> None:
        """A store does not read meaning into the names of steps."""
        lease = await start_one(backend, item("a"))
        names = ["a b", "é", "page:1", "'; drop table x", "%", "1"]
        await record(backend, lease, *(step(name) for name in names))
        assert await step_names(backend) == names


async def _record_and_fail(backend: Backend, lease: Lease) -> None:
    async with backend.transaction() as tx:
        assert await tx.record([Record(lease=lease, steps=(step("undone"),))]) == [None]
        raise ZeroDivisionError


# --------------------------------------------------------------------------------------------------- suspend


class SuspendCases:
    @needs("steps")
    async def test_a_sleeping_item_is_scheduled_and_resumes_when_it_is_due(self, subject: Subject) -> None:
        """The attempt is given back, without a deferral."""
        backend = subject.backend
        lease = await start_one(backend, item("a"))
        settled = await apply(backend, suspend(lease, sleep(seconds=60)))
        assert not only(settled.outcomes).ready
        found = await state(backend, "a")
        assert (found.status, found.suspended, found.attempt, found.deferrals) == ("scheduled", True, 0, 0)
        assert found.due_at == near(await backend.now() + 60)
        wait = await step_named(backend, "nap")
        assert (wait.kind, wait.over, wait.until) == ("sleep", False, found.due_at)
        answer = await claim_answer(backend)
        assert (answer.leases, answer.next_due) == ((), near(60))
        await subject.advance(61)
        lease = await claim_one(backend)
        assert (lease.attempt, lease.has_steps, lease.resumes) == (1, True, True)
        assert not (await state(backend, "a")).suspended
        await consistent(backend)

    @needs("steps")
    async def test_a_wait_without_limit_is_due_never(self, subject: Subject) -> None:
        """The item stays suspended until a signal comes."""
        backend = subject.backend
        await suspended(backend, awaits())
        found = await state(backend, "a")
        assert (found.status, found.due_at, found.suspended) == ("scheduled", NEVER, True)
        await subject.advance(365 * 24 * HOUR)
        await beat(backend)
        assert await claim_ids(backend) == []

    @needs("steps")
    async def test_an_item_is_due_at_its_earliest_wait(self, subject: Subject) -> None:
        """It goes on when the first of its waits is over."""
        backend = subject.backend
        await suspended(backend, sleep("long", 1000), awaits("go", seconds=100), sleep("short", 500))
        assert (await state(backend, "a")).due_at == near(await backend.now() + 100)
        assert await step_names(backend) == ["long", "go", "short"]
        await subject.advance(101)
        lease = await claim_one(backend)
        await apply(backend, suspend(lease, *(await recorded(backend)).steps[::2]))
        assert (await state(backend, "a")).due_at == near(await backend.now() + 399)
        assert (await step_named(backend, "long")).until == near(await backend.now() + 899)

    @needs("steps")
    async def test_suspending_ends_failures_and_losses(self, backend: Backend) -> None:
        """To suspend is progress, as to record a step is."""
        await submit(backend, item("a"))
        await apply(backend, retry(await claim_one(backend)))
        await claim_one(backend)
        await backend.remove_worker("w")
        lease = await claim_one(backend)
        await backend.begin([lease])
        await apply(backend, suspend(lease, sleep(seconds=0.0)))
        again = await claim_one(backend)
        assert (again.attempt, again.failures, again.losses) == (1, 0, 0)

    @needs("steps")
    async def test_a_suspend_records_other_steps_too(self, backend: Backend) -> None:
        """Steps that are over come in the same settlement as the wait."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, step("one"))
        await apply(backend, suspend(lease, step("two"), awaits()))
        assert await step_names(backend) == ["one", "two", "go"]
        assert (await state(backend, "a")).due_at == NEVER

    @needs("steps")
    async def test_a_stale_or_repeated_suspend(self, backend: Backend) -> None:
        """Repeated, it is answered `again`. By a stale token it changes nothing."""
        lease = await start_one(backend, item("a"))
        settlement = suspend(lease, sleep(seconds=0.0))
        await apply(backend, settlement)
        outcome = await settle_one(backend, settlement)
        assert (outcome.verb, outcome.again) == ("applied", True)
        await claim_one(backend)
        await backend.remove_worker("w")
        lost = lease
        current = await claim_one(backend)
        assert current.token != lost.token
        other = suspend(replace(lost, token=lost.token + 1), awaits("x"))
        assert (await settle_one(backend, other)).verb == "stale"
        assert await step_names(backend) == ["nap"]
        assert await status(backend, "a") == "running"

    @needs("steps")
    async def test_children_of_a_suspended_item(self, backend: Backend) -> None:
        """They join its group, which stays open."""
        lease = await start_one(backend, item("a"))
        await apply(backend, suspend(lease, awaits(), children=(item("b"), item("c", after=("b",), need=1))))
        assert await statuses(backend, "a", "b", "c") == ["scheduled", "ready", "blocked"]
        assert (await group(backend, "a")).open == 3
        assert (await state(backend, "b")).parent == "a"
        for _ in "bc":
            await apply(backend, succeed(await claim_one(backend)))
        assert (await group(backend, "a")).open == 1
        await send(backend)
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert only(settled.effects.ended_groups).id == "a"
        await consistent(backend)

    @needs("steps")
    async def test_children_that_cannot_be_stored_refuse_the_suspend(self, backend: Backend) -> None:
        """Nothing of the settlement is applied: the item still runs."""
        lease = await start_one(backend, item("a"))
        outcome = await settle_one(backend, suspend(lease, awaits(), children=(item("a"),)))
        assert (outcome.verb, outcome.rejected is not None) == ("rejected", True)
        assert await step_names(backend) == []
        assert await status(backend, "a") == "running"
        await apply(backend, succeed(lease))

    @needs("steps", "operating")
    async def test_trigger_wakes_a_sleeping_item(self, subject: Subject) -> None:
        """The sleep is over."""
        backend = subject.backend
        await suspended(backend, sleep("one"), sleep("two", 2 * HOUR), awaits())
        await backend.trigger(["a"])
        assert (await state(backend, "a")).due_at == near(await backend.now())
        lease = await claim_one(backend)
        assert lease.resumes
        assert [one.over for one in (await recorded(backend)).steps] == [True, True, False]

    @needs("steps", "operating")
    async def test_an_item_that_waits_for_a_signal_cannot_be_triggered(self, backend: Backend) -> None:
        """A trigger ends sleeps. It does not stand for a signal."""
        await suspended(backend, awaits(seconds=HOUR))
        with pytest.raises(NotTriggerable, match="item 'a' waits for a signal or for its children"):
            await backend.trigger(["a"])
        assert await status(backend, "a") == "scheduled"

    @needs("steps")
    async def test_a_deadline_dooms_a_suspended_item(self, subject: Subject) -> None:
        """The deadline of an item holds while it waits."""
        backend = subject.backend
        await suspended(backend, awaits(), expires_in=60.0)
        await subject.advance(61)
        lease = only((await claim_answer(backend, 0)).leases)
        assert (lease.verdict, lease.has_steps) == ("expired", True)
        await apply(backend, die(lease))
        assert (await state(backend, "a")).reason == "expired"
        await consistent(backend)

    @needs("steps")
    async def test_an_item_that_is_suspended_after_its_deadline_is_doomed(self, subject: Subject) -> None:
        """It is not left to wait: the next claim hands it out with its verdict."""
        backend = subject.backend
        lease = await start_one(backend, item("a", expires_in=60.0))
        await subject.advance(61)
        await beat(backend)
        assert await claim_ids(backend) == []  # it notices the deadline
        await apply(backend, suspend(lease, awaits()))
        assert await verdicts(backend) == {"a": "expired"}

    @needs("steps", "operating")
    async def test_a_suspended_item_can_be_cancelled_and_completed(self, backend: Backend) -> None:
        """Operators end it as any item that is scheduled."""
        leases = await start(backend, item("a"), item("b"))
        await apply(backend, *(suspend(lease, awaits()) for lease in leases))
        await backend.cancel(["a"])
        await backend.complete("b", b"by hand")
        assert await statuses(backend, "a", "b") == ["cancelled", "success"]
        assert not (await state(backend, "a")).suspended
        assert [(await send(backend, id=id)).verb for id in "ab"] == ["ended", "ended"]
        await consistent(backend)

    @needs("steps", "updates")
    async def test_a_suspended_item_counts_as_started(self, backend: Backend) -> None:
        """It cannot be changed, and a key with `replace` does not change it."""
        await suspended(backend, awaits(), key="k")
        with pytest.raises(ConflictError):
            await backend.update(["a"], ItemUpdate(priority=5))
        answer = await submit_one(backend, item("b", key="k", key_policy="replace", input=b"new"))
        assert (answer.id, answer.existing) == ("a", True)
        assert (await state(backend, "a")).input == b"input"

    @needs("steps")
    async def test_a_paused_queue_holds_a_woken_item(self, backend: Backend) -> None:
        """A signal makes it ready. It is handed out when the queue is resumed."""
        await suspended(backend, awaits())
        await pause(backend, "default")
        await send(backend)
        assert await claim_ids(backend) == []
        await resume(backend, "default")
        assert await claim_ids(backend) == ["a"]

    @needs("steps", "order")
    async def test_a_woken_item_goes_to_the_end_of_its_line(self, backend: Backend) -> None:
        """It has no right of way before items that were ready earlier."""
        await suspended(backend, awaits())
        await submit(backend, item("b"))
        await send(backend)
        assert await claim_ids(backend) == ["b", "a"]

    @needs("steps")
    async def test_a_suspended_item_has_no_worker(self, backend: Backend) -> None:
        """No lease is left of the attempt that suspended it."""
        await suspended(backend, awaits())
        assert (await state(backend, "a")).worker is None
        assert await backend.unknown_leases("w", []) == []
        assert await backend.remove_worker("w") == 0
        assert (await state(backend, "a")).suspended

    @needs("steps", "listing")
    async def test_a_list_shows_what_is_suspended(self, backend: Backend) -> None:
        """A list says so without a look at the steps."""
        await suspended(backend, awaits())
        await submit(backend, item("b", delay=60.0))
        page = await backend.list(Filter(status=("scheduled",)))
        assert {one.id: (one.suspended, one.has_steps) for one in page.items} == {
            "a": (True, True),
            "b": (False, False),
        }


# ---------------------------------------------------------------------------------------------------- signals


class SignalCases:
    @needs("steps")
    async def test_a_signal_wakes_the_item_that_waits_for_it(self, backend: Backend) -> None:
        """The wait is over with the value of the signal, and the item is ready."""
        await suspended(backend, awaits("go"))
        answer = await send(backend, "go", b"yes")
        assert (answer.verb, answer.status, answer.woken) == ("stored", "ready", ("work", "default"))
        wait = await step_named(backend, "go")
        assert (wait.over, wait.value) == (True, b"yes")
        assert (await state(backend, "a")).due_at == near(await backend.now())
        lease = await claim_one(backend)
        assert lease.resumes
        assert (await recorded(backend)).unread == 0
        await consistent(backend)

    @needs("steps")
    async def test_another_signal_does_not_wake_it(self, backend: Backend) -> None:
        """A signal of another name waits in the mailbox."""
        await suspended(backend, awaits("go"))
        answer = await send(backend, "stop")
        assert (answer.verb, answer.status, answer.woken) == ("stored", "scheduled", None)
        assert (await recorded(backend)).unread == 1
        assert await claim_ids(backend) == []

    @needs("steps")
    async def test_a_mailbox_has_names(self, backend: Backend) -> None:
        """Of the signals that no wait has taken."""
        await suspended(backend, awaits("go"))
        for name in ("stop", "gö", "go", "stop", "a'b"):
            await send(backend, name, b"1")
        assert (await recorded(backend)).mailbox == {"stop": 2, "gö": 1, "a'b": 1}

    @needs("steps")
    async def test_a_signal_that_came_before_is_taken_by_the_wait(self, backend: Backend) -> None:
        """Before the item has started, and while it runs. The item is ready at once."""
        await submit(backend, item("a"))
        assert (await send(backend, "go", b"1")).woken is None
        lease = await claim_one(backend)
        assert (await send(backend, "go", b"2")).woken is None
        assert (await recorded(backend)).unread == 2
        settled = await apply(backend, suspend(lease, awaits("go", "first")))
        assert only(settled.outcomes).ready
        assert await status(backend, "a") == "ready"
        lease = await claim_one(backend)
        assert (await step_named(backend, "first")).value == b"1"
        await apply(backend, suspend(lease, awaits("go", "second")))
        assert (await step_named(backend, "second")).value == b"2"
        assert (await recorded(backend)).unread == 0

    @needs("steps")
    async def test_signals_are_taken_in_order_each_by_one_wait(self, backend: Backend) -> None:
        """The first that came is taken first, and never again."""
        lease = await start_one(backend, item("a"))
        for value in (b"1", b"2", b"3"):
            await send(backend, "go", value)
        await apply(backend, suspend(lease, awaits("go", "x"), awaits("go", "y")))
        values = {one.name: one.value for one in (await recorded(backend)).steps}
        assert values == {"x": b"1", "y": b"2"}
        assert (await recorded(backend)).unread == 1

    @needs("steps")
    async def test_two_waits_for_one_name_take_two_signals(self, backend: Backend) -> None:
        """Each wait of a suspended item takes a signal of its own."""
        await suspended(backend, awaits("go", "x"), awaits("go", "y"))
        assert (await send(backend, "go", b"1")).woken is not None
        assert (await send(backend, "go", b"2")).woken is None  # it is ready already
        values = {one.name: one.value for one in (await recorded(backend)).steps}
        assert values == {"x": b"1", "y": b"2"}

    @needs("steps")
    async def test_a_signal_while_it_runs_wakes_nothing_and_stays(self, backend: Backend) -> None:
        """A wait that the handler no longer asks for takes no signal from one that it asks for."""
        await suspended(backend, awaits("go", "old"), sleep(seconds=0.0))
        lease = await claim_one(backend)
        await send(backend, "go", b"1")
        assert not (await step_named(backend, "old")).over
        await apply(backend, suspend(lease, awaits("go", "new")))
        assert await step_names(backend) == ["nap", "new"]
        assert (await step_named(backend, "new")).value == b"1"

    @needs("steps")
    async def test_a_wait_whose_time_has_passed_takes_no_signal(self, subject: Subject) -> None:
        """The signal stays in the mailbox, for a later wait."""
        backend = subject.backend
        await suspended(backend, awaits("go", seconds=10))
        await subject.advance(11)
        assert (await send(backend)).verb == "stored"
        wait = await step_named(backend, "go")
        assert (wait.over, wait.value) == (False, None)
        assert (await recorded(backend)).unread == 1
        assert (await claim_one(backend)).resumes

    @needs("steps")
    async def test_a_retry_is_not_cut_short_by_a_signal(self, backend: Backend) -> None:
        """Its item is not suspended, although a wait is not over."""
        await suspended(backend, awaits("go"), sleep(seconds=0.0))
        await apply(backend, retry(await claim_one(backend), HOUR))
        answer = await send(backend)
        assert (answer.status, answer.woken) == ("scheduled", None)
        assert (await recorded(backend)).unread == 1

    @needs("steps")
    async def test_a_key_is_known_also_after_its_signal_was_taken(self, backend: Backend) -> None:
        """A key is one of a name and an item."""
        lease, _ = await start(backend, item("a"), item("b"))
        assert (await send(backend, key="k")).verb == "stored"
        assert (await send(backend, key="k")).verb == "existing"
        assert (await send(backend, "stop", key="k")).verb == "stored"
        assert (await send(backend, id="b", key="k")).verb == "stored"
        await apply(backend, suspend(lease, awaits("go")))
        assert (await send(backend, key="k")).verb == "existing"
        assert (await recorded(backend)).unread == 1

    @needs("steps")
    async def test_signals_without_keys_are_each_stored(self, backend: Backend) -> None:
        """Only a key makes two signals the same."""
        await start_one(backend, item("a"))
        answers = await backend.signal([Signal(id="a", name="go", value=b"x")] * 3)
        assert [answer.verb for answer in answers] == ["stored"] * 3
        assert (await recorded(backend)).unread == 3

    @needs("steps")
    async def test_each_signal_of_a_call_is_answered_by_itself(self, backend: Backend) -> None:
        """One that is refused does not keep the others from being stored."""
        await suspended(backend, awaits("go"))
        ended = await start_one(backend, item("b"))
        await apply(backend, succeed(ended))
        asked = [Signal(id=id, name="go") for id in ("missing", "b", "a")]
        answers = await backend.signal(asked)
        assert [answer.verb for answer in answers] == ["not_found", "ended", "stored"]
        assert answers[1].status == "success"
        assert (await step_named(backend, "go")).value is None

    @needs("steps")
    async def test_a_full_mailbox_refuses(self, backend: Backend) -> None:
        """Unread signals count. Taken ones do not, nor one that a wait takes at once."""
        lease = await start_one(backend, item("a"))
        answers = await backend.signal([Signal(id="a", name="go")] * MOST_UNREAD)
        assert {answer.verb for answer in answers} == {"stored"}
        assert (await send(backend)).verb == "full"
        assert (await recorded(backend)).unread == MOST_UNREAD
        await apply(backend, suspend(lease, awaits("stop")))
        assert (await send(backend)).verb == "full"
        assert (await send(backend, "stop")).verb == "stored"
        await apply(backend, suspend(await claim_one(backend), awaits("go")))
        assert (await send(backend)).verb == "stored"

    @needs("steps")
    async def test_signals_of_a_tenant(self, backend: Backend) -> None:
        """With a tenant, items of others are not found."""
        await submit(backend, item("a", tenant="x"), item("b", tenant="y"))
        answers = await backend.signal([Signal(id=id, name="go") for id in "ab"], tenant="x")
        assert [answer.verb for answer in answers] == ["stored", "not_found"]
        assert await backend.steps(["a"], tenant="y") == [None]
        assert (await recorded(backend, "a", "x")).unread == 1

    @needs("steps")
    async def test_signals_and_waits_at_the_same_time(self, subject: Subject) -> None:
        """However they meet: no signal is lost, and none is taken twice."""
        backends = await connections(subject, 3)
        leases = await start(backends[0], *(item(f"i{n}") for n in range(20)))

        async def waits(lease: Lease) -> None:
            await apply(backends[0], suspend(lease, awaits("go")))

        async def sends(lease: Lease, backend: Backend, value: bytes) -> None:
            await send(backend, "go", value, id=lease.id)

        calls = [waits(lease) for lease in leases]
        calls += [sends(lease, backends[1], b"1") for lease in leases]
        calls += [sends(lease, backends[2], b"2") for lease in leases]
        await asyncio.gather(*calls)
        for lease in leases:
            found = await recorded(backends[0], lease.id)
            assert only(found.steps).value in (b"1", b"2")
            assert found.unread == 1
            assert await status(backends[0], lease.id) == "ready"
        await consistent(backends[0])

    @needs("steps")
    async def test_a_doomed_item_takes_a_signal_and_stays_doomed(self, subject: Subject) -> None:
        """A signal does not save an item whose end is decided."""
        backend = subject.backend
        await suspended(backend, awaits("go"), expires_in=10.0)
        await subject.advance(11)
        await beat(backend)
        doomed = only((await claim_answer(backend, 0)).leases)
        assert (await send(backend)).woken is None
        assert doomed.verdict == "expired"
        await apply(backend, die(doomed))

    @needs("steps", "recording")
    async def test_a_note_is_stored_with_a_signal(self, backend: Backend) -> None:
        """Not if all were refused, or were there."""
        await start_one(backend, item("a"))
        note = AuditNote(actor="ann", reason="approved by phone")
        sent = [Signal(id=id, name="go", key=key) for id, key in (("a", "1"), ("a", "2"), ("missing", "3"))]
        for some in sent, sent[2:], sent:
            await backend.signal(some, note=note)
        entry = only((await backend.audits()).entries)
        assert (entry.verb, entry.actor, entry.count) == ("signal", "ann", 2)
        assert entry.ids[0] == "a"

    @needs("steps")
    async def test_a_clock_that_is_set_back_keeps_signals(self, subject: Subject) -> None:
        """Their order is that of arrival, not that of the clock."""
        backend = subject.backend
        await subject.advance(HOUR)
        await suspended(backend, awaits("go"))
        await set_back(subject, HOUR)
        assert (await send(backend)).woken is not None
        await beat(backend)
        assert await claim_ids(backend) == ["a"]


# --------------------------------------------------------------------------------------- requeues and streams


class StepRequeueCases:
    @needs("steps", "operating")
    async def test_a_requeued_item_keeps_its_steps(self, backend: Backend) -> None:
        """Not the waits that are not over, and not those that were undone."""
        await suspended(backend, awaits("go"), sleep(seconds=0.0))
        lease = await claim_one(backend)
        await record(backend, lease, step("plain"), step("charge", undo=b"refund"))
        await apply(backend, die(lease))
        assert await step_names(backend) == ["go", "nap", "plain", "charge"]
        await backend.requeue(["a"])
        assert await step_names(backend) == ["plain"]
        assert (await claim_one(backend)).has_steps

    @needs("steps", "operating")
    async def test_a_cancelled_item_keeps_steps_that_can_be_undone(self, backend: Backend) -> None:
        """A cancel undoes nothing."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, step("charge", undo=b"refund"))
        await backend.cancel(["a"])
        await backend.requeue(["a"], cancelled=True)
        assert await step_names(backend) == ["charge"]

    @needs("steps", "operating")
    async def test_a_requeue_from_a_step_forgets_it_and_those_after_it(self, backend: Backend) -> None:
        """After it: recorded for the first time after it."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, step("one"), step("two"), step("three"))
        await record(backend, lease, step("one", b"new"))
        await apply(backend, die(lease))
        changed = await backend.requeue(["a"], from_step="two")
        assert only(changed.items).id == "a"
        assert await step_names(backend) == ["one"]
        lease = await claim_one(backend)
        await record(backend, lease, step("new"), step("two"))
        assert await step_names(backend) == ["one", "new", "two"]

    @needs("steps", "operating")
    async def test_a_forgotten_step_leaves_its_name(self, backend: Backend) -> None:
        """And how often it was forgotten. It is recorded anew as if it were new."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, step("charge", b"1", undo=b"refund"), step("ship", b"2"))
        for times in (1, 2):
            await apply(backend, die(lease))
            await backend.requeue(["a"])
            left = await step_named(backend, "charge")
            assert (left.kind, left.value, left.undo, left.times) == ("forgotten", None, None, times)
            lease = await claim_one(backend)
            assert lease.has_steps
            await record(backend, lease, step("charge", b"3", undo=b"refund"))
            again = await step_named(backend, "charge")
            assert (again.kind, again.value, again.times) == ("value", b"3", times)
            assert await step_names(backend) == ["ship", "charge"]
        await apply(backend, die(lease))
        assert (await backend.requeue(["a"], from_step="none")).items == ()

    @needs("steps", "operating")
    async def test_an_item_without_that_step_is_skipped(self, backend: Backend) -> None:
        """A requeue from a step leaves items alone that have not recorded it."""
        leases = await start(backend, item("a"), item("b"))
        await record(backend, leases[0], step("one"))
        await apply(backend, *(die(lease) for lease in leases))
        changed = await backend.requeue(["a", "b"], from_step="one")
        assert [one.id for one in changed.items] == ["a"]
        assert await statuses(backend, "a", "b") == ["ready", "dead"]
        assert await step_names(backend) == []
        changed = await backend.requeue(["b"], from_step="one")
        assert changed.items == ()

    @needs("steps", "operating")
    async def test_signals_stay_after_a_requeue(self, backend: Backend) -> None:
        """Unread signals are for the next attempt."""
        lease = await start_one(backend, item("a"))
        await send(backend, "go", b"kept", key="k")
        await apply(backend, die(lease))
        await backend.requeue(["a"])
        assert (await send(backend, key="k")).verb == "existing"
        await apply(backend, suspend(await claim_one(backend), awaits("go")))
        assert (await step_named(backend, "go")).value == b"kept"

    @needs("steps", "operating")
    async def test_other_ways_to_give_an_item_back_keep_its_steps(self, backend: Backend) -> None:
        """Only a requeue from a step forgets any."""
        leases = await start(backend, *(item(id) for id in "abc"))
        for lease in leases:
            await record(backend, lease, step("one"))
        await apply(backend, defer(leases[0]), release(leases[1]), cancel(leases[2]))
        assert [await step_names(backend, id) for id in "abc"] == [["one"]] * 3
        found = {lease.id: lease for lease in await claim(backend)}
        assert all(lease.has_steps and not lease.resumes for lease in found.values())
        assert await verdicts(backend) == {}


class StreamCases:
    @needs("steps")
    async def test_chunks_have_numbers_without_gaps(self, backend: Backend) -> None:
        """1, 2, 3, ..., in the order in which they were recorded."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, chunks=(b"a", b"b"), first_chunk=1)
        await record(backend, lease, chunks=(b"c",), first_chunk=3)
        found = await backend.stream("a")
        assert [(one.number, one.value) for one in found] == [(1, b"a"), (2, b"b"), (3, b"c")]
        assert found[0].at == near(await backend.now())
        assert (await recorded(backend)).chunks == 3

    @needs("steps")
    async def test_a_repeated_chunk_is_not_written_again(self, backend: Backend) -> None:
        """A record whose answer was lost is sent again with the same numbers."""
        lease = await start_one(backend, item("a"))
        for _ in range(2):
            await record(backend, lease, chunks=(b"a", b"b"), first_chunk=1)
        await record(backend, lease, chunks=(b"x", b"c"), first_chunk=2)
        assert [one.value for one in await backend.stream("a")] == [b"a", b"b", b"c"]

    @needs("steps")
    async def test_a_stream_whose_chunks_the_store_has_forgotten(self, backend: Backend) -> None:
        """As after a crash that lost the last commits. What is there is read, in order and once."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, chunks=(b"a",), first_chunk=1)
        for _ in range(2):
            await record(backend, lease, chunks=(b"d", b"e"), first_chunk=4)
        assert [one.number for one in await backend.stream("a")] == [1, 4, 5]
        assert [one.number for one in await backend.stream("a", since=4)] == [5]
        assert (await recorded(backend)).chunks == 5
        await backend.cancel(["a"])
        await backend.delete(["a"])
        assert await backend.stream("a") == []

    @needs("steps")
    async def test_a_reader_goes_on_where_it_was(self, backend: Backend) -> None:
        """It gives the last number that it has, and gets what follows."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, chunks=tuple(b"%d" % n for n in range(10)), first_chunk=1)
        assert [one.number for one in await backend.stream("a", limit=4)] == [1, 2, 3, 4]
        assert [one.number for one in await backend.stream("a", since=4, limit=4)] == [5, 6, 7, 8]
        assert [one.number for one in await backend.stream("a", since=8)] == [9, 10]
        assert await backend.stream("a", since=10) == []
        assert await backend.stream("missing") == []

    @needs("steps")
    async def test_a_stream_goes_on_in_the_next_attempt(self, backend: Backend) -> None:
        """The numbers of an item go on over its attempts."""
        lease = await start_one(backend, item("a"))
        await record(backend, lease, chunks=(b"a",), first_chunk=1, progress=b"1")
        await apply(backend, retry(lease))
        again = await claim_one(backend)
        assert (await recorded(backend)).chunks == 1
        await record(backend, again, chunks=(b"b",), first_chunk=2, progress=b"2")
        stale = Record(lease=lease, chunks=(b"x",), first_chunk=3)
        assert await backend.record([stale]) != [None]
        assert [one.value for one in await backend.stream("a")] == [b"a", b"b"]
        found = await recorded(backend)
        assert (found.progress, found.progress_at) == (b"2", near(await backend.now()))
