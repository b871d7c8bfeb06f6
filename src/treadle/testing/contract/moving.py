"""Moving: all that a store holds goes into another one, which goes on where the first one was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.errors import (
    BackendError,
    InputError,
    StoreMoved,
    StoreNotEmpty,
    StoreUnavailable,
    StoreUnfinished,
)
from treadle.item import (
    AuditNote,
    Contribution,
    Demand,
    Filter,
    Fire,
    Heartbeat,
    Limit,
    Order,
    PermitRequest,
    Record,
    Schedule,
    Settlement,
    Signal,
    StepRecord,
    Submission,
)
from treadle.records import BacklogSample, Stat
from treadle.store import portable
from treadle.store.portable import AnyRecord, Head, PortableItem, Tally
from treadle.store.rules.records import COUNTERS
from treadle.testing.clock import ManualClock

from .build import (
    apply,
    claim,
    claim_answer,
    dependent,
    die,
    end,
    group,
    item,
    only,
    retry,
    start_one,
    state,
    submit,
    succeed,
)
from .check import consistent
from .subject import Subject, needs

NOTE = AuditNote(actor="ann@x", reason="a move")


async def records(backend: Backend, **how: Any) -> list[AnyRecord]:
    found: list[AnyRecord] = []
    async with backend.export(**how) as export:
        while portion := await export.read(7):
            found += map(portable.decode, portion)
    return found


async def fill(backend: Backend, found: Sequence[AnyRecord], move: str = "m1", source: str = "") -> None:
    async with backend.import_(move, source) as filled:
        for first in range(0, len(found), 7):
            await filled.write([portable.encode(one) for one in found[first : first + 7]])
        await filled.finish()


def tally(found: Sequence[AnyRecord]) -> Tally:
    counted = Tally()
    counted.add(found)
    return counted


def items_of(found: Sequence[AnyRecord]) -> dict[str, PortableItem]:
    return {one.id: one for one in found if isinstance(one, PortableItem)}


async def use(backend: Backend) -> None:
    """Leave items in every state, and something of all else that a store keeps."""
    now = await backend.now()
    await submit(backend, item("ready", priority=3, lane="left"), item("later", delay=1000), item("held"))
    await submit(backend, item("keyed", key="k"), item("overdue", deadline=now + 50.0))
    await submit(backend, dependent("ready", "never", id="blocked", need=1), dependent("none", id="waits"))
    await backend.hold(["held"])
    await end(backend, item("good"), item("bad"), item("gone"))
    await end(backend, item("dead"), how=die)
    await submit(backend, dependent("dead", id="hopeless"))
    await backend.cancel([only(await submit(backend, item("cancelled"))).id], note=NOTE)
    root = await start_one(backend, item("root"))
    children = (item("child"), dependent("child", id="last"), item("closer", closes_group=True))
    inner = item("inner", group_id="closer")
    await apply(backend, Settlement(lease=root, kind="success", result=b"1", children=(*children, inner)))
    tried = await start_one(backend, item("tried", attempts=3))
    await apply(backend, retry(tried, delay=500))
    stepped = await start_one(backend, item("stepped"))
    await backend.record(
        [
            Record(
                lease=stepped,
                steps=(StepRecord(name="one", value=b"1"), StepRecord(name="two", value=b"2", undo=b"u")),
                progress=b"half",
                chunks=(b"a", b"b"),
                first_chunk=1,
                log=b"log",
            )
        ]
    )
    wait = StepRecord(name="go", kind="signal", signal="go", over=False)
    await apply(backend, Settlement(lease=stepped, kind="suspend", steps=(wait,)))
    await backend.signal(
        [Signal(id="stepped", name="other", value=b"x", key="once"), Signal(id="held", name="s")]
    )
    await backend.order(Order(kind="pause", queue="slow", actor="ann"), note=NOTE)
    await backend.order(Order(kind="limit", name="mail", limit=3, until=now + 5000), note=NOTE)
    await backend.put_schedule(Schedule(name="nightly", next_at=now + 60, spec=b"spec"))
    await backend.put_schedule(Schedule(name="often", next_at=now - 5, spec=b"often"))
    await backend.fire(Fire(name="often", at=now - 5, next_at=now + 300, items=(item("fired"),)))
    await backend.put_schedule(Schedule(name="removed", next_at=now + 60, spec=b"x"))
    await backend.drop_schedule("removed")
    await backend.claim_key("lock", "me", 5000, tenant="default")
    await backend.take_permits([PermitRequest((Limit("mail", 5, 60.0),), 2)])
    counts = {name: number for number, name in enumerate(COUNTERS, 1)}
    stat = Stat(at=now // 60 * 60, type="work", queue="default", wait=(1, 0, 2), run=(0, 1), **counts)
    await backend.add_stats([stat])
    await backend.put_samples([BacklogSample(at=now // 60 * 60, queue="default", ready=3.0)])


async def work_off(backend: Backend) -> None:
    """Remove the workers, so that none is alive."""
    for worker in await backend.workers():
        await backend.remove_worker(worker.id)


async def model(subject: Subject) -> MemoryBackend:
    """A store in memory that shows the same time."""
    return MemoryBackend(ManualClock(await subject.backend.now()))


class ExportCases:
    @needs("moving")
    async def test_all_that_a_store_holds_goes_into_another_kind_of_store(
        self, subject: Subject, backend: Backend
    ) -> None:
        """With the same counts and checksum, and so with every field."""
        await use(backend)
        await work_off(backend)
        found, other = await records(backend), await model(subject)
        assert not isinstance(found[0], PortableItem)
        assert {one.status for one in items_of(found).values()} == {
            *("blocked", "scheduled", "ready", "success", "dead", "cancelled")
        }
        await fill(other, found)
        again = await records(other, move="m1")
        assert tally(again).counts == tally(found).counts
        assert items_of(again) == items_of(found)
        assert tally(again).checksum == tally(found).checksum

    @needs("moving")
    async def test_all_that_another_kind_of_store_holds_comes_in(
        self, subject: Subject, backend: Backend
    ) -> None:
        """What is exported again is what was imported. Counters equal their recounts."""
        other = await model(subject)
        await use(other)
        await work_off(other)
        found = await records(other)
        await fill(backend, found)
        again = await records(backend, move="m1")
        assert items_of(again) == items_of(found)
        assert tally(again).checksum == tally(found).checksum
        await backend.own("m1")
        assert await backend.mark() is None
        await consistent(backend)

    @needs("moving")
    async def test_running_items_are_exported_as_if_their_workers_were_removed(
        self, backend: Backend
    ) -> None:
        """One that has begun has a loss in its history. One that has not leaves no trace."""
        await start_one(backend, item("begun"))
        await submit(backend, item("claimed", "buffered"))
        await claim(backend, worker="w2", buffered=frozenset({"buffered"}))
        found = items_of(await records(backend))
        assert [(one.status, one.losses, len(one.history)) for one in found.values()] == [
            ("ready", 1, 1),
            ("ready", 0, 0),
        ]
        assert found["begun"].history[0].error_type == b"LeaseLost"
        assert [one.attempt for one in found.values()] == [1, 0]
        assert (await state(backend, "begun")).status == "running"

    @needs("moving")
    async def test_the_head_names_the_workers_that_are_alive(self, backend: Backend) -> None:
        """So a move can be refused that would leave them behind."""
        await backend.beat(Heartbeat(worker="w9", lease=1000))
        head = (await records(backend))[0]
        assert isinstance(head, Head)
        assert head.workers == ("w9",)

    @needs("moving")
    async def test_an_export_of_a_tenant_has_what_is_its_alone(
        self, subject: Subject, backend: Backend
    ) -> None:
        """The same records of it as an export of all. They fill an empty store, which goes on with them."""
        await use(backend)
        await submit(backend, item("theirs", key="k", tenant="other"))
        await submit(backend, item("next", lane="left", tenant="other"))
        await submit(backend, dependent("theirs", id="waits", tenant="other"))
        await apply(backend, succeed(await start_one(backend, item("over", tenant="other"))))
        await backend.cancel(["next"], tenant="other", note=NOTE)
        await backend.claim_key("lock", "you", 5000, tenant="other")
        await work_off(backend)
        found, whole = await records(backend, tenant="other"), await records(backend)
        head = found[0]
        assert isinstance(head, Head)
        assert head.tenant == "other"
        assert {*items_of(found)} == {"theirs", "next", "waits", "over"}
        assert [one for one in whole[1:] if getattr(one, "tenant", None) == "other"] == found[1:]
        new = await model(subject)
        await fill(new, found)
        await new.own("m1")
        assert tally(await records(new)).checksum == tally(found).checksum
        assert only(await submit(new, item("again", key="k", tenant="other"))).id == "theirs"
        await apply(new, succeed(only(await claim(new, worker="w2"))))
        assert (await state(new, "waits", tenant="other")).status == "ready"

    @needs("moving")
    async def test_nothing_changes_while_an_export_is_frozen(
        self, subject: Subject, backend: Backend
    ) -> None:
        """And the store goes on when it ends."""
        await submit(backend, item("before"))
        async with backend.export(freeze=60) as export:
            first = [portable.decode(one) for one in await export.read(1000)]
            assert [*items_of(first)] == ["before"]
        await submit(backend, item("after"))
        assert (await state(backend, "after")).status == "ready"


class ImportCases:
    async def _moved(
        self, subject: Subject, backend: Backend, before: Callable[[Backend], Awaitable[Any]]
    ) -> None:
        """Let a store in memory be used, and this one take over."""
        other = await model(subject)
        await before(other)
        await work_off(other)
        await fill(backend, await records(other))
        await backend.own("m1")

    @needs("moving")
    async def test_imported_items_are_claimed_released_and_closed(
        self, subject: Subject, backend: Backend
    ) -> None:
        """In their order, once each. A group ends once, with its value."""

        async def before(other: Backend) -> None:
            root = await start_one(other, item("root"))
            children = (item("one"), item("two"), dependent("one", "two", id="sum"))
            contribution = Contribution(value=b"0")
            await apply(
                other, Settlement(lease=root, kind="success", contribution=contribution, children=children)
            )
            await submit(other, item("urgent", priority=9), dependent("root", "later", id="both"))

        await self._moved(subject, backend, before)
        leases = await claim(backend, 10, "new")
        assert [lease.id for lease in leases] == ["urgent", "one", "two"]
        await apply(backend, *map(succeed, leases[1:]))
        last = only(await claim(backend, 10, "new"))
        assert last.id == "sum"
        assert last.group_id == "root"
        assert (await group(backend, "root")).ended_at is None
        await apply(backend, Settlement(lease=last, kind="success", contribution=Contribution(value=b"3")))
        ended = await group(backend, "root")
        assert (ended.open, ended.value, ended.total) == (0, b"3", 4)
        await submit(backend, item("later"))
        (later,) = [one for one in await claim(backend, 9, "new") if one.id == "later"]
        await apply(backend, succeed(later))
        assert [one.id for one in await claim(backend, 10, "new")] == ["both"]
        await consistent(backend)

    @needs("moving")
    async def test_keys_retries_and_schedules_go_on(self, subject: Subject, backend: Backend) -> None:
        """A key answers its item. The next attempt has the next number. An occurrence fires once."""
        due = await backend.now() + 60

        async def before(other: Backend) -> None:
            await submit(other, item("keyed", key="k"))
            await apply(other, retry(await start_one(other, item("tried", attempts=3))))
            await other.put_schedule(Schedule(name="s", next_at=due, spec=b"spec"))
            await other.claim_key("lock", "me", 5000, tenant="default")

        await self._moved(subject, backend, before)
        again = only(await submit(backend, item("other", key="k")))
        assert (again.id, again.existing) == ("keyed", True)
        tried = only([one for one in await claim(backend, 5, "new") if one.id == "tried"])
        assert (tried.attempt, tried.failures) == (2, 1)
        fire = Fire(name="s", at=due, next_at=due + 60, items=(item("fired"),))
        assert await backend.fire(fire) is not None
        assert await backend.fire(fire) is None
        assert await backend.key_owner("lock", tenant="default") == "me"
        assert not await backend.claim_key("lock", "you", 5000, tenant="default")

    @needs("moving")
    async def test_a_token_of_the_exporting_store_settles_nothing(
        self, subject: Subject, backend: Backend
    ) -> None:
        """Neither while the item waits, nor once it has a new lease."""
        other = await model(subject)
        old = await start_one(other, item("one"))
        await other.remove_worker("w")
        await work_off(other)
        await fill(backend, await records(other))
        await backend.own("m1")
        stale = Settlement(lease=old, kind="success", result=b"old")
        outcome = only((await backend.settle([stale])).outcomes)
        assert outcome.verb == "stale"
        new = only(await claim(backend, 10, "new"))
        assert new.token > old.token
        assert only((await backend.settle([stale])).outcomes).verb == "stale"
        await apply(backend, succeed(new))

    @needs("moving")
    async def test_steps_and_signals_go_on(self, subject: Subject, backend: Backend) -> None:
        """A suspended item goes on when its signal comes. A signal with a known key is not stored again."""
        await self._moved(subject, backend, use)
        (recorded,) = await backend.steps(["stepped"])
        assert recorded is not None
        assert [step.name for step in recorded.steps] == ["one", "two", "go"]
        assert (recorded.progress, recorded.chunks, recorded.mailbox) == (b"half", 2, {"other": 1})
        assert [chunk.value for chunk in await backend.stream("stepped")] == [b"a", b"b"]
        assert await backend.logs("stepped") == [b"log"]
        again = Signal(id="stepped", name="other", value=b"x", key="once")
        assert only(await backend.signal([again])).verb == "existing"
        assert only(await backend.signal([Signal(id="stepped", name="go", value=b"!")])).status == "ready"

    @needs("moving")
    async def test_what_operators_have_ordered_and_noted_is_there(
        self, subject: Subject, backend: Backend
    ) -> None:
        """Pauses and limits hold on, and the audit says who gave them."""
        await self._moved(subject, backend, use)
        assert [(one.kind, one.about) for one in (await backend.orders()).orders] == [
            ("limit", "mail"),
            ("pause", "slow"),
        ]
        assert [one.verb for one in (await backend.audits()).entries] == ["set_limit", "pause", "cancel"]
        assert [one.name for one in await backend.schedules()] == ["nightly", "often"]
        assert [one.id for one in await backend.schedule_runs()] == ["fired"]
        stats = await backend.stats(0)
        counted = {name: sum(getattr(one, name) for one in stats) for name in COUNTERS}
        assert counted == {name: number for number, name in enumerate(COUNTERS, 1)}
        await backend.order(Order(kind="pause", queue="x"), note=NOTE)
        assert [one.verb for one in (await backend.audits()).entries][:2] == ["pause", "set_limit"]

    @needs("moving")
    async def test_an_import_into_a_store_that_holds_something_is_refused(self, backend: Backend) -> None:
        """With what is in the way. Nothing is changed."""
        await submit(backend, item("mine"))
        with pytest.raises(StoreNotEmpty, match="items"):
            async with backend.import_("m1"):
                pytest.fail("it began")
        assert await backend.mark() is None
        assert (await state(backend, "mine")).status == "ready"

    async def _neighbour(self, backend: Backend) -> None:
        """Let another tenant have open and ended items, groups in groups and one that waits."""
        root = await start_one(backend, item("root", tenant="neighbour"))
        children = (
            item("child", tenant="neighbour"),
            item("closer", tenant="neighbour", closes_group=True),
            item("inner", tenant="neighbour", group_id="closer"),
        )
        await apply(backend, Settlement(lease=root, kind="success", result=b"1", children=children))
        await submit(backend, item("keyed", key="k", tenant="neighbour"))
        await submit(backend, dependent("child", "never", id="blocked", tenant="neighbour"))
        await backend.claim_key("lock", "they", 5000, tenant="neighbour")

    @needs("moving", "parts")
    async def test_a_tenant_comes_in_beside_others(self, subject: Subject, backend: Backend) -> None:
        """With the same content, behind what the store has. Both go on, each with its own ids and keys."""
        other = await model(subject)
        await use(other)
        await work_off(other)
        await self._neighbour(backend)
        before = tally(await records(backend, tenant="neighbour"))
        found = await records(other, tenant="default")
        async with backend.import_("m1", tenant="default") as filled:
            for first in range(0, len(found), 7):
                await filled.write([portable.encode(one) for one in found[first : first + 7]])
            assert await backend.get(["stepped"]) == [None]
            await filled.finish()
        assert await backend.mark() is None
        assert tally(await records(backend, tenant="neighbour")).checksum == before.checksum
        await consistent(backend)
        there, were = items_of(await records(backend, tenant="default")), items_of(found)
        assert {*there} == {*were}
        for id, one in there.items():
            one.number, one.group, one.place = were[id].number, were[id].group, were[id].place
            assert one == were[id]
        assert only(await submit(backend, item("other", key="k"))).id == "keyed"
        again = only(await submit(backend, item("other", key="k", tenant="neighbour")))
        assert (again.id, again.existing) == ("keyed", True)
        assert await backend.key_owner("lock", tenant="default") == "me"
        assert await backend.key_owner("lock", tenant="neighbour") == "they"
        while leases := (await claim_answer(backend, 5, "new")).leases:
            await apply(backend, *[succeed(one) if one.verdict is None else die(one) for one in leases])
        for tenant in ("default", "neighbour"):
            ended = await group(backend, "root", tenant=tenant)
            assert (ended.open, ended.ended_at is not None) == (0, True)
        await consistent(backend)

    @needs("moving", "parts")
    async def test_a_tenant_comes_in_whole_or_not_at_all(self, subject: Subject, backend: Backend) -> None:
        """Not if the block ends early, if a record is of another tenant, or if the store has some of it."""
        other = await model(subject)
        await use(other)
        await work_off(other)
        await self._neighbour(backend)
        found = [portable.encode(one) for one in await records(other, tenant="default")]
        before = tally(await records(backend)).checksum
        async with backend.import_("m1", tenant="default") as filled:
            await filled.write(found[:9])
        async with backend.import_("m1", tenant="acme") as filled:
            with pytest.raises(InputError, match="another tenant"):
                await filled.write(found)
        assert tally(await records(backend)).checksum == before
        await submit(backend, item("mine"))
        with pytest.raises(StoreNotEmpty, match="items of default"):
            async with backend.import_("m1", tenant="default") as filled:
                await filled.finish()
        assert (await state(backend, "mine")).status == "ready"

    @needs("moving")
    async def test_an_import_that_is_not_finished_is_no_store(
        self, subject: Subject, backend: Backend
    ) -> None:
        """It is empty, or refuses every verb. The next import begins anew, and `discard` ends it."""
        other = await model(subject)
        await use(other)
        await work_off(other)
        found = await records(other)
        async with backend.import_("m1") as filled:
            await filled.write([portable.encode(one) for one in found[:9]])
        if await backend.mark() is not None:
            with pytest.raises(StoreUnfinished):
                await backend.counts()
        await fill(backend, found, "m2")
        with pytest.raises(StoreUnfinished):
            await backend.orders()
        with pytest.raises(StoreUnfinished):
            await backend.own("m1")  # not this one
        mark = await backend.mark()
        assert mark is not None
        assert (mark.state, mark.move) == ("importing", "m2")
        await backend.discard("m2")
        assert await backend.mark() is None
        assert await backend.counts(ended=True) == []
        await submit(backend, item("new"))

    @needs("moving")
    async def test_a_whole_import_gives_way_only_to_its_source(
        self, subject: Subject, backend: Backend
    ) -> None:
        """If that store has moved since, it is the only copy. A file stays where it is."""
        other = await model(subject)
        await submit(other, item("one"))
        found = await records(other)
        await fill(backend, found, "m1")
        await fill(backend, found, "m2", "sqlite:////old")
        for source in ("", "sqlite:////other"):
            with pytest.raises(StoreUnfinished, match="sqlite:////old") as caught:
                async with backend.import_("m3", source):
                    pytest.fail("it began")
            assert (caught.value.move, caught.value.source) == ("m2", "sqlite:////old")
        await fill(backend, found, "m4", "sqlite:////old")
        mark = await backend.mark()
        assert mark is not None
        assert (mark.move, mark.source, mark.whole) == ("m4", "sqlite:////old", True)
        await backend.own("m4")
        assert (await state(backend, "one")).status == "ready"

    @needs("moving")
    async def test_an_import_that_is_not_whole_gives_way_and_cannot_be_owned(self, backend: Backend) -> None:
        """It is a part of what another store still holds."""
        async with backend.import_("m1", "sqlite:////old"):
            pass
        with pytest.raises(BackendError):
            await backend.own("m1")
        async with backend.import_("m2", "sqlite:////other") as filled:
            await filled.finish()
        await backend.own("m2")

    @needs("moving")
    async def test_only_what_was_imported_can_be_owned(self, backend: Backend) -> None:
        """Again, if it was the last one. A store that was made anew does not know it."""
        with pytest.raises(BackendError, match="holds nothing of move m1"):
            await backend.own("m1")
        for move in ("m1", "m2"):
            async with backend.import_(move) as filled:
                await filled.finish()
            await backend.own(move)
            await backend.own(move)
        await submit(backend, item("one"))
        await backend.own("m2")
        with pytest.raises(BackendError, match="holds nothing of move m1"):
            await backend.own("m1")
        assert (await state(backend, "one")).status == "ready"

    @needs("moving")
    async def test_a_newer_form_is_refused(self, backend: Backend) -> None:
        """So is a field, or a kind, that is not known: it is not dropped in silence."""
        head = (await records(backend))[0]
        assert isinstance(head, Head)
        head.version = portable.VERSION + 1
        unknown = portable.encode(head).replace(b"kind", b"king")
        for data in (portable.encode(head), unknown, b"\xc1"):
            with pytest.raises(InputError):
                async with backend.import_("m1") as filled:
                    await filled.write([data])
        await backend.discard("m1")
        assert await backend.mark() is None

    @needs("moving")
    async def test_a_store_goes_on_from_great_numbers(self, backend: Backend) -> None:
        """Those that no store can have reached are refused."""
        head = (await records(backend))[0]
        assert isinstance(head, Head)
        head.number = head.place = 2**62
        with pytest.raises(InputError, match="number"):
            await fill(backend, [head], "m1")
        await backend.discard("m1")
        head.number = head.place = 2**46
        head.token, head.orders = 2**60, 2**52
        await fill(backend, [head], "m2")
        await backend.own("m2")
        await backend.open()
        await submit(backend, item("a"), item("b"))
        assert {one.id for one in await claim(backend, 2, "w1")} == {"a", "b"}


class MovedCases:
    @needs("moving")
    async def test_a_store_that_has_moved_answers_no_verb(self, subject: Subject, backend: Backend) -> None:
        """Also those of processes that opened it before. They learn the new address."""
        other = await subject.another()
        await submit(backend, item("one"))
        async with backend.export(freeze=60) as export:
            while await export.read():
                pass
            await export.move("m1", "postgresql://new/work")
        mark = await backend.mark()
        assert mark is not None
        assert (mark.state, mark.move, mark.to) == ("moved", "m1", "postgresql://new/work")
        calls: list[Callable[[Backend], Awaitable[object]]] = [
            lambda store: store.submit([Submission((item(),))]),
            lambda store: store.claim(Demand(worker="w1", limit=1)),
            lambda store: store.beat(Heartbeat(worker="w1", lease=10)),
            lambda store: store.get(["one"]),
            lambda store: store.list(Filter()),
            lambda store: store.counts(),
            lambda store: store.overview(),
            lambda store: store.cancel(["one"]),
            lambda store: store.orders(),
            lambda store: store.order(Order(kind="pause", queue="q")),
            lambda store: store.put_schedule(Schedule(name="s", next_at=1.0)),
            lambda store: store.claim_key("k", "me", 10, tenant="default"),
            lambda store: store.add_stats([Stat(at=60.0, type="t", queue="q", started=1)]),
            lambda store: store.prune(),
            records,
        ]
        for store in (backend, other):
            for call in calls:
                with pytest.raises(StoreMoved) as caught:
                    await call(store)
                assert caught.value.address == "postgresql://new/work"
        with pytest.raises(StoreMoved):
            async with backend.import_("m2"):
                pytest.fail("it began")

    @needs("moving")
    async def test_a_store_that_has_moved_takes_its_work_back(self, backend: Backend) -> None:
        """Once, and only from the move that took it."""
        await submit(backend, item("one"))
        async with backend.export(freeze=60) as export:
            await export.move("m1", "elsewhere", "content")
        mark = await backend.mark()
        assert mark is not None
        assert (mark.to, mark.content) == ("elsewhere", "content")
        with pytest.raises(BackendError):
            await backend.take_back("m2")
        with pytest.raises(StoreMoved):
            await backend.get(["one"])
        await backend.take_back("m1")
        assert await backend.mark() is None
        assert (await state(backend, "one")).status == "ready"
        with pytest.raises(BackendError):
            await backend.take_back("m1")

    @needs("moving")
    async def test_what_was_owned_is_given_back_as_a_whole_import(
        self, subject: Subject, backend: Backend
    ) -> None:
        """Until then it was the store's own. It can be owned again, or discarded."""
        other = await model(subject)
        await submit(other, item("one"))
        await fill(backend, await records(other), "m1", "source")
        await backend.own("m1")
        async with backend.export(freeze=60) as export:
            await export.give_back("m1", "source")
        mark = await backend.mark()
        assert mark is not None
        assert (mark.state, mark.move, mark.source, mark.whole) == ("importing", "m1", "source", True)
        with pytest.raises(StoreUnfinished):
            await backend.get(["one"])
        await backend.own("m1")
        assert (await state(backend, "one")).status == "ready"
        async with backend.export() as export:
            with pytest.raises(StoreUnavailable):
                await export.give_back("m1", "source")

    @needs("moving")
    async def test_a_store_has_one_identity(self, subject: Subject, backend: Backend) -> None:
        """On each connection, and while it is frozen."""
        identity = await backend.identity()
        assert identity is not None
        assert await (await subject.another()).identity() == identity
        await submit(backend, item("one"))
        async with backend.export(freeze=60):
            assert await backend.identity() == identity

    @needs("moving")
    async def test_only_a_frozen_export_can_move_a_store(self, backend: Backend) -> None:
        """Without a freeze, the other store would not have the last changes."""
        async with backend.export() as export:
            await export.read()
            with pytest.raises(StoreUnavailable):
                await export.move("m1", "elsewhere")
        assert await backend.mark() is None
