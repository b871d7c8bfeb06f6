"""Submit: in which status an item is stored, what is answered, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Rejected, Submission

from .build import (
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    dependent,
    end,
    exists,
    group,
    item,
    items,
    near,
    only,
    settle_one,
    start_one,
    state,
    status,
    submit,
    submit_each,
    submit_one,
    submit_refused,
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
    "parent": "another-item",
    "workflow": "order-1",
    "workflow_type": "order",
    "options": b"\x00options\xff",
}


class SubmitCases:
    async def test_an_item_without_dependencies_is_stored_ready(self, backend: Backend) -> None:
        """The item is stored `ready`, not leased, as the root of its own group."""
        answer = await submit_one(backend, item("a"))
        assert (answer.id, answer.status, answer.existing) == ("a", "ready", False)
        assert (answer.lease, answer.group_id) == (None, "a")
        assert (await state(backend, "a")).attempt == 0
        await consistent(backend)

    async def test_get_shows_every_submitted_field(self, backend: Backend) -> None:
        """`get` shows every field as it was submitted."""
        await submit(backend, item("a", "mail", input=b"\x00in\xff", key="k", **FIELDS))
        found = await state(backend, "a")
        assert (found.id, found.type, found.input, found.key) == ("a", "mail", b"\x00in\xff", "k")
        assert {name: getattr(found, name) for name in FIELDS} == FIELDS
        assert (found.group_id, found.status, found.result) == ("a", "ready", None)
        assert (found.started_at, found.ended_at, found.worker) == (None, None, None)

    async def test_a_lease_shows_every_submitted_field(self, backend: Backend) -> None:
        """A lease carries the item as its handler will see it."""
        await submit(backend, item("a", "mail", input=b"\x00in\xff", **FIELDS))
        lease = await claim_one(backend)
        assert (lease.id, lease.type, lease.input, lease.attempt) == ("a", "mail", b"\x00in\xff", 1)
        assert {name: getattr(lease, name) for name in FIELDS} == FIELDS
        assert (lease.group_id, lease.verdict, lease.after) == ("a", None, ())

    async def test_queued_at_is_an_instant_of_the_store(self, subject: Subject) -> None:
        """`queued_at` is in epoch seconds by the store's clock."""
        await subject.advance(5_000)
        await submit(subject.backend, item("a"))
        found = await state(subject.backend, "a")
        now = await subject.backend.now()
        assert (found.queued_at, found.due_at) == (near(now), near(now))

    async def test_submit_answers_in_the_order_of_the_request(self, backend: Backend) -> None:
        """One answer per submission, and within it one per item, in the order of the request."""
        answers = await backend.submit([Submission((item("b"), item("a"))), Submission((item("c"),))])
        accepted = [answer for answer in answers if not isinstance(answer, Rejected)]
        assert [[one.id for one in answer] for answer in accepted] == [["b", "a"], ["c"]]

    async def test_each_item_of_a_submission_is_the_root_of_its_own_group(self, backend: Backend) -> None:
        """Items that are stored together do not share a group."""
        answers = await submit(backend, item("a"), item("b"))
        assert [answer.group_id for answer in answers] == ["a", "b"]
        assert (await group(backend, "a")).open == (await group(backend, "b")).open == 1

    async def test_submitting_nothing_is_accepted(self, backend: Backend) -> None:
        """No submissions give no answers. An empty submission is accepted."""
        assert list(await backend.submit([])) == []
        assert list(await backend.submit([Submission(())])) == [()]

    async def test_one_submission_may_hold_a_thousand_items(self, backend: Backend) -> None:
        """A submission may hold a thousand items."""
        new = items(1000)
        assert [one.id for one in await submit(backend, *new)] == [one.id for one in new]
        assert len(await claim(backend, 1000)) == 1000
        await consistent(backend)

    async def test_bytes_are_kept_as_they_are(self, backend: Backend) -> None:
        """The store does not interpret inputs and options: any bytes, including none and a megabyte."""
        inputs = {"empty": b"", "nul": b"\x00", "any": bytes(range(256)), "large": b"\xfe" * 1_000_000}
        await submit(backend, *(item(name, input=data, options=data) for name, data in inputs.items()))
        leases = await claim(backend)
        assert {lease.id: lease.input for lease in leases} == inputs
        assert {lease.id: lease.options for lease in leases} == inputs

    async def test_names_may_be_any_text_up_to_255_bytes(self, backend: Backend) -> None:
        """Names are 1 to 255 UTF-8 bytes without control characters. The store does not interpret them."""
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
    async def test_priorities_are_signed_32_bit_integers(self, backend: Backend) -> None:
        """The whole range is accepted and ordered."""
        low, high = -(2**31), 2**31 - 1
        await submit(backend, item("low", priority=low), item("zero"), item("high", priority=high))
        leases = await claim(backend)
        assert [(lease.id, lease.priority) for lease in leases] == [("high", high), ("zero", 0), ("low", low)]

    async def test_attempts_none_means_no_limit(self, backend: Backend) -> None:
        """`attempts=None` is stored and read back as None."""
        await submit(backend, item("a", attempts=None))
        assert (await state(backend, "a")).attempts is None
        assert (await claim_one(backend)).attempts is None


