"""Submitting: which state an item is stored in, what comes back, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Rejected, Submission

from .build import (
    ask,
    claim,
    claim_ids,
    claim_one,
    end,
    exists,
    gate,
    group,
    item,
    items,
    near,
    only,
    refused,
    settle_one,
    start_one,
    state,
    status,
    submit,
    submit_each,
    submit_one,
    succeed,
)
from .check import consistent
from .subject import Subject, needs

FIELDS: dict[str, Any] = {
    "tenant": "acme",
    "queue": "bulk",
    "lane": "left",
    "priority": 7,
    "attempts": 5,
    "parent": "somebody",
    "workflow": "order-1",
    "workflow_type": "order",
    "options": b"\x00options\xff",
}


class SubmitCases:
    async def test_an_item_that_waits_for_nothing_is_ready(self, backend: Backend) -> None:
        """Nothing to wait for: stored `ready`, root of its own group, not leased."""
        answer = await submit_one(backend, item("a"))
        assert (answer.id, answer.status, answer.existing) == ("a", "ready", False)
        assert (answer.lease, answer.group_id) == (None, "a")
        assert (await state(backend, "a")).attempt == 0
        await consistent(backend)

    async def test_what_was_submitted_can_be_read(self, backend: Backend) -> None:
        """`get` shows every field as it was submitted."""
        await submit(backend, item("a", "mail", input=b"\x00in\xff", key="k", **FIELDS))
        found = await state(backend, "a")
        assert (found.id, found.type, found.input, found.key) == ("a", "mail", b"\x00in\xff", "k")
        assert {name: getattr(found, name) for name in FIELDS} == FIELDS
        assert (found.group_id, found.status, found.result) == ("a", "ready", None)
        assert (found.started_at, found.ended_at, found.worker) == (None, None, None)

    async def test_a_lease_shows_what_was_submitted(self, backend: Backend) -> None:
        """A lease carries the item as its handler will see it."""
        await submit(backend, item("a", "mail", input=b"\x00in\xff", **FIELDS))
        lease = await claim_one(backend)
        assert (lease.id, lease.type, lease.input, lease.attempt) == ("a", "mail", b"\x00in\xff", 1)
        assert {name: getattr(lease, name) for name in FIELDS} == FIELDS
        assert (lease.group_id, lease.verdict, lease.after) == ("a", None, ())

    async def test_queued_at_is_an_instant_of_the_store(self, subject: Subject) -> None:
        """Instants are epoch seconds by the store's clock."""
        await subject.advance(5_000)
        await submit(subject.backend, item("a"))
        found = await state(subject.backend, "a")
        now = await subject.backend.now()
        assert (found.queued_at, found.due_at) == (near(now), near(now))

    async def test_answers_come_in_order(self, backend: Backend) -> None:
        """Answers per submission, in order; within one, per item, in order."""
        answers = await backend.submit([Submission((item("b"), item("a"))), Submission((item("c"),))])
        accepted = [answer for answer in answers if not isinstance(answer, Rejected)]
        assert [[one.id for one in answer] for answer in accepted] == [["b", "a"], ["c"]]

    async def test_each_item_of_a_submission_is_the_root_of_its_own_group(self, backend: Backend) -> None:
        """Items that are stored together do not share a group."""
        answers = await submit(backend, item("a"), item("b"))
        assert [answer.group_id for answer in answers] == ["a", "b"]
        assert (await group(backend, "a")).open == (await group(backend, "b")).open == 1

    async def test_nothing_to_submit_is_fine(self, backend: Backend) -> None:
        """No submissions, no answers; a submission of nothing is accepted."""
        assert list(await backend.submit([])) == []
        assert list(await backend.submit([Submission(())])) == [()]

    async def test_many_items_in_one_submission(self, backend: Backend) -> None:
        """A submission may hold a thousand items."""
        new = items(1000)
        assert [one.id for one in await submit(backend, *new)] == [one.id for one in new]
        assert len(await claim(backend, 1000)) == 1000
        await consistent(backend)

    async def test_bytes_are_kept_as_they_are(self, backend: Backend) -> None:
        """Storage never looks into inputs and options: any bytes, also none, also many."""
        inputs = {"empty": b"", "nul": b"\x00", "any": bytes(range(256)), "large": b"\xfe" * 1_000_000}
        await submit(backend, *(item(name, input=data, options=data) for name, data in inputs.items()))
        leases = await claim(backend)
        assert {lease.id: lease.input for lease in leases} == inputs
        assert {lease.id: lease.options for lease in leases} == inputs

    async def test_names_are_any_text_of_255_bytes(self, backend: Backend) -> None:
        """Names are 1 to 255 UTF-8 bytes, without control characters, and otherwise opaque."""
        names = ["ü" * 127 + "x", "🜂" * 63, "a'b\"; drop table item; --", "%_*?[]{}\\", " ", "NULL", "0"]
        for name in names:
            labels: dict[str, Any] = dict.fromkeys(
                ("tenant", "queue", "lane", "workflow", "workflow_type", "key"), name
            )
            await submit(backend, item(name, name, **labels))
        found = [await state(backend, name, tenant=name) for name in names]
        assert [(one.id, one.type, one.queue, one.lane, one.key) for one in found] == [
            (name,) * 5 for name in names
        ]
        assert sorted(await claim_ids(backend)) == sorted(names)

    @needs("order")
    async def test_the_whole_range_of_priorities(self, backend: Backend) -> None:
        """A priority fits in 32 bits, signed."""
        low, high = -(2**31), 2**31 - 1
        await submit(backend, item("low", priority=low), item("zero"), item("high", priority=high))
        leases = await claim(backend)
        assert [(lease.id, lease.priority) for lease in leases] == [("high", high), ("zero", 0), ("low", low)]

    async def test_a_budget_without_limit(self, backend: Backend) -> None:
        """`attempts=None` is kept as such."""
        await submit(backend, item("a", attempts=None))
        assert (await state(backend, "a")).attempts is None
        assert (await claim_one(backend)).attempts is None


