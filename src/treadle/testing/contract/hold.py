"""Hold: items that stay, and are not handed out until they are let go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.errors import NotFound, NotHoldable, NotTriggerable
from treadle.item import NEVER, AuditNote, Filter, ItemUpdate

from .build import (
    apply,
    cancel,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    connections,
    dependent,
    die,
    doomed_lease,
    end,
    group,
    item,
    items,
    only,
    release,
    retry,
    start,
    start_one,
    state,
    status,
    submit,
    submit_one,
    succeed,
    verdicts,
)
from .check import consistent
from .steps import HOUR, awaits, recorded, send, sleep, suspended
from .subject import Subject, needs


async def hold(backend: Backend, *ids: str) -> list[str]:
    return [one.id for one in (await backend.hold(ids)).items]


async def _held(backend: Backend, *, oldest_first: bool, **where: Any) -> list[str]:
    """The ids of held items, read by small pages."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await backend.list(
            Filter(held=True, **where), limit=7, cursor=cursor, oldest_first=oldest_first
        )
        found += [one.id for one in page.items]
        cursor = page.cursor
        if cursor is None:
            return found


async def unhold(backend: Backend, *ids: str) -> list[str]:
    return [one.id for one in (await backend.hold(ids, False)).items]


class HoldCases:
    @needs("operating")
    async def test_a_held_item_is_not_handed_out(self, subject: Subject) -> None:
        """It is scheduled, due never. The answer has the items as they were."""
        backend = subject.backend
        await submit(backend, item("ready"), item("later", delay=100), item("other"))
        changed = await backend.hold(["ready", "later"])
        assert sorted((one.id, one.status, one.held) for one in changed.items) == [
            ("later", "scheduled", False),
            ("ready", "ready", False),
        ]
        for id in ("ready", "later"):
            found = await state(backend, id)
            assert (found.status, found.due_at, found.held) == ("scheduled", NEVER, True)
        assert await claim_ids(backend) == ["other"]
        await subject.advance(200)
        assert await claim_ids(backend) == []
        await consistent(backend)

    @needs("operating")
    async def test_an_item_that_is_let_go_is_due_when_it_was(self, subject: Subject) -> None:
        """To the last digit. It is ready if that has passed."""
        backend = subject.backend
        await submit(backend, item("ready"), item("later", delay=100), item("past", run_at=1.0))
        before = {id: (await state(backend, id)).due_at for id in ("ready", "later", "past")}
        await hold(backend, *before)
        assert await claim_ids(backend) == []
        assert sorted(await unhold(backend, *before)) == sorted(before)
        for id, due in before.items():
            found = await state(backend, id)
            assert (found.due_at, found.held) == (due, False)
        assert sorted(await claim_ids(backend)) == ["past", "ready"]
        assert 90 < ((await claim_answer(backend)).next_due or 0) <= 100
        await subject.advance(110)
        assert await claim_ids(backend) == ["later"]
        await consistent(backend)

    @needs("operating")
    async def test_what_became_due_while_it_was_held_is_ready_when_it_is_let_go(
        self, subject: Subject
    ) -> None:
        """At the end of its line."""
        backend = subject.backend
        await submit(backend, item("a"), item("b", delay=50))
        await hold(backend, "a", "b")
        await subject.advance(60)
        await submit(backend, item("c"))
        await unhold(backend, "b", "a")
        assert [await status(backend, id) for id in "abc"] == ["ready"] * 3
        assert await claim_ids(backend) == ["c", "b", "a"]
        await consistent(backend)

    @needs("operating")
    async def test_an_item_with_attempts_is_held(self, subject: Subject) -> None:
        """Between its attempts, which count as before. Its history stays."""
        backend = subject.backend
        again, back, _ = await start(backend, item("again"), item("back"), item("lost"))
        await apply(backend, retry(again, 50), release(back))
        await backend.remove_worker("w")
        assert len(await hold(backend, "again", "back", "lost")) == 3
        await subject.advance(100)
        assert await claim_ids(backend, worker="heir") == []
        found = await state(backend, "again")
        assert (found.held, found.attempt, found.failures, len(found.history)) == (True, 1, 1, 1)
        assert (await state(backend, "lost")).losses == 1
        await unhold(backend, "again", "back", "lost")
        attempts = {one.id: one.attempt for one in await claim(backend, worker="heir")}
        assert attempts == {"again": 2, "back": 1, "lost": 2}
        await consistent(backend)

    @needs("operating", "parking")
    async def test_a_parked_item_is_held(self, backend: Backend) -> None:
        """A worker that has its type does not find it."""
        await submit(backend, item("a", "strange"))
        assert await claim(backend, types={"work": 10}) == []
        await hold(backend, "a")
        assert await claim(backend, worker="w2", types={"strange": 1}) == []
        await unhold(backend, "a")
        assert (await claim_one(backend, worker="w2", types={"strange": 1})).id == "a"
        await consistent(backend)

    @needs("operating")
    @pytest.mark.parametrize("which", ["blocked", "running", "success", "dead", "cancelled"])
    async def test_no_item_is_held_if_one_cannot_be(self, backend: Backend, which: str) -> None:
        """`NotHoldable` names its status. To let it go changes nothing: it is not held."""
        await submit(backend, item("a", delay=1000))
        await start(backend, item("running"))
        await end(backend, item("success"))
        await end(backend, item("dead"), how=die)
        await end(backend, item("cancelled"), how=cancel)
        await submit(backend, dependent("x", id="blocked"))
        with pytest.raises(NotHoldable) as refusal:
            await backend.hold(["a", which])
        assert (refusal.value.id, refusal.value.status) == (which, which)
        assert not (await state(backend, "a")).held
        assert await unhold(backend, "a", which) == []
        assert await status(backend, which) == which
        await consistent(backend)

    @needs("operating")
    @pytest.mark.parametrize("held", [True, False])
    async def test_no_item_is_held_or_let_go_if_one_is_missing(self, backend: Backend, held: bool) -> None:
        """`NotFound`."""
        await submit(backend, item("a"))
        await backend.hold(["a"], not held)
        with pytest.raises(NotFound):
            await backend.hold(["a", "missing"], held)
        assert (await state(backend, "a")).held != held

    @needs("operating")
    async def test_what_is_held_already_is_left_as_it_is(self, backend: Backend) -> None:
        """It is not in the answer. No ids, and repeated ids, are accepted."""
        assert await hold(backend) == []
        await submit(backend, item("a"), item("b"))
        due = (await state(backend, "a")).due_at
        assert await hold(backend, "a", "a") == ["a"]
        assert await hold(backend, "a", "b") == ["b"]
        assert await unhold(backend, "a", "a") == ["a"]
        assert await unhold(backend, "a", "b") == ["b"]
        assert (await state(backend, "a")).due_at == due
        await consistent(backend)

    @needs("operating")
    async def test_the_wrong_tenant_holds_nothing(self, backend: Backend) -> None:
        """An item of another tenant looks as if it did not exist."""
        await submit(backend, item("a", tenant="y"))
        for held in (True, False):
            with pytest.raises(NotFound):
                await backend.hold(["a"], held, tenant="x")
        assert await claim_ids(backend) == ["a"]

    @needs("operating", "recording")
    async def test_an_audit_entry_says_who_holds_it(self, backend: Backend) -> None:
        """Also who lets it go."""
        await submit(backend, item("a"))
        await backend.hold(["a"], note=AuditNote(actor="ann", reason="poison"))
        await backend.hold(["a"], False, note=AuditNote(actor="bob"))
        entries = (await backend.audits()).entries
        assert [(one.verb, one.actor, one.reason, one.ids, one.count) for one in entries] == [
            ("unhold", "bob", "", ("a",), 1),
            ("hold", "ann", "poison", ("a",), 1),
        ]

    @needs("operating", "listing")
    async def test_held_items_are_listed(self, backend: Backend) -> None:
        """By themselves, and with other conditions. Those that have ended are not among them."""
        await submit(backend, item("a", key="k"), item("b", delay=100), item("c"), item("d", delay=100))
        await hold(backend, "a", "b", "d")
        await backend.cancel(["d"])

        async def listed(**where: Any) -> list[str]:
            return sorted(one.id for one in (await backend.list(Filter(held=True, **where))).items)

        assert await listed() == ["a", "b"]
        assert await listed(key="k") == ["a"]
        assert await listed(group_id="b") == ["b"]
        assert await listed(status=("ready", "dead")) == []
        assert await listed(type="other") == []
        await unhold(backend, "a")
        assert await listed(status=("scheduled", "ready")) == ["b"]

    @needs("operating", "listing")
    async def test_held_items_of_many_queues_are_listed_in_order(self, backend: Backend) -> None:
        """That of submission, by pages and from both ends: when they are due does not count. What only waits
        is not among them, also if it is due very late."""
        ids = [f"h{n:02}" for n in range(40)]
        await submit(
            backend,
            *(
                item(id, tenant=f"t{n % 3}", queue=f"q{n % 4}", delay=(40 - n) * 1000.0 * (n % 5))
                for n, id in enumerate(ids)
            ),
            *(item(f"late{n}", tenant=f"t{n}", queue="q1", delay=1e8 + n) for n in range(4)),
        )
        for n in range(3):
            await backend.hold([f"late{n}"], tenant=f"t{n}")
            await backend.hold(ids[n::3], tenant=f"t{n}")
            await backend.hold([f"late{n}"], False, tenant=f"t{n}")
        assert await _held(backend, oldest_first=True) == ids
        assert await _held(backend, oldest_first=False) == ids[::-1]
        assert await _held(backend, oldest_first=False, tenant="t1") == ids[1::3][::-1]
        assert await _held(backend, oldest_first=True, queue="q2", tenant="t0") == ids[6::12]
        await backend.hold(ids[::3], False, tenant="t0")
        assert await _held(backend, oldest_first=True) == [id for n, id in enumerate(ids) if n % 3]

    @needs("operating")
    async def test_many_hold_and_let_go_at_once(self, subject: Subject) -> None:
        """Each change is counted once."""
        backends = await connections(subject, 4)
        ids = [one.id for one in await submit(backends[0], *items(20))]
        for held in (True, False):
            answers = await asyncio.gather(*(each.hold(ids, held) for each in backends))
            assert sum(len(one.items) for one in answers) == 20
        assert len(await claim_ids(backends[0])) == 20
        await consistent(backends[0])


