"""Audit: changes with a note store who made them, in the same step. And workers that are asked to stop."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.errors import AlreadyEnded, InputError, NotFound, NotTriggerable, ReferencedError
from treadle.item import AuditNote, Filter, Heartbeat, Item, ItemUpdate, Rejected, Schedule, Submission
from treadle.records import KEPT_AUDIT, MOST_AUDIT_IDS, AuditEntry

from .build import dependent, die, end, item, items, near, only, pause, resume, start, state, submit
from .subject import Subject, needs

NOTE = AuditNote(actor="ann@x", reason="it was stuck", address="10.0.0.1", about="what it was about")


async def entries(backend: Backend, tenant: str | None = None) -> list[AuditEntry]:
    """Newest first."""
    return list((await backend.audits(tenant=tenant)).entries)


async def newest(backend: Backend) -> AuditEntry:
    found = await entries(backend)
    return found[0]


def brief(entry: AuditEntry) -> tuple[str, tuple[str, ...], int, str | None]:
    return entry.verb, entry.ids, entry.count, entry.tenant


async def submit_noted(backend: Backend, *new: Item, note: AuditNote = NOTE) -> Submission:
    submission = Submission(new, note=note)
    answer = only(await backend.submit([submission]))
    assert not isinstance(answer, Rejected)
    return submission


class AuditCases:
    @needs("recording")
    async def test_a_change_of_items_stores_who_made_it(self, backend: Backend) -> None:
        """With each verb, once. The count has the items that changed along. A change without a note stores
        nothing."""
        await start(backend, item("run"))
        await end(backend, item("dead"), item("dead2"), how=die)
        await submit(backend, item("a"), item("b"), item("later", delay=1000), item("x", tenant="t"))
        await backend.cancel(["a", "none"], note=NOTE)
        found = only(await entries(backend))
        assert found == AuditEntry(
            no=found.no,
            at=near(await backend.now()),
            actor="ann@x",
            verb="cancel",
            ids=("a", "none"),
            count=1,
            about="what it was about",
            reason="it was stuck",
            address="10.0.0.1",
        )
        await backend.complete("run", b"1", note=NOTE)
        assert brief(await newest(backend)) == ("complete", ("run",), 1, None)
        await backend.requeue(["dead", "b"], tenant="default", note=NOTE)
        assert brief(await newest(backend)) == ("requeue", ("dead", "b"), 1, "default")
        await backend.requeue(Filter(type="work"), note=NOTE)
        assert brief(await newest(backend)) == ("requeue", (), 1, None)
        await backend.update(["b"], ItemUpdate(priority=5), note=NOTE)
        assert brief(await newest(backend)) == ("update", ("b",), 1, None)
        await backend.trigger(["later"], note=NOTE)
        assert brief(await newest(backend)) == ("trigger", ("later",), 1, None)
        await backend.delete(["x"], tenant="t", note=NOTE)
        assert brief(await newest(backend)) == ("delete", ("x",), 1, "t")
        await backend.cancel(["a"], note=AuditNote(actor="bob", verb="give_up"))
        assert brief(await newest(backend)) == ("give_up", ("a",), 0, None)
        await backend.cancel(["b"])
        await pause(backend, "q")
        assert len(await entries(backend)) == 8

    @needs("recording")
    async def test_a_change_of_a_queue_schedule_or_worker_stores_who_made_it(self, backend: Backend) -> None:
        """The count says whether something was changed."""
        await backend.put_schedule(Schedule(name="s", next_at=1000.0, spec=b"x"))
        await backend.beat(Heartbeat(worker="w", lease=60.0))
        for _ in range(2):
            await pause(backend, "q", tenant="t", note=NOTE)
        await resume(backend, "q", tenant="t", note=NOTE)
        assert await backend.pause_schedule("s", True, note=AuditNote(actor="ann", tenant="t"))
        assert await backend.pause_schedule("s", False, note=NOTE)
        assert await backend.drop_schedule("s", note=NOTE)
        assert not await backend.drop_schedule("s", note=NOTE)
        assert await backend.drain_worker("w", note=NOTE)
        assert not await backend.drain_worker("none", note=NOTE)
        assert [brief(entry) for entry in reversed(await entries(backend))] == [
            ("pause", ("q",), 1, "t"),
            ("pause", ("q",), 0, "t"),
            ("resume", ("q",), 1, "t"),
            ("pause_schedule", ("s",), 1, "t"),
            ("resume_schedule", ("s",), 1, None),
            ("cancel_schedule", ("s",), 1, None),
            ("cancel_schedule", ("s",), 0, None),
            ("drain_worker", ("w",), 1, None),
            ("drain_worker", ("none",), 0, None),
        ]

    @needs("recording")
    async def test_a_refused_change_stores_no_entry(self, backend: Backend) -> None:
        """The entry is a part of the change: there is none without the other."""
        await end(backend, item("ended"))
        await submit(backend, item("a"), dependent("a", id="b"))
        with pytest.raises(NotFound):
            await backend.complete("none", None, note=NOTE)
        with pytest.raises(AlreadyEnded):
            await backend.complete("ended", None, note=NOTE)
        with pytest.raises(NotFound):
            await backend.update(["a", "none"], ItemUpdate(priority=1), note=NOTE)
        with pytest.raises(NotTriggerable):
            await backend.trigger(["a"], note=NOTE)
        with pytest.raises(ReferencedError):
            await backend.delete(["a"], note=NOTE)
        refused = only(await backend.submit([Submission((item("c"), item("a")), note=NOTE)]))
        assert isinstance(refused, Rejected)
        assert await entries(backend) == []

    @needs("recording")
    async def test_an_entry_has_the_first_ids_and_the_whole_count(self, backend: Backend) -> None:
        """Of a cancellation and of a submission."""
        many = [item(f"i{n}") for n in range(MOST_AUDIT_IDS + 20)]
        await submit_noted(backend, *many)
        await backend.cancel([one.id for one in many], note=NOTE)
        first = tuple(one.id for one in many[:MOST_AUDIT_IDS])
        assert [brief(entry) for entry in await entries(backend)] == [
            ("cancel", first, 120, None),
            ("enqueue", first, 120, "default"),
        ]

    @needs("recording")
    async def test_a_tenant_sees_its_own_entries(self, backend: Backend) -> None:
        """Not those of other tenants, and not those of changes in all tenants."""
        await submit_noted(backend, item("x", tenant="a"))
        await submit_noted(backend, item("x", tenant="b"))
        await submit_noted(backend, item("y", tenant="a"), item("y", tenant="b"))
        await backend.cancel(["x"], note=NOTE)
        await pause(backend, "q", tenant="a", note=NOTE)
        mine = [(entry.verb, entry.tenant) for entry in await entries(backend, tenant="a")]
        assert mine == [("pause", "a"), ("enqueue", "a")]
        assert [entry.tenant for entry in await entries(backend)] == ["a", None, None, "b", "a"]
        assert await entries(backend, tenant="none") == []

    @needs("recording")
    async def test_entries_are_read_in_pages(self, backend: Backend) -> None:
        """The portions of a bulk action are read by its id. A cursor stays valid while entries are added."""
        for n in range(5):
            await pause(backend, f"q{n}", tenant="t", note=NOTE)
            await backend.cancel([f"p{n}"], tenant="t", note=AuditNote(actor="ann", bulk="b1"))
        await backend.cancel(["p"], note=AuditNote(actor="ann", bulk="b2"))
        for tenant in (None, "t"):
            first = await backend.audits(tenant=tenant, limit=2)
            assert [only(entry.ids) for entry in first.entries] == ["q4", "q3"]
            second = await backend.audits(tenant=tenant, limit=2, cursor=first.cursor)
            third = await backend.audits(tenant=tenant, limit=2, cursor=second.cursor)
            assert [only(entry.ids) for entry in (*second.entries, *third.entries)] == ["q2", "q1", "q0"]
            assert third.cursor is None
            portions = await backend.audits(tenant=tenant, bulk="b1", limit=5)
            assert [only(entry.ids) for entry in portions.entries] == ["p4", "p3", "p2", "p1", "p0"]
            assert {entry.bulk for entry in portions.entries} == {"b1"}
            assert portions.cursor is None
        await pause(backend, "new", note=NOTE)
        again = await backend.audits(limit=2, cursor=first.cursor)
        assert again == second
        for wrong in ("", "x", "1", "a-1"):
            with pytest.raises(InputError, match="cursor"):
                await backend.audits(cursor=wrong)

    @needs("recording")
    async def test_a_tenant_reads_what_actions_of_all_tenants_did(self, backend: Backend) -> None:
        """Portions that say what was asked for are of such actions: their first entry is of no tenant."""
        await pause(backend, "q", tenant="t", note=NOTE)
        for n in range(3):
            note = AuditNote(actor="ann", bulk="b1", about="type:mail")
            for tenant in ("t", "other"):
                await backend.cancel([f"all{n}"], tenant=tenant, note=note)
            await backend.cancel([f"own{n}"], tenant="t", note=AuditNote(actor="ann", bulk="b2"))
        await pause(backend, "r", tenant="t", note=NOTE)
        first = await backend.audits(tenant="t", limit=3)
        second = await backend.audits(tenant="t", limit=3, cursor=first.cursor)
        found = [only(entry.ids) for entry in (*first.entries, *second.entries)]
        assert found == ["r", "all2", "all1", "all0", "q"]
        assert second.cursor is None
        assert [only(entry.ids) for entry in await entries(backend)] == ["r", "q"]

    @needs("recording")
    async def test_a_submission_with_a_note_stores_one_entry(self, backend: Backend) -> None:
        """Each of one call its own, if it stored or changed something. A repeated call stores none."""
        submission = await submit_noted(backend, item("a", key="k"), item("b"))
        assert brief(await newest(backend)) == ("enqueue", ("a", "b"), 2, "default")
        await backend.submit([submission])
        await submit_noted(backend, item("c", key="k"))
        assert len(await entries(backend)) == 1
        new = item("d", key="k", key_policy="replace", priority=3)
        replaced = await submit_noted(backend, new, item("e", key="k2"), item("f", key="k2"))
        assert (await state(backend, "a")).priority == 3
        assert brief(await newest(backend)) == ("enqueue", ("d", "e", "f"), 2, "default")
        await backend.submit([replaced])
        assert len(await entries(backend)) == 2
        bob = AuditNote(actor="bob", verb="trigger_schedule")
        await backend.submit(
            [
                Submission((item("p1"),)),
                Submission((item("n1"),), note=NOTE),
                Submission((item("p2"),), wait=False),
                Submission((item("n2", key="n"), item("n3")), note=bob),
                Submission((item("n1"),), note=NOTE),
            ]
        )
        assert [(entry.actor, *brief(entry)) for entry in (await entries(backend))[:-2]] == [
            ("bob", "trigger_schedule", ("n2", "n3"), 2, "default"),
            ("ann@x", "enqueue", ("n1",), 1, "default"),
        ]

    @needs("recording", "transactions")
    async def test_an_entry_is_undone_with_its_transaction(self, backend: Backend) -> None:
        """And stored with it."""

        async def submit_within(*, fails: bool) -> None:
            async with backend.transaction() as tx:
                await tx.submit([Submission((item("a"),), note=NOTE)])
                if fails:
                    raise RuntimeError("no")

        with pytest.raises(RuntimeError, match="no"):
            await submit_within(fails=True)
        assert await entries(backend) == []
        await submit_within(fails=False)
        assert brief(await newest(backend)) == ("enqueue", ("a",), 1, "default")

    @needs("recording")
    async def test_old_entries_are_pruned(self, subject: Subject) -> None:
        """The oldest first, at most as many as asked for."""
        backend = subject.backend
        for n in range(3):
            await pause(backend, f"q{n}", note=NOTE)
        await subject.advance(KEPT_AUDIT - 100)
        await pause(backend, "young", note=NOTE)
        await backend.prune()
        assert len(await entries(backend)) == 4
        await subject.advance(200)
        await backend.prune(2)
        assert [only(entry.ids) for entry in await entries(backend)] == ["young", "q2"]
        await backend.prune(2)
        assert [only(entry.ids) for entry in await entries(backend)] == ["young"]


class DrainCases:
    @needs("recording")
    async def test_a_worker_is_asked_to_stop(self, backend: Backend) -> None:
        """By the replies to its heartbeats, until it is removed. A later worker with its id is not."""
        assert not await backend.drain_worker("w")
        for worker in ("w", "other"):
            assert not (await backend.beat(Heartbeat(worker=worker, lease=60.0))).drain
        (lease,) = await start(backend, *items(1), worker="w")
        assert await backend.drain_worker("w")
        for _ in range(2):
            reply = await backend.beat(Heartbeat(worker="w", lease=60.0, held=(lease,)))
            assert (reply.drain, reply.fresh, dict(reply.lost)) == (True, False, {})
        assert not (await backend.beat(Heartbeat(worker="other", lease=60.0))).drain
        await backend.remove_worker("w")
        assert not await backend.drain_worker("w")
        reply = await backend.beat(Heartbeat(worker="w", lease=60.0))
        assert (reply.drain, reply.fresh) == (False, True)
        assert not (await backend.beat(Heartbeat(worker="w", lease=60.0))).drain
