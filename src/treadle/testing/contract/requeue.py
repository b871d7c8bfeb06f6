"""Requeue and trigger."""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.errors import NotFound, NotTriggerable
from treadle.item import Filter
from treadle.store.rules.settlement import next_version

from .build import (
    apply,
    by_id,
    cancel,
    claim,
    claim_ids,
    claim_one,
    contribute,
    dependent,
    die,
    doomed_lease,
    end,
    group,
    item,
    items,
    near,
    only,
    retry,
    settle_one,
    start,
    start_one,
    state,
    status,
    statuses,
    submit,
    succeed,
)
from .check import consistent, open_members
from .subject import Subject, needs


class RequeueCases:
    @needs("operating")
    async def test_a_requeued_item_is_ready_with_attempt_0(self, backend: Backend) -> None:
        """The answer shows the item as it was. Its group opens again."""
        await end(backend, item("a"), how=die)
        changed = await backend.requeue(["a"])
        assert [(one.id, one.status, one.reason) for one in changed.items] == [("a", "dead", "aborted")]
        found = await state(backend, "a")
        assert (found.status, found.reason, found.attempt, found.ended_at) == ("ready", None, 0, None)
        opened = await group(backend, "a")
        assert (opened.open, opened.ended_at, opened.failed) == (1, None, 0)
        assert (await claim_one(backend)).attempt == 1
        await consistent(backend)

    @needs("operating")
    async def test_requeue_skips_items_that_are_not_dead(self, backend: Backend) -> None:
        """Missing ids are skipped too."""
        await end(backend, item("success"))
        await end(backend, item("cancelled"), how=cancel)
        await end(backend, item("dead"), how=die)
        await submit(backend, item("ready"))
        changed = await backend.requeue(["success", "cancelled", "missing", "ready", "dead", "dead"])
        assert [one.id for one in changed.items] == ["dead"]
        assert await statuses(backend, "success", "cancelled", "ready") == ["success", "cancelled", "ready"]
        assert (await backend.requeue([])).items == ()
        await consistent(backend)

    @needs("operating")
    async def test_requeue_opens_an_ended_group_again(self, backend: Backend) -> None:
        """Value, version and `final` stay. The group ends once more."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, item("a"), item("b")))
        leases = by_id(await claim(backend))
        await apply(backend, contribute(leases["a"], b"value", final=True))
        assert len((await apply(backend, die(leases["b"]))).effects.ended_groups) == 1
        await backend.requeue(["b"])
        found = await group(backend, "root")
        assert (found.open, found.ended_at, found.failed) == (1, None, 0)
        version = next_version(leases["a"].token, None)
        assert (found.value, found.version, found.final) == (b"value", version, True)
        settled = await apply(backend, contribute(await claim_one(backend), b"late"))
        assert only(settled.effects.ended_groups).value == b"value"
        found = await group(backend, "root")
        assert (found.open, found.failed) == (0, 0)
        await consistent(backend)

    @needs("operating")
    async def test_a_requeued_item_may_queue_children(self, backend: Backend) -> None:
        """The group that it opened again counts them."""
        await end(backend, item("root"), how=die)
        await backend.requeue(["root"])
        await apply(backend, succeed(await claim_one(backend), item("child")))
        assert await open_members(backend, "root") == 1
        assert len((await apply(backend, succeed(await claim_one(backend)))).effects.ended_groups) == 1
        await consistent(backend)

    @needs("operating")
    async def test_a_requeued_member_counts_as_open_again(self, backend: Backend) -> None:
        """The group was still open and ends with its last member."""
        root = await start_one(backend, item("root"))
        await apply(backend, succeed(root, item("a"), item("b")))
        leases = by_id(await claim(backend))
        await apply(backend, die(leases["a"]))
        await backend.requeue(["a"])
        assert await open_members(backend, "root") == 2
        assert (await apply(backend, succeed(leases["b"]))).effects.ended_groups == ()
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert [closed.id for closed in settled.effects.ended_groups] == ["root"]

    @needs("operating")
    async def test_requeue_removes_the_deadline(self, subject: Subject) -> None:
        """An expired item can run."""
        await submit(subject.backend, item("a", expires_in=50))
        await subject.advance(60)
        await apply(subject.backend, die(await doomed_lease(subject.backend)))
        await subject.backend.requeue(["a"])
        lease = await claim_one(subject.backend)
        assert (lease.verdict, lease.deadline) == (None, None)

    @needs("operating")
    async def test_a_requeued_item_has_all_its_attempts_again(self, backend: Backend) -> None:
        """Its failures are counted from 0."""
        await submit(backend, item("a", attempts=2))
        await apply(backend, retry(await claim_one(backend)))
        await apply(backend, die(await claim_one(backend)))
        assert (await state(backend, "a")).failures == 2
        await backend.requeue(["a"])
        lease = await claim_one(backend)
        assert (lease.attempt, lease.failures) == (1, 0)

    @needs("operating")
    async def test_losses_before_a_requeue_do_not_count(self, backend: Backend) -> None:
        """The next loss counts as the first one, without a wait."""
        await submit(backend, item("a"))
        await claim(backend, worker="w1")
        await backend.remove_worker("w1")
        await apply(backend, die(await claim_one(backend)))
        await backend.requeue(["a"])
        await claim(backend, worker="w2")
        await backend.remove_worker("w2")
        assert await status(backend, "a") == "ready"

    @needs("operating", "fencing")
    async def test_a_token_from_before_the_requeue_changes_nothing(self, backend: Backend) -> None:
        """The lease that ended the item cannot settle it again."""
        lease = await start_one(backend, item("a"))
        await apply(backend, die(lease))
        await backend.requeue(["a"])
        await settle_one(backend, succeed(lease))
        found = await state(backend, "a")
        assert (found.status, found.result) == ("ready", None)
        await consistent(backend)

    @needs("operating")
    async def test_requeue_accepts_a_filter(self, backend: Backend) -> None:
        """It requeues the dead items that match."""
        await end(backend, item("a", "mail"), item("b", "sms"), item("c", "mail", queue="bulk"), how=die)
        await end(backend, item("d", "mail"))
        changed = await backend.requeue(Filter(type="mail", queue="default"))
        assert [one.id for one in changed.items] == ["a"]
        changed = await backend.requeue(Filter(reason="aborted"))
        assert sorted(one.id for one in changed.items) == ["b", "c"]
        assert (await backend.requeue(Filter())).items == ()
        await consistent(backend)

    @needs("operating")
    async def test_requeue_by_filter_takes_the_oldest_up_to_the_limit(self, backend: Backend) -> None:
        """Five match, and two are requeued."""
        await end(backend, *(item(f"d{n}") for n in range(5)), how=die)
        changed = await backend.requeue(Filter(), limit=2)
        assert sorted(one.id for one in changed.items) == ["d0", "d1"]
        assert sorted(await claim_ids(backend)) == ["d0", "d1"]

    @needs("operating")
    async def test_redrives_are_counted_and_delayed(self, subject: Subject) -> None:
        """Only items with fewer redrives are requeued, due in `backoff * 2 ** times` seconds."""
        backend = subject.backend
        await submit(backend, item("a"))
        for wait in (100, 200, 400):
            await apply(backend, die(await claim_one(backend)))
            assert len((await backend.requeue(Filter(), redrives=3, backoff=100)).items) == 1
            found = await state(backend, "a")
            assert (found.status, found.attempt) == ("scheduled", 0)
            assert found.due_at == near(await backend.now() + wait)
            await subject.advance(wait + 1)
        await apply(backend, die(await claim_one(backend)))
        assert (await backend.requeue(Filter(), redrives=3, backoff=100)).items == ()
        assert (await backend.requeue(["a"], redrives=3, backoff=100)).items == ()
        assert await status(backend, "a") == "dead"

    @needs("operating")
    async def test_a_plain_requeue_resets_the_number_of_redrives(self, backend: Backend) -> None:
        """An operator decided, so the redrives start from 0."""
        await end(backend, item("a"), how=die)
        for _ in range(2):
            assert len((await backend.requeue(["a"], redrives=1)).items) == 1
            await apply(backend, die(await claim_one(backend)))
            assert (await backend.requeue(["a"], redrives=1)).items == ()
            await backend.requeue(["a"])
            await apply(backend, die(await claim_one(backend)))


class TriggerCases:
    @needs("operating")
    async def test_a_triggered_item_is_due_now(self, backend: Backend) -> None:
        """Whether it was delayed, retried or deferred. The answer shows the item as it was."""
        lease = await start_one(backend, item("a"))
        await apply(backend, retry(lease, 1000))
        await submit(backend, item("b", delay=1000))
        changed = await backend.trigger(["a", "b"])
        assert sorted((one.id, one.status) for one in changed.items) == [
            ("a", "scheduled"),
            ("b", "scheduled"),
        ]
        assert sorted(await claim_ids(backend)) == ["a", "b"]
        await consistent(backend)

    @needs("operating")
    async def test_trigger_changes_nothing_if_one_item_is_missing(self, backend: Backend) -> None:
        """`NotFound`."""
        await submit(backend, item("a", delay=1000))
        with pytest.raises(NotFound):
            await backend.trigger(["a", "missing"])
        assert await status(backend, "a") == "scheduled"
        assert await claim_ids(backend) == []

    @needs("operating")
    @pytest.mark.parametrize("which", ["ready", "blocked", "running", "success", "dead", "cancelled"])
    async def test_trigger_changes_nothing_if_one_item_is_not_scheduled(
        self, backend: Backend, which: str
    ) -> None:
        """`NotTriggerable` names its status."""
        await submit(backend, item("a", delay=1000))
        await start(backend, item("running"))
        await end(backend, item("success"))
        await end(backend, item("dead"), how=die)
        await end(backend, item("cancelled"), how=cancel)
        await submit(backend, item("ready"), dependent("x", id="blocked", delay=1000))
        with pytest.raises(NotTriggerable) as refusal:
            await backend.trigger(["a", which])
        assert (refusal.value.id, refusal.value.status) == (which, which)
        assert await status(backend, "a") == "scheduled"
        assert await claim_ids(backend) == ["ready"]

    @needs("operating")
    async def test_trigger_accepts_no_ids_and_repeated_ids(self, backend: Backend) -> None:
        """No ids change nothing. A repeated id is triggered once."""
        assert (await backend.trigger([])).items == ()
        await submit(backend, item("a", delay=1000))
        await backend.trigger(["a", "a"])
        assert await claim_ids(backend) == ["a"]

    @needs("operating")
    async def test_a_triggered_item_goes_behind_ready_items(self, backend: Backend) -> None:
        """It is due now, not earlier."""
        await submit(backend, item("a", delay=1000))
        await submit(backend, *items(2))
        await backend.trigger(["a"])
        assert (await claim_ids(backend))[-1] == "a"