class DueTimeCases:
    async def test_a_delay_makes_it_scheduled(self, subject: Subject) -> None:
        """`delay` counts from the submission, by the store's clock."""
        answer = await submit_one(subject.backend, item("a", delay=100))
        found = await state(subject.backend, "a")
        assert (answer.status, found.status) == ("scheduled", "scheduled")
        assert found.due_at - found.queued_at == near(100)
        assert await claim_ids(subject.backend) == []
        await subject.advance(101)
        assert await claim_ids(subject.backend) == ["a"]

    async def test_run_at_is_an_instant(self, subject: Subject) -> None:
        """`run_at` in the future: scheduled until then."""
        at = await subject.backend.now() + 100
        await submit(subject.backend, item("a", run_at=at))
        assert (await state(subject.backend, "a")).due_at == pytest.approx(at, abs=0.001)
        await subject.advance(50)
        assert await claim_ids(subject.backend) == []
        await subject.advance(51)
        assert await claim_ids(subject.backend) == ["a"]

    async def test_run_at_wins_over_delay(self, subject: Subject) -> None:
        """The absolute one wins, in both directions."""
        now = await subject.backend.now()
        await submit(subject.backend, item("now", run_at=now - 10, delay=500))
        await submit(subject.backend, item("later", run_at=now + 500, delay=0))
        assert await status(subject.backend, "now") == "ready"
        assert await status(subject.backend, "later") == "scheduled"

    async def test_a_run_at_in_the_past_does_not_jump_the_line(self, backend: Backend) -> None:
        """In a line: who became ready first. A date in the past makes nobody older."""
        await submit(backend, item("first"))
        await submit(backend, item("second", run_at=await backend.now() - 3600))
        assert await claim_ids(backend) == ["first", "second"]

    async def test_due_items_come_in_the_order_they_are_due(self, subject: Subject) -> None:
        """What one claim finds due becomes ready in the order it was due."""
        await submit(subject.backend, item("late", delay=300), item("early", delay=100))
        await submit(subject.backend, item("middle", delay=200))
        await subject.advance(400)
        assert await claim_ids(subject.backend) == ["early", "middle", "late"]

    async def test_what_becomes_due_goes_to_the_end_of_the_line(self, subject: Subject) -> None:
        """The claim at which it is due makes it ready, behind those that were ready before."""
        await submit(subject.backend, item("scheduled", delay=100))
        await subject.advance(50)
        await submit(subject.backend, item("waiting"))
        await subject.advance(51)
        assert await claim_ids(subject.backend) == ["waiting", "scheduled"]

    @needs("listing")
    async def test_the_next_due_item_is_announced(self, subject: Subject) -> None:
        """`next_due`: seconds until the next scheduled item of these queues and tenants; None if none."""
        assert (await ask(subject.backend)).next_due is None
        await submit(subject.backend, item(delay=500), item(delay=300), item(delay=100, queue="other"))
        await submit(subject.backend, item(delay=200, tenant="acme"))
        mine: dict[str, Any] = {"queues": ("default",), "tenants": ("default",)}
        assert (await ask(subject.backend)).next_due == near(100)
        assert (await ask(subject.backend, queues=("default",))).next_due == near(200)
        assert (await ask(subject.backend, **mine)).next_due == near(300)
        assert (await ask(subject.backend, queues=("empty",))).next_due is None
        await subject.advance(310)
        assert (await ask(subject.backend, **mine)).next_due == near(190)

    async def test_a_deadline_is_an_instant_or_a_span(self, backend: Backend) -> None:
        """`expires_in` counts from the submission; an explicit `deadline` wins."""
        now = await backend.now()
        await submit(backend, item("span", expires_in=100), item("none"))
        await submit(backend, item("instant", deadline=now + 300, expires_in=100))
        assert (await state(backend, "span")).deadline == near(now + 100)
        assert (await state(backend, "instant")).deadline == pytest.approx(now + 300, abs=0.001)
        assert (await state(backend, "none")).deadline is None
        leases = await claim(backend)
        assert {lease.id: lease.deadline for lease in leases}["instant"] == pytest.approx(
            now + 300, abs=0.001
        )

    async def test_a_deadline_already_passed_is_accepted(self, backend: Backend) -> None:
        """It is stored, doomed: it comes with the verdict `expired`, never to be run."""
        await submit(backend, item("a", deadline=await backend.now() - 10))
        lease = only((await ask(backend)).leases)
        assert (lease.id, lease.verdict) == ("a", "expired")


