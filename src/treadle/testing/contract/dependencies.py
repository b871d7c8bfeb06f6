"""Dependencies: blocked items, how ends are counted, and when an item is released or doomed."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Lease

from .build import (
    apply,
    cancel,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    dependent,
    die,
    end,
    item,
    only,
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
from .subject import Subject, needs


async def start_pair(backend: Backend, **fields: Any) -> tuple[Lease, Lease]:
    """Start two prerequisites, `p` and `q`, and submit `next`, which waits for both."""
    first, second = await start(backend, item("p"), item("q"))
    await submit(backend, dependent("p", "q", id="next", **fields))
    return first, second


class DependencyCases:
    async def test_an_item_is_blocked_until_its_last_prerequisite_succeeds(self, backend: Backend) -> None:
        """all_success: `need` is the number of prerequisites. Reaching it releases the item."""
        first, second = await start_pair(backend)
        assert await status(backend, "next") == "blocked"
        assert (await apply(backend, succeed(first))).effects.released == ()
        assert await status(backend, "next") == "blocked"
        released = only((await apply(backend, succeed(second))).effects.released)
        assert (released.id, released.after) == ("next", ("p", "q"))
        assert await status(backend, "next") == "ready"
        lease = await claim_one(backend)
        assert (lease.id, lease.after, lease.attempt) == ("next", ("p", "q"), 1)
        await consistent(backend)

    async def test_items_that_one_end_releases_become_ready_by_age(self, backend: Backend) -> None:
        """However many there are."""
        first = await start_one(backend, item("p"))
        ids = [f"{n * 7919 % 50}" for n in range(50)]
        await submit(backend, *(dependent("p", id=id) for id in ids))
        await apply(backend, succeed(first))
        assert await claim_ids(backend, 50) == ids

    async def test_a_retry_does_not_count_as_an_end(self, backend: Backend) -> None:
        """Only ended prerequisites are counted."""
        first, second = await start_pair(backend, need=1, counting="done")
        await apply(backend, retry(first, 100), retry(second, 100))
        assert await status(backend, "next") == "blocked"

    async def test_prerequisites_that_end_in_one_call_release_once(self, backend: Backend) -> None:
        """Counted in one call or in two: released once."""
        first, second = await start_pair(backend)
        settled = await apply(backend, succeed(first), succeed(second))
        assert [released.id for released in settled.effects.released] == ["next"]
        assert await claim_ids(backend) == ["next"]

    async def test_effects_describe_the_released_item(self, backend: Backend) -> None:
        """Events and wake-ups are made from this description."""
        lease = await start_one(backend, item("p", tenant="acme"))
        await submit(backend, dependent("p", id="next", type="mail", tenant="acme", queue="bulk", parent="x"))
        released = only((await apply(backend, succeed(lease))).effects.released)
        assert (released.id, released.tenant, released.type) == ("next", "acme", "mail")
        assert (released.group_id, released.queue, released.parent) == ("next", "bulk", "x")
        assert released.after == ("p",)

    @pytest.mark.parametrize("how", [succeed, die, cancel])
    async def test_counting_done_counts_every_end(self, backend: Backend, how: Any) -> None:
        """all_done: dead and cancelled prerequisites count like successful ones."""
        first, second = await start_pair(backend, counting="done")
        await apply(backend, how(first))
        assert await status(backend, "next") == "blocked"
        await apply(backend, succeed(second))
        assert await claim_ids(backend) == ["next"]

    @pytest.mark.parametrize("how", [die, cancel])
    async def test_counting_success_counts_only_success(self, backend: Backend, how: Any) -> None:
        """all_success: a dead or cancelled prerequisite dooms the item, which stays `blocked`."""
        first, second = await start_pair(backend)
        settled = await apply(backend, how(first))
        assert (settled.effects.doomed, settled.effects.released) == (1, ())
        assert await status(backend, "next") == "blocked"
        assert await verdicts(backend) == {"next": "unsatisfiable"}
        await apply(backend, succeed(second))
        assert await claim_ids(backend) == []

    async def test_at_least_releases_once_at_the_threshold(self, backend: Backend) -> None:
        """The prerequisite that reaches `need` releases the item. Later ends change nothing."""
        leases = await start(backend, *(item(f"p{n}") for n in range(4)))
        await submit(backend, dependent(*(lease.id for lease in leases), id="next", need=2))
        assert (await apply(backend, die(leases[0]))).effects.released == ()
        assert (await apply(backend, succeed(leases[1]))).effects.released == ()
        released = (await apply(backend, succeed(leases[2]))).effects.released
        assert [one.id for one in released] == ["next"]
        assert (await apply(backend, succeed(leases[3]))).effects.released == ()
        assert await claim_ids(backend) == ["next"]
        await consistent(backend)

    async def test_at_least_is_doomed_when_too_few_are_left(self, backend: Backend) -> None:
        """The item is doomed as soon as `met + open < need`, and not before."""
        leases = await start(backend, *(item(f"p{n}") for n in range(4)))
        await submit(backend, dependent(*(lease.id for lease in leases), id="next", need=2))
        assert (await apply(backend, die(leases[0]), die(leases[1]))).effects.doomed == 0
        assert await verdicts(backend) == {}
        assert (await apply(backend, cancel(leases[2]))).effects.doomed == 1
        assert await verdicts(backend) == {"next": "unsatisfiable"}

    async def test_at_least_may_count_every_end(self, backend: Backend) -> None:
        """`need` and `counting` are independent."""
        first, second = await start_pair(backend, need=1, counting="done")
        assert len((await apply(backend, die(first))).effects.released) == 1
        assert (await apply(backend, succeed(second))).effects.released == ()

    async def test_ended_prerequisites_count_at_once(self, backend: Backend) -> None:
        """A prerequisite that ended before the dependent is submitted counts at once."""
        await end(backend, item("p"))
        assert (await submit_one(backend, dependent("p", id="all"))).status == "ready"
        assert (await submit_one(backend, dependent("p", "later", id="some"))).status == "blocked"
        await end(backend, item("later"))
        assert sorted(await claim_ids(backend)) == ["all", "some"]

    async def test_a_dead_prerequisite_dooms_at_once(self, backend: Backend) -> None:
        """The item is doomed when it is submitted. With `counting="done"` it is ready instead."""
        await end(backend, item("p"), how=die)
        assert (await submit_one(backend, dependent("p", id="success"))).status == "blocked"
        assert (await submit_one(backend, dependent("p", id="done", counting="done"))).status == "ready"
        leases = (await claim_answer(backend)).leases
        assert {lease.id: lease.verdict for lease in leases} == {"success": "unsatisfiable", "done": None}
        await consistent(backend)

    async def test_needing_more_prerequisites_than_named_dooms_the_item(self, backend: Backend) -> None:
        """`met + open < need` holds from the start."""
        await submit(backend, dependent("p", id="next", need=2))
        assert await verdicts(backend) == {"next": "unsatisfiable"}

    async def test_needing_no_prerequisite_makes_the_item_ready(self, backend: Backend) -> None:
        """`met >= need` holds from the start."""
        answer = await submit_one(backend, dependent("p", id="next", need=0))
        assert answer.status == "ready"
        assert (await claim_one(backend)).after == ("p",)

    async def test_items_of_one_submission_may_wait_for_each_other(self, backend: Backend) -> None:
        """Their order in the submission does not matter. A chain runs link by link."""
        await submit(backend, dependent("b", id="c"), item("a"), dependent("a", id="b"))
        for expected in ("a", "b", "c"):
            lease = await claim_one(backend)
            assert lease.id == expected
            await apply(backend, succeed(lease))
        await consistent(backend)

    async def test_a_prerequisite_may_be_submitted_later(self, backend: Backend) -> None:
        """An id that does not exist yet counts as open. `waiting_for` shows it until it is submitted."""
        await submit(backend, item("here"), dependent("here", "there", id="next"))
        found = await state(backend, "next")
        assert (found.after, found.waiting_for) == (("here", "there"), ("there",))
        await submit(backend, item("there"))
        assert (await state(backend, "next")).waiting_for == ()
        await apply(backend, *(succeed(lease) for lease in await claim(backend)))
        assert await claim_ids(backend) == ["next"]
        await consistent(backend)

    async def test_a_prerequisite_may_be_submitted_as_a_child(self, backend: Backend) -> None:
        """A settlement queues it."""
        await submit(backend, dependent("child", id="next"))
        await apply(backend, succeed(await start_one(backend, item()), item("child")))
        await apply(backend, succeed(await claim_one(backend)))
        assert await claim_ids(backend) == ["next"]

    async def test_a_prerequisite_is_not_confused_with_another_tenants_item(self, backend: Backend) -> None:
        """Both items have the same id and come in one submission."""
        await submit(backend, dependent("p", id="next"))
        await submit(backend, item("p"), item("p", tenant="acme"))
        await apply(backend, *[succeed(lease) for lease in await claim(backend)])
        assert await claim_ids(backend) == ["next"]
        await consistent(backend)

    async def test_an_item_waits_for_a_missing_prerequisite_until_its_deadline(
        self, subject: Subject
    ) -> None:
        """Without a deadline it waits for ever."""
        await submit(subject.backend, dependent("never", id="a"), dependent("never", id="b", expires_in=100))
        await subject.advance(50)
        assert await verdicts(subject.backend) == {}
        await subject.advance(51)
        assert await verdicts(subject.backend) == {"b": "expired"}
        assert await status(subject.backend, "a") == "blocked"

    @needs("order")
    async def test_a_released_item_goes_behind_ready_items(self, backend: Backend) -> None:
        """Time spent blocked gives no precedence."""
        lease = await start_one(backend, item("p"))
        await submit(backend, dependent("p", id="next"))
        await submit(backend, item("x"), item("y"))
        await apply(backend, succeed(lease))
        await submit(backend, item("z"))
        assert await claim_ids(backend) == ["x", "y", "next", "z"]

    async def test_an_item_released_before_it_is_due_is_scheduled(self, subject: Subject) -> None:
        """The delay counts from the submission."""
        lease = await start_one(subject.backend, item("p"))
        await submit(subject.backend, dependent("p", id="next", delay=100))
        await subject.advance(50)
        settled = await apply(subject.backend, succeed(lease))
        assert [released.id for released in settled.effects.released] == ["next"]
        assert await status(subject.backend, "next") == "scheduled"
        await subject.advance(51)
        assert await claim_ids(subject.backend) == ["next"]

    async def test_a_blocked_item_past_its_due_time_is_ready_when_released(self, subject: Subject) -> None:
        """It is not ready before its dependencies are met."""
        lease = await start_one(subject.backend, item("p"))
        answer = await submit_one(subject.backend, dependent("p", id="next", delay=100))
        assert answer.status == "blocked"
        await subject.advance(200)
        assert await claim_ids(subject.backend) == []
        await apply(subject.backend, succeed(lease))
        assert await status(subject.backend, "next") == "ready"

    async def test_one_end_releases_every_dependent(self, backend: Backend) -> None:
        """All dependents of one prerequisite are released in one step, each by its own condition."""
        lease = await start_one(backend, item("p"))
        await submit(
            backend, *(dependent("p", id=f"n{n}") for n in range(200)), dependent("p", "q", id="both")
        )
        settled = await apply(backend, succeed(lease))
        assert sorted(one.id for one in settled.effects.released) == sorted(f"n{n}" for n in range(200))
        assert await status(backend, "both") == "blocked"
        assert len(await claim(backend, 500)) == 200
        await consistent(backend)