class DueTimeCases:
    async def test_a_delayed_item_is_scheduled_until_it_is_due(self, subject: Subject) -> None:
        """`delay` counts from the submission, by the store's clock."""
        answer = await submit_one(subject.backend, item("a", delay=100))
        found = await state(subject.backend, "a")
        assert (answer.status, found.status) == ("scheduled", "scheduled")
        assert found.due_at - found.queued_at == near(100)
        assert await claim_ids(subject.backend) == []
        await subject.advance(101)
        assert await claim_ids(subject.backend) == ["a"]

    async def test_run_at_in_the_future_schedules_the_item(self, subject: Subject) -> None:
        """The item is scheduled until that instant."""
        at = await subject.backend.now() + 100
        await submit(subject.backend, item("a", run_at=at))
        assert (await state(subject.backend, "a")).due_at == pytest.approx(at, abs=0.001)
        await subject.advance(50)
        assert await claim_ids(subject.backend) == []
        await subject.advance(51)
        assert await claim_ids(subject.backend) == ["a"]

    async def test_run_at_wins_over_delay(self, subject: Subject) -> None:
        """With both, `run_at` decides, whether it is earlier or later."""
        now = await subject.backend.now()
        await submit(subject.backend, item("now", run_at=now - 10, delay=500))
        await submit(subject.backend, item("later", run_at=now + 500, delay=0))
        assert await status(subject.backend, "now") == "ready"
        assert await status(subject.backend, "later") == "scheduled"

    async def test_a_run_at_in_the_past_gives_no_precedence(self, backend: Backend) -> None:
        """Within a lane, items are claimed in the order in which they became ready."""
        await submit(backend, item("first"))
        await submit(backend, item("second", run_at=await backend.now() - 3600))
        assert await claim_ids(backend) == ["first", "second"]

    async def test_items_found_due_together_become_ready_in_due_order(self, subject: Subject) -> None:
        """One claim finds several items due: they become ready in the order of their due times."""
        await submit(subject.backend, item("late", delay=300), item("early", delay=100))
        await submit(subject.backend, item("middle", delay=200))
        await subject.advance(400)
        assert await claim_ids(subject.backend) == ["early", "middle", "late"]

    async def test_a_due_item_goes_behind_items_that_are_already_ready(self, subject: Subject) -> None:
        """The claim that finds it due makes it ready, behind the items that were ready before."""
        await submit(subject.backend, item("scheduled", delay=100))
        await subject.advance(50)
        await submit(subject.backend, item("waiting"))
        await subject.advance(51)
        assert await claim_ids(subject.backend) == ["waiting", "scheduled"]

    @needs("listing")
    async def test_claim_reports_seconds_until_the_next_due_item(self, subject: Subject) -> None:
        """`next_due` covers the demanded queues and tenants. It is None if nothing is scheduled there."""
        assert (await claim_answer(subject.backend)).next_due is None
        await submit(subject.backend, item(delay=500), item(delay=300), item(delay=100, queue="other"))
        await submit(subject.backend, item(delay=200, tenant="acme"))
        mine: dict[str, Any] = {"queues": ("default",), "tenants": ("default",)}
        assert (await claim_answer(subject.backend)).next_due == near(100)
        assert (await claim_answer(subject.backend, queues=("default",))).next_due == near(200)
        assert (await claim_answer(subject.backend, **mine)).next_due == near(300)
        assert (await claim_answer(subject.backend, queues=("empty",))).next_due is None
        await subject.advance(310)
        assert (await claim_answer(subject.backend, **mine)).next_due == near(190)

    async def test_a_deadline_may_be_given_as_expires_in(self, backend: Backend) -> None:
        """`expires_in` counts from the submission. An explicit `deadline` wins."""
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

    async def test_a_deadline_in_the_past_dooms_the_item(self, backend: Backend) -> None:
        """The item is stored and doomed: it is claimed with the verdict `expired` and never run."""
        await submit(backend, item("a", deadline=await backend.now() - 10))
        lease = only((await claim_answer(backend)).leases)
        assert (lease.id, lease.verdict) == ("a", "expired")


