"""Idempotency keys: which existing item is returned, and what its dependents wait for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Rejected, Submission

from .build import (
    apply,
    by_id,
    cancel,
    claim,
    claim_ids,
    connections,
    dependent,
    die,
    end,
    exists,
    item,
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


def keyed_item(id: str, scope: Any = "open", **fields: Any) -> Any:
    return item(id, key="k", key_scope=scope, **fields)


class KeyCases:
    async def test_an_open_item_is_returned_for_its_key(self, backend: Backend) -> None:
        """The new item is not stored. The answer is the earlier item, with `existing`."""
        await submit(backend, keyed_item("a", delay=100))
        answer = await submit_one(backend, keyed_item("b"))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "scheduled")
        assert (answer.group_id, answer.lease) == ("a", None)
        assert not await exists(backend, "b")
        await consistent(backend)

    async def test_the_same_key_may_be_used_by_two_types(self, backend: Backend) -> None:
        """A key is unique per tenant and type."""
        await submit(backend, keyed_item("a", type="mail"))
        assert not (await submit_one(backend, keyed_item("b", type="sms"))).existing

    async def test_the_same_key_may_be_used_by_two_tenants(self, backend: Backend) -> None:
        """A key is unique per tenant and type."""
        await submit(backend, keyed_item("a"))
        assert not (await submit_one(backend, keyed_item("b", tenant="acme"))).existing
        assert (await submit_one(backend, keyed_item("c", tenant="acme"))).id == "b"

    async def test_items_without_a_key_are_always_stored(self, backend: Backend) -> None:
        """Items without a key never answer for each other."""
        await submit(backend, item("a"))
        assert not (await submit_one(backend, item("b"))).existing

    async def test_scope_open_lasts_until_the_group_has_ended(self, backend: Backend) -> None:
        """The end of the group counts, not the end of the item."""
        lease = await start_one(backend, keyed_item("a"))
        await apply(backend, succeed(lease, item("child")))
        answer = await submit_one(backend, keyed_item("b"))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "success")
        child = by_id(await claim(backend))["child"]
        await apply(backend, succeed(child))
        assert not (await submit_one(backend, keyed_item("c"))).existing
        await consistent(backend)

    @pytest.mark.parametrize("how", [succeed, die, cancel])
    async def test_an_ended_item_does_not_hold_an_open_key(self, backend: Backend, how: Any) -> None:
        """Scope `open`: success, death and cancellation all free the key."""
        await end(backend, keyed_item("a"), how=how)
        assert not (await submit_one(backend, keyed_item("b"))).existing
        assert (await submit_one(backend, keyed_item("c"))).id == "b"

    @needs("operating")
    async def test_a_requeued_item_holds_its_key_again(self, backend: Backend) -> None:
        """Scope `open`: requeuing opens the group again, and an open group holds the key."""
        await end(backend, keyed_item("a"), how=die)
        await backend.requeue(["a"])
        assert (await submit_one(backend, keyed_item("b"))).id == "a"

    async def test_scope_any_lasts_as_long_as_the_item_is_stored(self, backend: Backend) -> None:
        """Its status does not matter."""
        await end(backend, keyed_item("a"))
        answer = await submit_one(backend, keyed_item("b", "any"))
        assert (answer.id, answer.existing, answer.status) == ("a", True, "success")
        assert not await exists(backend, "b")

    async def test_a_numeric_scope_counts_seconds_since_submission(self, subject: Subject) -> None:
        """Ended or not, an item submitted at most that long ago is returned."""
        await end(subject.backend, keyed_item("a"))
        await subject.advance(80)
        assert (await submit_one(subject.backend, keyed_item("b", 100.0))).id == "a"
        await subject.advance(50)
        assert not (await submit_one(subject.backend, keyed_item("c", 100.0))).existing

    async def test_a_numeric_scope_ignores_older_open_items(self, subject: Subject) -> None:
        """An open item that was submitted earlier does not hold the key."""
        await submit(subject.backend, keyed_item("a"))
        await subject.advance(130)
        assert not (await submit_one(subject.backend, keyed_item("b", 100.0))).existing
        await consistent(subject.backend)

    async def test_the_scope_of_the_new_item_decides(self, backend: Backend) -> None:
        """The earlier item's own scope does not matter."""
        await end(backend, keyed_item("a", "any"))
        assert not (await submit_one(backend, keyed_item("b", "open"))).existing

    async def test_the_new_item_takes_the_key_over(self, backend: Backend) -> None:
        """The item that was stored last with a key is the one that is returned."""
        await end(backend, keyed_item("a"))
        await submit(backend, keyed_item("b"))
        assert (await submit_one(backend, keyed_item("c", "any"))).id == "b"
        assert (await state(backend, "a")).key == "k"

    async def test_the_first_submission_of_a_call_takes_the_key(self, backend: Backend) -> None:
        """Keys also hold among the submissions of one call."""
        answers = await submit_each(backend, keyed_item("a"), keyed_item("b"), keyed_item("c", type="other"))
        first, second, other = [answer[0] for answer in answers if not isinstance(answer, Rejected)]
        assert [(one.id, one.existing) for one in (first, second, other)] == [
            ("a", False),
            ("a", True),
            ("c", False),
        ]

    async def test_the_first_item_of_a_submission_takes_the_key(self, backend: Backend) -> None:
        """Keys also hold among the items of one submission."""
        answers = await submit(backend, keyed_item("a"), keyed_item("b"), item("c"))
        assert [(one.id, one.existing) for one in answers] == [("a", False), ("a", True), ("c", False)]
        assert await claim_ids(backend) == ["a", "c"]
        await consistent(backend)

    async def test_a_dependency_on_a_keyed_duplicate_means_the_existing_item(self, backend: Backend) -> None:
        """An `after` that names the new id is stored with the id of the existing item."""
        await submit(backend, keyed_item("a"))
        await submit(backend, keyed_item("b"), dependent("b", id="next"))
        assert (await state(backend, "next")).after == ("a",)
        await apply(backend, succeed((await claim(backend))[0]))
        lease = (await claim(backend))[0]
        assert (lease.id, lease.after) == ("next", ("a",))
        await consistent(backend)

    async def test_a_dependency_means_the_existing_item_of_the_same_submission(
        self, backend: Backend
    ) -> None:
        """The existing item may be part of the same submission."""
        await submit(backend, dependent("b", id="next"), keyed_item("a"), keyed_item("b"))
        assert (await state(backend, "next")).after == ("a",)
        assert await claim_ids(backend) == ["a"]

    async def test_other_submissions_wait_for_the_id_as_written(self, backend: Backend) -> None:
        """In another submission of the call the id means an item that is not yet submitted."""
        await submit(backend, keyed_item("a"))
        before, twin, after = [
            Submission((one,)) for one in (dependent("b", id="x"), keyed_item("b"), dependent("b", id="y"))
        ]
        answers = await backend.submit([before, twin, after])
        assert not any(isinstance(answer, Rejected) for answer in answers)
        for name in ("x", "y"):
            found = await state(backend, name)
            assert (found.status, found.after, found.waiting_for) == ("blocked", ("b",), ("b",))
        await consistent(backend)

    async def test_other_tenants_wait_for_the_id_as_written(self, backend: Backend) -> None:
        """In another tenant of the same submission, the id means that tenant's own item."""
        await submit(backend, keyed_item("a"))
        await submit(backend, keyed_item("b"), dependent("b", id="x", tenant="acme"), dependent("b", id="x"))
        found = await state(backend, "x", "acme")
        assert (found.status, found.after, found.waiting_for) == ("blocked", ("b",), ("b",))
        assert (await state(backend, "x", "default")).after == ("a",)
        await end(backend, item("b", tenant="acme"))
        assert await status(backend, "x", "acme") == "ready"
        await consistent(backend)

    async def test_an_ended_existing_item_counts_at_once(self, backend: Backend) -> None:
        """A dependent of an existing item that has ended is ready at once."""
        await end(backend, keyed_item("a"))
        answers = await submit(backend, keyed_item("b", "any"), dependent("b", id="next"))
        assert [one.status for one in answers] == ["success", "ready"]

    async def test_a_known_key_wins_over_a_duplicate_id(self, backend: Backend) -> None:
        """The same id with the same key returns the existing item. It is not refused."""
        await submit(backend, keyed_item("a"))
        answer = await submit_one(backend, keyed_item("a"))
        assert (answer.id, answer.existing) == ("a", True)

    @needs("batches")
    async def test_a_refused_submission_takes_no_key(self, backend: Backend) -> None:
        """Nothing of it was stored: the previous holder keeps its key, and an unused key stays free."""
        await end(backend, keyed_item("old"))
        await submit(backend, item("taken"))
        await submit_refused(backend, keyed_item("new"), item("other", key="k2"), item("taken"))
        assert (await submit_one(backend, keyed_item("later", "any"))).id == "old"
        assert not (await submit_one(backend, item("fresh", key="k2"))).existing

    @needs("batches")
    async def test_a_refused_submission_takes_no_key_from_the_next_one(self, backend: Backend) -> None:
        """The next submission of the same call is stored with that key."""
        await submit(backend, item("taken"))
        bad, good = Submission((keyed_item("a"), item("taken"))), Submission((keyed_item("b"),))
        refusal, answer = await backend.submit([bad, good])
        assert isinstance(refusal, Rejected)
        assert not isinstance(answer, Rejected)
        assert (answer[0].id, answer[0].existing) == ("b", False)

    @needs("operating")
    async def test_a_deleted_item_holds_no_key(self, backend: Backend) -> None:
        """Deleting frees keys, for every scope."""
        await submit(backend, keyed_item("a"))
        await backend.delete(["a"])
        assert not (await submit_one(backend, keyed_item("b", "any"))).existing

    async def test_item_keys_and_claimed_keys_are_separate(self, backend: Backend) -> None:
        """The keys of `claim_key` have no effect on the keys of items."""
        assert await backend.claim_key("k", "me", 100, tenant="default")
        assert not (await submit_one(backend, keyed_item("a"))).existing
        assert await backend.claim_key("k", "me", 100, tenant="default")

    async def test_fifty_concurrent_submits_of_a_key_store_one_item(self, subject: Subject) -> None:
        """The submits run on several connections."""
        backends = await connections(subject, 5)
        answers = await asyncio.gather(*(submit_one(backends[n % 5], keyed_item(f"i{n}")) for n in range(50)))
        assert sum(not answer.existing for answer in answers) == 1
        assert len({answer.id for answer in answers}) == 1
        assert await claim_ids(subject.backend) == [answers[0].id]
        await consistent(subject.backend)

    async def test_fifty_concurrent_submits_take_over_an_ended_key_once(self, subject: Subject) -> None:
        """An ended item holds the key: one submit takes it over, the others return the new item."""
        await end(subject.backend, keyed_item("old"))
        backends = await connections(subject, 5)
        answers = await asyncio.gather(*(submit_one(backends[n % 5], keyed_item(f"i{n}")) for n in range(50)))
        assert sum(not answer.existing for answer in answers) == 1
        assert len({answer.id for answer in answers}) == 1
        assert answers[0].id != "old"

    async def test_submissions_with_keys_in_opposite_orders_do_not_deadlock(self, subject: Subject) -> None:
        """They all end, and each key is stored once."""
        backends = await connections(subject, 4)

        async def pair(n: int) -> None:
            names = ["x", "y"] if n % 2 else ["y", "x"]
            await submit(backends[n % 4], *(item(f"{name}{n}", key=name) for name in names))

        await asyncio.gather(*(pair(n) for n in range(40)))
        assert len(await claim(subject.backend)) == 2
        await consistent(subject.backend)