class HeldItemCases:
    """What other verbs do with held items."""

    @needs("operating")
    async def test_a_held_item_cannot_be_triggered(self, backend: Backend) -> None:
        """`NotTriggerable` says so."""
        await submit(backend, item("a", delay=100))
        await hold(backend, "a")
        with pytest.raises(NotTriggerable, match="item 'a' is held: unhold it first"):
            await backend.trigger(["a"])
        assert (await state(backend, "a")).held
        await submit(backend, item("c"))
        await hold(backend, "c")
        await backend.cancel(["c"])
        with pytest.raises(NotTriggerable, match="item 'c' is cancelled"):
            await backend.trigger(["c"])

    @needs("operating", "updates")
    async def test_a_held_item_is_updated(self, subject: Subject) -> None:
        """It stays held. A new instant is kept until it is let go."""
        backend = subject.backend
        await submit(backend, item("a"), item("b", delay=100))
        await hold(backend, "a", "b")
        later = await backend.now() + 200
        await backend.update(["a"], ItemUpdate(run_at=later))
        await backend.update(["b"], ItemUpdate(queue="q", priority=3))
        await backend.update(["b"], ItemUpdate(run_at=1.0))
        found = await state(backend, "b")
        assert (found.held, found.queue, found.priority, found.due_at) == (True, "q", 3, NEVER)
        assert await claim_ids(backend) == []
        await unhold(backend, "a", "b")
        assert (await state(backend, "a")).due_at == later
        assert (await claim_one(backend)).id == "b"
        await subject.advance(210)
        assert (await claim_one(backend)).id == "a"
        await consistent(backend)

    @needs("operating")
    async def test_a_held_item_keeps_its_key(self, backend: Backend) -> None:
        """A later item with the key is answered with it."""
        await submit(backend, item("a", key="k"))
        await hold(backend, "a")
        answer = await submit_one(backend, item("b", key="k"))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "scheduled")

    @needs("operating", "updates")
    @pytest.mark.parametrize("policy", ["replace", "debounce"])
    async def test_a_held_item_takes_over_what_a_new_one_has(self, subject: Subject, policy: str) -> None:
        """It stays held, and is due as the new one says when it is let go."""
        backend = subject.backend
        await submit(backend, item("a", key="k"))
        await hold(backend, "a")
        new = item("b", key="k", input=b"new", delay=50, key_policy=policy)
        before = await backend.now()
        assert (await submit_one(backend, new)).id == "a"
        after = await backend.now()
        found = await state(backend, "a")
        assert (found.input, found.held, found.due_at) == (b"new", True, NEVER)
        await unhold(backend, "a")
        assert before + 49 <= (await state(backend, "a")).due_at <= after + 51
        await subject.advance(60)
        assert (await claim_one(backend)).input == b"new"
        await consistent(backend)

    @needs("operating")
    async def test_a_held_item_is_cancelled_and_requeued(self, subject: Subject) -> None:
        """It ends as any other, and shows when it was due. A requeued item is not held."""
        backend = subject.backend
        await submit(backend, item("a", delay=100))
        due = (await state(backend, "a")).due_at
        await hold(backend, "a")
        changed = await backend.cancel(["a"])
        assert [(one.held, one.due_at) for one in changed.items] == [(True, NEVER)]
        found = await state(backend, "a")
        assert (found.status, found.held, found.due_at) == ("cancelled", False, due)
        await backend.requeue(["a"], cancelled=True)
        assert await claim_ids(backend) == ["a"]
        await consistent(backend)

    @needs("operating")
    async def test_a_held_item_is_not_requeued(self, backend: Backend) -> None:
        """Only dead items are. A dead item that was requeued can be held."""
        await submit(backend, item("a"))
        await hold(backend, "a")
        assert (await backend.requeue(["a"])).items == ()
        assert (await state(backend, "a")).held
        await end(backend, item("b"), how=die)
        await backend.requeue(["b"])
        assert await hold(backend, "b") == ["b"]
        assert await claim_ids(backend) == []
        await consistent(backend)

    @needs("operating")
    async def test_a_held_item_holds_its_group_open(self, backend: Backend) -> None:
        """It blocks its dependents too. Its completion ends both."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, item("a"), dependent("a", id="b")))
        await hold(backend, "a")
        assert await claim_ids(backend) == []
        assert (await group(backend, "root")).open == 2
        assert await status(backend, "b") == "blocked"
        await backend.complete("a", b"done")
        await apply(backend, succeed(await claim_one(backend)))
        assert (await group(backend, "root")).open == 0
        await consistent(backend)

    @needs("operating")
    async def test_a_held_item_is_deleted(self, backend: Backend) -> None:
        """With its group."""
        await submit(backend, item("a", key="k"))
        await hold(backend, "a")
        assert [one.held for one in (await backend.delete(["a"])).items] == [True]
        assert not (await submit_one(backend, item("b", key="k"))).existing
        await consistent(backend)

    @needs("operating")
    async def test_a_deadline_dooms_a_held_item(self, subject: Subject) -> None:
        """It dies expired. Doomed, it cannot be held, and is not let go."""
        backend = subject.backend
        await submit(backend, item("a", expires_in=60.0))
        due = (await state(backend, "a")).due_at
        await hold(backend, "a")
        await subject.advance(61)
        lease = await doomed_lease(backend)
        assert (lease.id, lease.verdict) == ("a", "expired")
        assert "listing" not in backend.capabilities or not (await backend.list(Filter(held=True))).items
        with pytest.raises(NotHoldable):
            await backend.hold(["a"])
        assert await unhold(backend, "a") == []
        await apply(backend, die(lease, reason="expired"))
        found = await state(backend, "a")
        assert (found.reason, found.held, found.due_at) == ("expired", False, due)
        await consistent(backend)

    @needs("operating", "strict")
    async def test_a_held_item_holds_its_strict_lane(self, backend: Backend) -> None:
        """Nothing passes it. It goes first when it is let go."""
        strict = frozenset(("work",))
        await submit(backend, item("a", lane="l"), item("b", lane="l"))
        await apply(backend, retry(await claim_one(backend, strict=strict)))
        await hold(backend, "a")
        assert await claim_ids(backend, strict=strict) == []
        await unhold(backend, "a")
        assert await claim_ids(backend, strict=strict) == ["a"]
        await consistent(backend)

    @needs("operating", "steps")
    async def test_a_signal_ends_the_wait_of_a_held_item(self, backend: Backend) -> None:
        """It stays held, and goes on when it is let go."""
        await suspended(backend, awaits())
        await hold(backend, "a")
        found = await state(backend, "a")
        assert (found.held, found.suspended) == (True, True)
        answer = await send(backend)
        assert (answer.verb, answer.status, answer.woken) == ("stored", "scheduled", None)
        assert await claim_ids(backend) == []
        assert only((await recorded(backend)).steps).over
        await unhold(backend, "a")
        lease = await claim_one(backend)
        assert (lease.id, lease.resumes) == ("a", True)
        await consistent(backend)

    @needs("operating", "steps")
    async def test_a_held_item_that_waits_goes_on_waiting(self, backend: Backend) -> None:
        """Without its signal it is suspended as before."""
        await suspended(backend, awaits())
        await hold(backend, "a")
        await unhold(backend, "a")
        found = await state(backend, "a")
        assert (found.status, found.due_at, found.suspended) == ("scheduled", NEVER, True)
        await send(backend)
        await apply(backend, succeed(await claim_one(backend)))

    @needs("operating", "steps")
    async def test_a_sleep_ends_while_an_item_is_held(self, subject: Subject) -> None:
        """It is ready when it is let go."""
        backend = subject.backend
        await suspended(backend, sleep())
        await hold(backend, "a")
        with pytest.raises(NotTriggerable):
            await backend.trigger(["a"])
        await subject.advance(HOUR + 1)
        assert await verdicts(backend) == {}
        assert await claim_ids(backend) == []
        await unhold(backend, "a")
        assert (await claim_one(backend)).resumes
        await consistent(backend)