class RefusedSubmitCases:
    @needs("batches")
    async def test_an_id_that_exists_is_refused(self, backend: Backend) -> None:
        """`duplicate_id`, and nothing of that submission is stored."""
        await submit(backend, item("a"))
        answer = await refused(backend, item("b"), item("a"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        assert not await exists(backend, "b")
        await consistent(backend)

    @needs("batches")
    async def test_an_id_twice_in_one_submission_is_refused(self, backend: Backend) -> None:
        """An id that comes twice: `duplicate_id`, nothing stored."""
        answer = await refused(backend, item("a"), item("b"), item("a"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        assert not await exists(backend, "a")
        assert not await exists(backend, "b")

    @needs("batches")
    async def test_an_id_twice_that_is_waited_for_is_refused(self, backend: Backend) -> None:
        """Also if somebody waits for that id already, or in the same submission; children likewise."""
        await submit(backend, gate("a", id="waiting"))
        answer = await refused(backend, item("a"), item("a"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        answer = await refused(backend, gate("a", id="other"), item("a"), item("a"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        outcome = await settle_one(backend, succeed(await start_one(backend, item()), item("a"), item("a")))
        assert outcome.rejected == Rejected("duplicate_id", ("a",))
        assert (await state(backend, "waiting")).waiting_for == ("a",)
        await submit(backend, item("a"))
        assert await claim_ids(backend) == ["a"]
        await consistent(backend)

    async def test_an_ended_item_keeps_its_id(self, backend: Backend) -> None:
        """An id exists for as long as its item is kept."""
        await end(backend, item("a"))
        assert (await refused(backend, item("a"))).why == "duplicate_id"

    async def test_neighbours_of_a_refused_submission_are_stored(self, backend: Backend) -> None:
        """Each submission is atomic on its own; of two with the same id the first is stored."""
        await submit(backend, item("taken"))
        answers = await submit_each(backend, item("a"), item("taken"), item("b"), item("a"), item("c"))
        assert [isinstance(answer, Rejected) for answer in answers] == [False, True, False, True, False]
        assert sorted(await claim_ids(backend)) == ["a", "b", "c", "taken"]
        await consistent(backend)

    async def test_a_repeated_submission_is_not_done_twice(self, backend: Backend) -> None:
        """A submit may be repeated with the same arguments: the items exist once."""
        again = [Submission((item("a"), item("b")))]
        await backend.submit(again)
        await backend.submit(again)
        assert sorted(await claim_ids(backend)) == ["a", "b"]
        await consistent(backend)

    async def test_an_item_cannot_wait_for_itself(self, backend: Backend) -> None:
        """The shortest cycle."""
        answer = await refused(backend, gate("a", id="a"))
        assert (answer.why, answer.ids) == ("cycle", ("a",))
        assert not await exists(backend, "a")

    @needs("batches")
    async def test_a_cycle_in_one_submission_is_refused(self, backend: Backend) -> None:
        """Items that would wait for each other: `cycle`, naming them; neighbours are stored."""
        cycle = Submission((gate("c", id="a"), item("free"), gate("a", id="b"), gate("b", "free", id="c")))
        answer, neighbour = await backend.submit([cycle, Submission((item("d"),))])
        assert isinstance(answer, Rejected)
        assert (answer.why, sorted(answer.ids)) == ("cycle", ["a", "b", "c"])
        assert not isinstance(neighbour, Rejected)
        assert await claim_ids(backend) == ["d"]
        await consistent(backend)

    @needs("batches")
    async def test_a_cycle_closed_later_is_refused(self, backend: Backend) -> None:
        """Also through items stored before, which named ids not yet submitted."""
        await submit(backend, gate("missing", id="a"))
        await submit(backend, gate("a", id="b"))
        answer = await refused(backend, gate("b", id="missing"), item("c"))
        assert (answer.why, sorted(answer.ids)) == ("cycle", ["a", "b", "missing"])
        assert not await exists(backend, "c")
        await submit(backend, item("missing"))
        assert await claim_ids(backend) == ["missing"]
        await consistent(backend)

    async def test_a_cycle_through_another_submission_of_the_call(self, backend: Backend) -> None:
        """Submissions of one call come one after the other: the one that closes the cycle is refused."""
        answers = await submit_each(backend, gate("b", id="a"), gate("a", id="b"))
        assert [isinstance(answer, Rejected) for answer in answers] == [False, True]
        assert await status(backend, "a") == "blocked"

    @needs("operating")
    async def test_what_has_ended_waits_for_nobody(self, backend: Backend) -> None:
        """An item that ended without its prerequisite closes no cycle."""
        await submit(backend, gate("missing", id="a"))
        await backend.complete("a", None)
        assert (await submit_one(backend, gate("a", id="missing"))).status == "ready"

    async def test_a_diamond_is_not_a_cycle(self, backend: Backend) -> None:
        """Two ways to the same prerequisite, in any order of the submission."""
        await submit(backend, gate("l", "r", id="end"), gate("top", id="l"), gate("top", id="r"), item("top"))
        assert await claim_ids(backend) == ["top"]
        await consistent(backend)
