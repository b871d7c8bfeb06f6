"""Idempotency keys: which earlier item answers, and what follows from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Rejected, Submission

from .build import (
    abandon,
    apply,
    by_id,
    claim,
    claim_ids,
    connections,
    die,
    end,
    exists,
    gate,
    item,
    refused,
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


def keyed(id: str, scope: Any = "open", **fields: Any) -> Any:
    return item(id, key="k", key_scope=scope, **fields)


class KeyCases:
    async def test_an_open_item_answers_for_its_key(self, backend: Backend) -> None:
        """Nothing is stored for the new one; the earlier one is answered, with `existing`."""
        await submit(backend, keyed("a", delay=100))
        answer = await submit_one(backend, keyed("b"))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "scheduled")
        assert (answer.group_id, answer.lease) == ("a", None)
        assert not await exists(backend, "b")
        await consistent(backend)

    async def test_a_key_belongs_to_a_type(self, backend: Backend) -> None:
        """Unique per tenant and type: another type is another key."""
        await submit(backend, keyed("a", type="mail"))
        assert not (await submit_one(backend, keyed("b", type="sms"))).existing

    async def test_a_key_belongs_to_a_tenant(self, backend: Backend) -> None:
        """Two tenants may use the same key and never meet."""
        await submit(backend, keyed("a"))
        assert not (await submit_one(backend, keyed("b", tenant="acme"))).existing
        assert (await submit_one(backend, keyed("c", tenant="acme"))).id == "b"

    async def test_no_key_no_answer(self, backend: Backend) -> None:
        """Items without a key never answer for each other."""
        await submit(backend, item("a"))
        assert not (await submit_one(backend, item("b"))).existing

    async def test_open_lasts_until_the_group_has_ended(self, backend: Backend) -> None:
        """Scope `open`: not the item's end counts, but its group's."""
        lease = await start_one(backend, keyed("a"))
        await apply(backend, succeed(lease, item("child")))
        answer = await submit_one(backend, keyed("b"))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "success")
        child = by_id(await claim(backend))["child"]
        await apply(backend, succeed(child))
        assert not (await submit_one(backend, keyed("c"))).existing
        await consistent(backend)

    @pytest.mark.parametrize("how", [succeed, die, abandon])
    async def test_whoever_has_ended_does_not_hold_an_open_key(self, backend: Backend, how: Any) -> None:
        """Scope `open`: every way to end lets the next one in."""
        await end(backend, keyed("a"), how=how)
        assert not (await submit_one(backend, keyed("b"))).existing
        assert (await submit_one(backend, keyed("c"))).id == "b"

    @needs("operating")
    async def test_a_requeued_item_holds_its_key_again(self, backend: Backend) -> None:
        """Scope `open`: requeuing opens the group, and the group's being open is what counts."""
        await end(backend, keyed("a"), how=die)
        await backend.requeue(["a"])
        assert (await submit_one(backend, keyed("b"))).id == "a"

    async def test_any_lasts_as_long_as_the_item(self, backend: Backend) -> None:
        """Scope `any`: it exists, in whatever state."""
        await end(backend, keyed("a"))
        answer = await submit_one(backend, keyed("b", "any"))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "success")
        assert not await exists(backend, "b")

    async def test_a_number_is_a_span_since_the_submission(self, subject: Subject) -> None:
        """Scope seconds: submitted at most so long ago, ended or not."""
        await end(subject.backend, keyed("a"))
        await subject.advance(80)
        assert (await submit_one(subject.backend, keyed("b", 100.0))).id == "a"
        await subject.advance(50)
        assert not (await submit_one(subject.backend, keyed("c", 100.0))).existing

    async def test_a_span_also_lets_go_of_an_open_item(self, subject: Subject) -> None:
        """Scope seconds: an open item that is older does not answer."""
        await submit(subject.backend, keyed("a"))
        await subject.advance(130)
        assert not (await submit_one(subject.backend, keyed("b", 100.0))).existing
        await consistent(subject.backend)

    async def test_the_scope_is_that_of_whoever_asks(self, backend: Backend) -> None:
        """The earlier item's own scope does not matter."""
        await end(backend, keyed("a", "any"))
        assert not (await submit_one(backend, keyed("b", "open"))).existing

    async def test_the_new_item_takes_the_key_over(self, backend: Backend) -> None:
        """Whoever was stored last with a key is the one that answers."""
        await end(backend, keyed("a"))
        await submit(backend, keyed("b"))
        assert (await submit_one(backend, keyed("c", "any"))).id == "b"
        assert (await state(backend, "a")).key == "k"

    async def test_the_first_of_one_call_wins(self, backend: Backend) -> None:
        """Keys also hold among the submissions of one call."""
        answers = await submit_each(backend, keyed("a"), keyed("b"), keyed("c", type="other"))
        first, second, other = [answer[0] for answer in answers if not isinstance(answer, Rejected)]
        assert [(one.id, one.existing) for one in (first, second, other)] == [
            ("a", False),
            ("a", True),
            ("c", False),
        ]

    async def test_the_first_of_one_submission_wins(self, backend: Backend) -> None:
        """Keys also hold among the items of one submission."""
        answers = await submit(backend, keyed("a"), keyed("b"), item("c"))
        assert [(one.id, one.existing) for one in answers] == [("a", False), ("a", True), ("c", False)]
        assert await claim_ids(backend) == ["a", "c"]
        await consistent(backend)

    async def test_the_earlier_item_is_waited_for_instead(self, backend: Backend) -> None:
        """An `after` that names the new id means the item that answered."""
        await submit(backend, keyed("a"))
        await submit(backend, keyed("b"), gate("b", id="next"))
        assert (await state(backend, "next")).after == ("a",)
        await apply(backend, succeed((await claim(backend))[0]))
        lease = (await claim(backend))[0]
        assert (lease.id, lease.after) == ("next", ("a",))
        await consistent(backend)

    async def test_the_earlier_item_of_the_same_submission_is_waited_for(self, backend: Backend) -> None:
        """The same when the one that answered came in the same submission."""
        await submit(backend, gate("b", id="next"), keyed("a"), keyed("b"))
        assert (await state(backend, "next")).after == ("a",)
        assert await claim_ids(backend) == ["a"]

    async def test_only_the_same_submission_means_the_earlier_item(self, backend: Backend) -> None:
        """In another submission, before or after it in the call, the id means the id: not yet submitted."""
        await submit(backend, keyed("a"))
        before, twin, after = [
            Submission((one,)) for one in (gate("b", id="x"), keyed("b"), gate("b", id="y"))
        ]
        answers = await backend.submit([before, twin, after])
        assert not any(isinstance(answer, Rejected) for answer in answers)
        for name in ("x", "y"):
            found = await state(backend, name)
            assert (found.status, found.after, found.waiting_for) == ("blocked", ("b",), ("b",))
        await consistent(backend)

    async def test_only_the_same_tenant_means_the_earlier_item(self, backend: Backend) -> None:
        """An id of another tenant in the same submission is another id."""
        await submit(backend, keyed("a"))
        await submit(backend, keyed("b"), gate("b", id="x", tenant="acme"), gate("b", id="x"))
        found = await state(backend, "x", "acme")
        assert (found.status, found.after, found.waiting_for) == ("blocked", ("b",), ("b",))
        assert (await state(backend, "x", "default")).after == ("a",)
        await end(backend, item("b", tenant="acme"))
        assert await status(backend, "x", "acme") == "ready"
        await consistent(backend)

    async def test_an_ended_item_that_answers_counts_at_once(self, backend: Backend) -> None:
        """Waiting for an existing item that has ended is over already."""
        await end(backend, keyed("a"))
        answers = await submit(backend, keyed("b", "any"), gate("b", id="next"))
        assert [one.status for one in answers] == ["success", "ready"]

    async def test_keys_come_before_ids(self, backend: Backend) -> None:
        """The same id and the same key again: the earlier item, not a refusal."""
        await submit(backend, keyed("a"))
        answer = await submit_one(backend, keyed("a"))
        assert (answer.id, answer.existing) == ("a", True)

    @needs("batches")
    async def test_a_refused_submission_takes_no_key(self, backend: Backend) -> None:
        """Nothing of it was stored: whoever held the key still does, and an unused key is still free."""
        await end(backend, keyed("old"))
        await submit(backend, item("taken"))
        await refused(backend, keyed("new"), item("other", key="k2"), item("taken"))
        assert (await submit_one(backend, keyed("later", "any"))).id == "old"
        assert not (await submit_one(backend, item("fresh", key="k2"))).existing

    @needs("batches")
    async def test_a_refused_neighbour_takes_no_key(self, backend: Backend) -> None:
        """Nor does it answer for the next submission of the same call."""
        await submit(backend, item("taken"))
        bad, good = Submission((keyed("a"), item("taken"))), Submission((keyed("b"),))
        refusal, answer = await backend.submit([bad, good])
        assert isinstance(refusal, Rejected)
        assert not isinstance(answer, Rejected)
        assert (answer[0].id, answer[0].existing) == ("b", False)

    @needs("operating")
    async def test_a_deleted_item_holds_no_key(self, backend: Backend) -> None:
        """Deleting frees keys, for every scope."""
        await submit(backend, keyed("a"))
        await backend.delete(["a"])
        assert not (await submit_one(backend, keyed("b", "any"))).existing

    async def test_a_key_of_an_item_is_not_a_claimed_key(self, backend: Backend) -> None:
        """The names of `claim_key` touch nothing else in the store."""
        assert await backend.claim_key("k", "me", 100, tenant="default")
        assert not (await submit_one(backend, keyed("a"))).existing
        assert await backend.claim_key("k", "me", 100, tenant="default")

    async def test_fifty_at_once_store_one(self, subject: Subject) -> None:
        """50 concurrent submits of one key, on several connections, store exactly one item."""
        backends = await connections(subject, 5)
        answers = await asyncio.gather(*(submit_one(backends[n % 5], keyed(f"i{n}")) for n in range(50)))
        assert sum(not answer.existing for answer in answers) == 1
        assert len({answer.id for answer in answers}) == 1
        assert await claim_ids(subject.backend) == [answers[0].id]
        await consistent(subject.backend)

    async def test_fifty_at_once_take_over_one(self, subject: Subject) -> None:
        """The same when an ended item holds the key: one takes it over, the others are answered by it."""
        await end(subject.backend, keyed("old"))
        backends = await connections(subject, 5)
        answers = await asyncio.gather(*(submit_one(backends[n % 5], keyed(f"i{n}")) for n in range(50)))
        assert sum(not answer.existing for answer in answers) == 1
        assert len({answer.id for answer in answers}) == 1
        assert answers[0].id != "old"

    async def test_several_keys_in_opposite_orders(self, subject: Subject) -> None:
        """Submissions that name the same keys in different orders end, and each key is stored once."""
        backends = await connections(subject, 4)

        async def pair(n: int) -> None:
            names = ["x", "y"] if n % 2 else ["y", "x"]
            await submit(backends[n % 4], *(item(f"{name}{n}", key=name) for name in names))

        await asyncio.gather(*(pair(n) for n in range(40)))
        assert len(await claim(subject.backend)) == 2
        await consistent(subject.backend)