class RefusedSubmitCases:
    @needs("batches")
    async def test_a_duplicate_id_is_refused(self, backend: Backend) -> None:
        """`duplicate_id`, and nothing of that submission is stored."""
        await submit(backend, item("a"))
        answer = await submit_refused(backend, item("b"), item("a"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        assert not await exists(backend, "b")
        await consistent(backend)

    @needs("batches")
    async def test_an_id_twice_in_one_submission_is_refused(self, backend: Backend) -> None:
        """`duplicate_id`, and nothing is stored."""
        answer = await submit_refused(backend, item("a"), item("b"), item("a"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        assert not await exists(backend, "a")
        assert not await exists(backend, "b")

    @needs("batches")
    async def test_a_repeated_id_is_refused_when_other_items_wait_for_it(self, backend: Backend) -> None:
        """A stored item or one of the same submission waits for it. Children are refused as well."""
        await submit(backend, dependent("a", id="waiting"))
        answer = await submit_refused(backend, item("a"), item("a"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        answer = await submit_refused(backend, dependent("a", id="other"), item("a"), item("a"))
        assert (answer.why, answer.ids) == ("duplicate_id", ("a",))
        outcome = await settle_one(backend, succeed(await start_one(backend, item()), item("a"), item("a")))
        assert outcome.rejected == Rejected("duplicate_id", ("a",))
        assert (await state(backend, "waiting")).waiting_for == ("a",)
        await submit(backend, item("a"))
        assert await claim_ids(backend) == ["a"]
        await consistent(backend)

    async def test_an_ended_item_keeps_its_id(self, backend: Backend) -> None:
        """An id is taken for as long as its item is stored."""
        await end(backend, item("a"))
        assert (await submit_refused(backend, item("a"))).why == "duplicate_id"

    async def test_other_submissions_of_the_call_are_stored_when_one_is_refused(
        self, backend: Backend
    ) -> None:
        """Each submission is atomic on its own. Of two with the same id the first is stored."""
        await submit(backend, item("taken"))
        answers = await submit_each(backend, item("a"), item("taken"), item("b"), item("a"), item("c"))
        assert [isinstance(answer, Rejected) for answer in answers] == [False, True, False, True, False]
        assert sorted(await claim_ids(backend)) == ["a", "b", "c", "taken"]
        await consistent(backend)

    async def test_repeating_a_submit_stores_nothing_twice(self, backend: Backend) -> None:
        """A submit may be repeated with the same arguments: each item exists once."""
        again = [Submission((item("a"), item("b")))]
        await backend.submit(again)
        await backend.submit(again)
        assert sorted(await claim_ids(backend)) == ["a", "b"]
        await consistent(backend)

    async def test_an_item_cannot_wait_for_itself(self, backend: Backend) -> None:
        """This is the shortest cycle."""
        answer = await submit_refused(backend, dependent("a", id="a"))
        assert (answer.why, answer.ids) == ("cycle", ("a",))
        assert not await exists(backend, "a")

    @needs("batches")
    async def test_a_cycle_in_one_submission_is_refused(self, backend: Backend) -> None:
        """`cycle` names its items. Other submissions of the call are stored."""
        cycle = Submission(
            (dependent("c", id="a"), item("free"), dependent("a", id="b"), dependent("b", "free", id="c"))
        )
        answer, neighbour = await backend.submit([cycle, Submission((item("d"),))])
        assert isinstance(answer, Rejected)
        assert (answer.why, sorted(answer.ids)) == ("cycle", ["a", "b", "c"])
        assert not isinstance(neighbour, Rejected)
        assert await claim_ids(backend) == ["d"]
        await consistent(backend)

    @needs("batches")
    async def test_a_later_submission_that_closes_a_cycle_is_refused(self, backend: Backend) -> None:
        """The cycle runs through stored items that name ids not yet submitted."""
        await submit(backend, dependent("missing", id="a"))
        await submit(backend, dependent("a", id="b"))
        answer = await submit_refused(backend, dependent("b", id="missing"), item("c"))
        assert (answer.why, sorted(answer.ids)) == ("cycle", ["a", "b", "missing"])
        assert not await exists(backend, "c")
        await submit(backend, item("missing"))
        assert await claim_ids(backend) == ["missing"]
        await consistent(backend)

    async def test_a_cycle_across_submissions_of_one_call_is_refused(self, backend: Backend) -> None:
        """The submissions of one call are stored in order. The one that closes the cycle is refused."""
        answers = await submit_each(backend, dependent("b", id="a"), dependent("a", id="b"))
        assert [isinstance(answer, Rejected) for answer in answers] == [False, True]
        assert await status(backend, "a") == "blocked"

    @needs("operating")
    async def test_an_ended_item_closes_no_cycle(self, backend: Backend) -> None:
        """The item ended without its prerequisite, so it no longer waits."""
        await submit(backend, dependent("missing", id="a"))
        await backend.complete("a", None)
        assert (await submit_one(backend, dependent("a", id="missing"))).status == "ready"

    async def test_a_diamond_is_not_a_cycle(self, backend: Backend) -> None:
        """Two paths lead to the same prerequisite. The order of the submission does not matter."""
        await submit(
            backend,
            dependent("l", "r", id="end"),
            dependent("top", id="l"),
            dependent("top", id="r"),
            item("top"),
        )
        assert await claim_ids(backend) == ["top"]
        await consistent(backend)
