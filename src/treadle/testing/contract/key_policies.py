"""Key policies: what a submit does to the earlier item that has its key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from treadle.backend import Backend
from treadle.item import Claim, Demand, Fire, Item, ItemState, Rejected, Schedule, Submission

from .build import (
    apply,
    beat,
    claim,
    claim_ids,
    claim_one,
    connections,
    defer,
    dependent,
    doomed_lease,
    end,
    exists,
    item,
    near,
    release,
    retry,
    settle_one,
    start_one,
    state,
    submit,
    submit_each,
    submit_one,
    submit_refused,
    succeed,
    verdicts,
)
from .check import consistent
from .subject import Subject, needs

CHANGED: dict[str, Any] = {
    "input": b"new",
    "options": b"{}",
    "attempts": 7,
    "priority": 3,
    "lane": "l",
    "queue": "other",
    "keep": 5.0,
    "keep_dead": 6.0,
}


def first(id: str = "a", **fields: Any) -> Item:
    return item(id, key="k", **fields)


def replacing(id: str, **fields: Any) -> Item:
    return item(id, key="k", key_policy="replace", **fields)


def refusing(id: str, **fields: Any) -> Item:
    return item(id, key="k", key_policy="error", **fields)


def taken_over(found: ItemState) -> tuple[Any, ...]:
    return found.input, found.options, found.attempts, found.priority, found.lane, found.queue


NEW = (b"new", b"{}", 7, 3, "l", "other")


class KeyErrorCases:
    @needs("updates")
    async def test_a_key_that_is_free_is_taken(self, backend: Backend) -> None:
        """The policy matters only if an earlier item answers."""
        for policy in ("existing", "replace", "debounce", "error"):
            answer = await submit_one(backend, item(key=policy, key_policy=policy))
            assert (answer.existing, answer.status) == (False, "ready")
        await consistent(backend)

    @needs("updates")
    async def test_an_earlier_item_refuses_the_submission(self, backend: Backend) -> None:
        """`duplicate_key` names the earlier item and the key. Nothing of the submission is stored."""
        await submit(backend, first())
        before = await state(backend, "a")
        answer = await submit_refused(backend, item("x"), refusing("b", input=b"new"))
        assert (answer.why, answer.ids, answer.keys) == ("duplicate_key", ("a",), ("k",))
        assert not await exists(backend, "x")
        assert not await exists(backend, "b")
        assert await state(backend, "a") == before
        await consistent(backend)

    @needs("updates")
    async def test_an_earlier_item_of_the_same_submission_refuses_it(self, backend: Backend) -> None:
        """The submission would store both or none, so it stores none."""
        answer = await submit_refused(backend, refusing("a"), refusing("b"))
        assert (answer.why, answer.ids, answer.keys) == ("duplicate_key", ("a",), ("k",))
        assert not await exists(backend, "a")

    @needs("updates")
    async def test_only_the_refused_submission_of_a_call_is_left_out(self, backend: Backend) -> None:
        """Each submission is answered for itself."""
        answers = await submit_each(backend, refusing("a"), item("x"), refusing("b"), item("y"))
        refused = [answer for answer in answers if isinstance(answer, Rejected)]
        assert [(one.why, one.ids) for one in refused] == [("duplicate_key", ("a",))]
        assert await claim_ids(backend) == ["a", "x", "y"]

    @needs("updates")
    async def test_the_scope_decides_whether_an_earlier_item_refuses(self, backend: Backend) -> None:
        """An ended item has the key only for scope `any`."""
        await end(backend, first())
        assert (await submit_refused(backend, refusing("b", key_scope="any"))).ids == ("a",)
        assert not (await submit_one(backend, refusing("c"))).existing

    @needs("updates")
    async def test_a_child_with_a_key_that_is_taken_refuses_the_settlement(self, backend: Backend) -> None:
        """Nothing of the settlement is applied: the item can be settled in another way."""
        await submit(backend, first(delay=100))
        lease = await start_one(backend, item("root"))
        outcome = await settle_one(backend, succeed(lease, item("x"), refusing("b")))
        assert outcome.verb == "rejected"
        assert outcome.rejected is not None
        assert (outcome.rejected.why, outcome.rejected.ids) == ("duplicate_key", ("a",))
        assert not await exists(backend, "x")
        await apply(backend, succeed(lease))
        await consistent(backend)

    @needs("updates")
    async def test_fifty_concurrent_submits_store_one_item(self, subject: Subject) -> None:
        """One is stored. The others are refused, and all name it."""
        backends = await connections(subject, 5)
        answers = await asyncio.gather(
            *(backends[n % 5].submit([Submission((refusing(f"i{n}"),))]) for n in range(50))
        )
        refused = [one for (one,) in answers if isinstance(one, Rejected)]
        (stored,) = [one[0].id for (one,) in answers if not isinstance(one, Rejected)]
        assert {(one.why, one.ids) for one in refused} == {("duplicate_key", (stored,))}
        assert len(refused) == 49
        assert await claim_ids(subject.backend) == [stored]
        await consistent(subject.backend)


class KeyReplaceCases:
    @needs("updates")
    @pytest.mark.parametrize(
        "waiting", [{}, {"delay": 100.0}, {"after": ("x",), "need": 1}], ids=["ready", "scheduled", "blocked"]
    )
    async def test_an_item_that_waits_takes_over_the_newest_data(
        self, backend: Backend, waiting: Any
    ) -> None:
        """It keeps its id, group, parent, workflow, key and `after`, and when it was submitted."""
        await submit(backend, first(workflow="w", **waiting))
        before = await state(backend, "a")
        answer = await submit_one(backend, replacing("b", workflow="v", expires_in=50, **CHANGED))
        assert (answer.id, answer.existing, answer.group_id) == ("a", True, "a")
        found = await state(backend, "a")
        assert taken_over(found) == NEW
        assert found.deadline == near(await backend.now() + 50)
        kept = ("id", "group_id", "parent", "workflow", "key", "after", "queued_at", "attempt")
        assert [getattr(found, name) for name in kept] == [getattr(before, name) for name in kept]
        assert found.status == answer.status == ("blocked" if "after" in waiting else "ready")
        assert not await exists(backend, "b")
        await consistent(backend)

    @needs("updates")
    async def test_the_handler_gets_the_newest_data(self, backend: Backend) -> None:
        """A claim of the new queue hands it out, with the new input and options."""
        await submit(backend, first())
        await submit(backend, replacing("b", **CHANGED))
        assert await claim(backend, queues=("default",)) == []
        lease = await claim_one(backend, queues=("other",))
        assert (lease.id, lease.input, lease.options, lease.attempts) == ("a", b"new", b"{}", 7)
        assert (lease.queue, lease.lane, lease.priority) == ("other", "l", 3)
        await apply(backend, succeed(lease))
        await consistent(backend)

    @needs("updates", "order")
    async def test_it_goes_to_the_end_of_its_line(self, backend: Backend) -> None:
        """As if it had been submitted now."""
        await submit(backend, first(), item("x"))
        await submit(backend, replacing("b"))
        await submit(backend, item("y"))
        assert await claim_ids(backend) == ["x", "a", "y"]

    @needs("updates")
    async def test_its_delay_counts_from_its_own_submission(self, subject: Subject) -> None:
        """However often it is replaced, it is not put off."""
        await submit(subject.backend, first(delay=100))
        due = (await state(subject.backend, "a")).due_at
        await subject.advance(60)
        await submit(subject.backend, replacing("b", delay=100))
        assert (await state(subject.backend, "a")).due_at == near(due)
        await subject.advance(60)
        answer = await submit_one(subject.backend, replacing("c", delay=110))
        assert answer.status == "ready"
        await consistent(subject.backend)

    @needs("updates")
    async def test_run_at_is_taken_as_it_is(self, backend: Backend) -> None:
        """An instant counts from nothing."""
        await submit(backend, first())
        answer = await submit_one(backend, replacing("b", run_at=(await backend.now()) + 500))
        assert answer.status == "scheduled"
        assert (await state(backend, "a")).due_at == near(await backend.now() + 500)
        assert await claim(backend) == []

    @needs("updates")
    async def test_a_deadline_that_the_new_item_lacks_is_removed(self, subject: Subject) -> None:
        """Options that are not given are those of a new item."""
        await submit(subject.backend, first(expires_in=50))
        await submit(subject.backend, replacing("b"))
        assert (await state(subject.backend, "a")).deadline is None
        await subject.advance(60)
        assert (await claim_one(subject.backend)).id == "a"

    @needs("updates")
    async def test_a_deadline_may_be_replaced_by_the_same_instant(self, subject: Subject) -> None:
        """It is the deadline once more, also if another item expires before."""
        backend = subject.backend
        deadline = (await backend.now()) + 50
        await submit(backend, item("other", deadline=deadline - 10), first(deadline=deadline))
        await submit(backend, replacing("b", deadline=deadline))
        assert (await state(backend, "a")).deadline == near(deadline)
        await subject.advance(60)
        assert await verdicts(backend) == {"other": "expired", "a": "expired"}

    @needs("updates")
    async def test_a_running_item_is_not_changed(self, backend: Backend) -> None:
        """It has started: the earlier item is returned, and that is all."""
        lease = await start_one(backend, first())
        before = await state(backend, "a")
        answer = await submit_one(backend, replacing("b", **CHANGED))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "running")
        assert await state(backend, "a") == before
        await apply(backend, succeed(lease))
        await consistent(backend)

    @needs("updates")
    async def test_an_item_that_is_tried_again_is_not_changed(self, backend: Backend) -> None:
        """An attempt of it has begun."""
        await apply(backend, retry(await start_one(backend, first())))
        before = await state(backend, "a")
        await submit(backend, replacing("b", **CHANGED))
        assert await state(backend, "a") == before
        await consistent(backend)

    @needs("updates")
    @pytest.mark.parametrize("how", [defer, release])
    async def test_an_attempt_that_was_given_back_does_not_count(self, backend: Backend, how: Any) -> None:
        """The item has no attempt, so it is changed."""
        await apply(backend, how(await start_one(backend, first())))
        await submit(backend, replacing("b", **CHANGED))
        assert taken_over(await state(backend, "a")) == NEW
        await consistent(backend)

    @needs("updates")
    async def test_a_doomed_item_is_not_changed(self, backend: Backend) -> None:
        """It can only end."""
        await submit(backend, first(after=("x",), need=2))
        before = await state(backend, "a")
        await submit(backend, replacing("b", **CHANGED))
        assert await state(backend, "a") == before
        assert (await doomed_lease(backend)).id == "a"

    @needs("updates")
    async def test_an_ended_item_is_not_changed(self, backend: Backend) -> None:
        """With scope `any` it answers, as it is."""
        await end(backend, first())
        before = await state(backend, "a")
        answer = await submit_one(backend, replacing("b", key_scope="any", **CHANGED))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "success")
        assert await state(backend, "a") == before

    @needs("updates", "operating")
    async def test_a_requeued_item_is_changed(self, backend: Backend) -> None:
        """It begins anew."""
        lease = await start_one(backend, first())
        await apply(backend, replace(retry(lease), kind="dead"))
        await backend.requeue(["a"])
        await submit(backend, replacing("b", **CHANGED))
        assert taken_over(await state(backend, "a")) == NEW
        await consistent(backend)

    @needs("updates")
    async def test_the_last_item_of_a_submission_counts(self, backend: Backend) -> None:
        """Also if the earlier item is part of the same submission. It is not leased at once then."""
        await beat(backend)
        answers = await submit(
            backend,
            replacing("a", lease_to="w"),
            item("x"),
            replacing("b", input=b"2", delay=100),
            replacing("c", input=b"3"),
        )
        assert [(one.id, one.existing, one.status) for one in answers] == [
            ("a", False, "ready"),
            ("x", False, "ready"),
            ("a", True, "ready"),
            ("a", True, "ready"),
        ]
        assert [(lease.id, lease.input) for lease in await claim(backend)] == [("x", b"input"), ("a", b"3")]
        await consistent(backend)

    @needs("updates")
    async def test_a_refused_submission_changes_nothing(self, backend: Backend) -> None:
        """The earlier item stays as it was."""
        await submit(backend, first(), item("taken"))
        before = await state(backend, "a")
        await submit_refused(backend, replacing("b", **CHANGED), item("taken"))
        assert await state(backend, "a") == before

    @needs("updates")
    async def test_a_child_changes_the_earlier_item(self, backend: Backend) -> None:
        """In the same step that settles its parent. The earlier item does not join the group."""
        await submit(backend, first(delay=100))
        lease = await start_one(backend, item("root"))
        outcome = await settle_one(
            backend, succeed(lease, replacing("b", **CHANGED), dependent("b", id="next"))
        )
        assert (outcome.verb, outcome.existing) == ("applied", {"b": "a"})
        found = await state(backend, "a")
        assert (taken_over(found), found.group_id, found.parent) == (NEW, "a", None)
        assert (await state(backend, "next")).after == ("a",)
        await consistent(backend)

    @needs("updates", "schedules")
    async def test_an_occurrence_changes_the_earlier_item(self, backend: Backend) -> None:
        """A schedule submits like everybody else."""
        at = (await backend.now()) - 1
        await backend.put_schedule(Schedule(name="s", spec=b"x", next_at=at))
        await submit(backend, first(delay=100))
        answer = await backend.fire(Fire(name="s", at=at, next_at=None, items=(replacing("b", **CHANGED),)))
        assert isinstance(answer, tuple)
        assert (answer[0].id, answer[0].existing) == ("a", True)
        assert taken_over(await state(backend, "a")) == NEW

    @needs("updates")
    async def test_a_repeated_submit_changes_nothing(self, backend: Backend) -> None:
        """Its answer was lost, and another submit came between. The newest one wins."""
        await submit(backend, first(delay=100))
        await submit(backend, replacing("b", input=b"old", delay=100))
        await submit(backend, replacing("c", input=b"new", delay=100))
        before = await state(backend, "a")
        answer = await submit_one(backend, replacing("b", input=b"old", delay=100))
        assert (answer.id, answer.existing) == ("a", True)
        assert await state(backend, "a") == before

    @needs("updates")
    async def test_a_repeated_submit_of_the_earlier_item_changes_nothing(self, backend: Backend) -> None:
        """The item that it stored has been changed since."""
        await submit(backend, replacing("a", input=b"old"))
        await submit(backend, replacing("b", input=b"new"))
        answer = await submit_one(backend, replacing("a", input=b"old"))
        assert answer.id == "a"
        assert (await state(backend, "a")).input == b"new"

    @needs("updates")
    async def test_fifty_concurrent_submits_leave_the_data_of_one(self, subject: Subject) -> None:
        """It has the data of one of them, all of it."""
        backends = await connections(subject, 5)

        def one(n: int) -> Item:
            return replacing(f"i{n}", input=str(n).encode(), priority=n, lane=f"l{n}", queue=f"q{n % 3}")

        answers = await asyncio.gather(*(submit_one(backends[n % 5], one(n)) for n in range(50)))
        assert sum(not answer.existing for answer in answers) == 1
        assert len({answer.id for answer in answers}) == 1
        lease = await claim_one(subject.backend)
        n = int(lease.input)
        assert (lease.id, lease.priority, lease.lane) == (answers[0].id, n, f"l{n}")
        assert lease.queue == f"q{n % 3}"
        await apply(subject.backend, succeed(lease))
        await consistent(subject.backend)

    @needs("updates")
    async def test_a_submit_races_with_a_claim(self, subject: Subject) -> None:
        """Either the item was changed before it started, and the handler gets the new data, or it was not
        changed at all."""
        backends = await connections(subject, 2)
        await beat(subject.backend)

        async def race(n: int) -> None:
            await submit(subject.backend, item(f"a{n}", key=f"k{n}", input=b"old"))
            new = item(f"b{n}", key=f"k{n}", key_policy="replace", input=b"new", lane="new")
            claimed: Claim
            _, claimed = await asyncio.gather(
                submit_one(backends[0], new), backends[1].claim(Demand(worker="w", limit=10))
            )
            leases = claimed.leases or tuple(await claim(subject.backend))
            (lease,) = leases
            found = await state(subject.backend, f"a{n}")
            assert (lease.input, lease.lane) in ((b"old", ""), (b"new", "new"))
            assert (found.input, found.lane) == (lease.input, lease.lane)
            await apply(subject.backend, succeed(lease))

        for n in range(60):
            await race(n)
        await consistent(subject.backend)
