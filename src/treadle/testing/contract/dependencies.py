"""Items that wait for others: counted, released, doomed."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Lease

from .build import (
    abandon,
    apply,
    ask,
    claim,
    claim_ids,
    claim_one,
    die,
    end,
    gate,
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


async def pair(backend: Backend, **fields: Any) -> tuple[Lease, Lease]:
    """Two running prerequisites, `p` and `q`, and `next`, which waits for both."""
    first, second = await start(backend, item("p"), item("q"))
    await submit(backend, gate("p", "q", id="next", **fields))
    return first, second


class DependencyCases:
    async def test_it_is_blocked_until_the_last_prerequisite_succeeds(self, backend: Backend) -> None:
        """all_success: `need` is all of them, counting success; the settlement that meets it releases it."""
        first, second = await pair(backend)
        assert await status(backend, "next") == "blocked"
        assert (await apply(backend, succeed(first))).effects.released == ()
        assert await status(backend, "next") == "blocked"
        released = only((await apply(backend, succeed(second))).effects.released)
        assert (released.id, released.after) == ("next", ("p", "q"))
        assert await status(backend, "next") == "ready"
        lease = await claim_one(backend)
        assert (lease.id, lease.after, lease.attempt) == ("next", ("p", "q"), 1)
        await consistent(backend)

    async def test_a_retry_is_not_an_end(self, backend: Backend) -> None:
        """Only what ends is counted."""
        first, second = await pair(backend, need=1, counting="done")
        await apply(backend, retry(first, 100), retry(second, 100))
        assert await status(backend, "next") == "blocked"

    async def test_both_prerequisites_end_in_one_call(self, backend: Backend) -> None:
        """Counted in one call or in two: released once."""
        first, second = await pair(backend)
        settled = await apply(backend, succeed(first), succeed(second))
        assert [released.id for released in settled.effects.released] == ["next"]
        assert await claim_ids(backend) == ["next"]

    async def test_what_is_released_says_who_it_is(self, backend: Backend) -> None:
        """Effects name the dependent, for events and wakes."""
        lease = await start_one(backend, item("p", tenant="acme"))
        await submit(backend, gate("p", id="next", type="mail", tenant="acme", queue="bulk", parent="x"))
        released = only((await apply(backend, succeed(lease))).effects.released)
        assert (released.id, released.tenant, released.type) == ("next", "acme", "mail")
        assert (released.group_id, released.queue, released.parent) == ("next", "bulk", "x")
        assert released.after == ("p",)

    @pytest.mark.parametrize("how", [succeed, die, abandon])
    async def test_done_counts_every_end(self, backend: Backend, how: Any) -> None:
        """all_done: `counting` done; dead and cancelled count like success."""
        first, second = await pair(backend, counting="done")
        await apply(backend, how(first))
        assert await status(backend, "next") == "blocked"
        await apply(backend, succeed(second))
        assert await claim_ids(backend) == ["next"]

    @pytest.mark.parametrize("how", [die, abandon])
    async def test_success_counts_success_only(self, backend: Backend, how: Any) -> None:
        """all_success: dead and cancelled do not count, so it is doomed, and keeps its status."""
        first, second = await pair(backend)
        settled = await apply(backend, how(first))
        assert (settled.effects.doomed, settled.effects.released) == (1, ())
        assert await status(backend, "next") == "blocked"
        assert await verdicts(backend) == {"next": "unsatisfiable"}
        await apply(backend, succeed(second))
        assert await claim_ids(backend) == []

    async def test_at_least_releases_at_the_threshold_once(self, backend: Backend) -> None:
        """`need` of many: the one that reaches it releases it, those that end later change nothing."""
        leases = await start(backend, *(item(f"p{n}") for n in range(4)))
        await submit(backend, gate(*(lease.id for lease in leases), id="next", need=2))
        assert (await apply(backend, die(leases[0]))).effects.released == ()
        assert (await apply(backend, succeed(leases[1]))).effects.released == ()
        released = (await apply(backend, succeed(leases[2]))).effects.released
        assert [one.id for one in released] == ["next"]
        assert (await apply(backend, succeed(leases[3]))).effects.released == ()
        assert await claim_ids(backend) == ["next"]
        await consistent(backend)

    async def test_at_least_is_doomed_when_too_few_are_left(self, backend: Backend) -> None:
        """`met + open < need`: no sooner, no later."""
        leases = await start(backend, *(item(f"p{n}") for n in range(4)))
        await submit(backend, gate(*(lease.id for lease in leases), id="next", need=2))
        assert (await apply(backend, die(leases[0]), die(leases[1]))).effects.doomed == 0
        assert await verdicts(backend) == {}
        assert (await apply(backend, abandon(leases[2]))).effects.doomed == 1
        assert await verdicts(backend) == {"next": "unsatisfiable"}

    async def test_at_least_of_done(self, backend: Backend) -> None:
        """`need` and `counting` are independent."""
        first, second = await pair(backend, need=1, counting="done")
        assert len((await apply(backend, die(first))).effects.released) == 1
        assert (await apply(backend, succeed(second))).effects.released == ()

    async def test_ended_prerequisites_count_at_once(self, backend: Backend) -> None:
        """One that has ended before the dependent is submitted counts at once."""
        await end(backend, item("p"))
        assert (await submit_one(backend, gate("p", id="all"))).status == "ready"
        assert (await submit_one(backend, gate("p", "later", id="some"))).status == "blocked"
        await end(backend, item("later"))
        assert sorted(await claim_ids(backend)) == ["all", "some"]

    async def test_a_dead_prerequisite_dooms_at_once(self, backend: Backend) -> None:
        """Doomed at once if its gate cannot be met any more; with `done` it is met."""
        await end(backend, item("p"), how=die)
        assert (await submit_one(backend, gate("p", id="success"))).status == "blocked"
        assert (await submit_one(backend, gate("p", id="done", counting="done"))).status == "ready"
        leases = (await ask(backend)).leases
        assert {lease.id: lease.verdict for lease in leases} == {"success": "unsatisfiable", "done": None}
        await consistent(backend)

    async def test_a_gate_that_needs_more_than_there_is_is_doomed(self, backend: Backend) -> None:
        """`met + open < need` holds from the start."""
        await submit(backend, gate("p", id="next", need=2))
        assert await verdicts(backend) == {"next": "unsatisfiable"}

    async def test_a_gate_that_needs_nothing_is_open(self, backend: Backend) -> None:
        """`met >= need` holds from the start."""
        answer = await submit_one(backend, gate("p", id="next", need=0))
        assert answer.status == "ready"
        assert (await claim_one(backend)).after == ("p",)

    async def test_items_of_one_submission_wait_for_each_other(self, backend: Backend) -> None:
        """In any order; a chain is walked link by link."""
        await submit(backend, gate("b", id="c"), item("a"), gate("a", id="b"))
        for expected in ("a", "b", "c"):
            lease = await claim_one(backend)
            assert lease.id == expected
            await apply(backend, succeed(lease))
        await consistent(backend)

    async def test_a_prerequisite_may_come_later(self, backend: Backend) -> None:
        """One that does not exist yet is open; `waiting_for` shows it until it is submitted."""
        await submit(backend, item("here"), gate("here", "there", id="next"))
        found = await state(backend, "next")
        assert (found.after, found.waiting_for) == (("here", "there"), ("there",))
        await submit(backend, item("there"))
        assert (await state(backend, "next")).waiting_for == ()
        await apply(backend, *(succeed(lease) for lease in await claim(backend)))
        assert await claim_ids(backend) == ["next"]
        await consistent(backend)

    async def test_a_prerequisite_may_come_as_a_child(self, backend: Backend) -> None:
        """The same when a settlement queues it."""
        await submit(backend, gate("child", id="next"))
        await apply(backend, succeed(await start_one(backend, item()), item("child")))
        await apply(backend, succeed(await claim_one(backend)))
        assert await claim_ids(backend) == ["next"]

    async def test_a_prerequisite_that_comes_with_its_namesake(self, backend: Backend) -> None:
        """Of another tenant, in one submission."""
        await submit(backend, gate("p", id="next"))
        await submit(backend, item("p"), item("p", tenant="acme"))
        await apply(backend, *[succeed(lease) for lease in await claim(backend)])
        assert await claim_ids(backend) == ["next"]
        await consistent(backend)

    async def test_a_prerequisite_that_never_comes(self, subject: Subject) -> None:
        """It waits, until its deadline if it has one."""
        await submit(subject.backend, gate("never", id="a"), gate("never", id="b", expires_in=100))
        await subject.advance(50)
        assert await verdicts(subject.backend) == {}
        await subject.advance(51)
        assert await verdicts(subject.backend) == {"b": "expired"}
        assert await status(subject.backend, "a") == "blocked"

    @needs("order")
    async def test_the_released_go_to_the_end_of_the_line(self, backend: Backend) -> None:
        """Having waited blocked makes nobody older."""
        lease = await start_one(backend, item("p"))
        await submit(backend, gate("p", id="next"))
        await submit(backend, item("x"), item("y"))
        await apply(backend, succeed(lease))
        await submit(backend, item("z"))
        assert await claim_ids(backend) == ["x", "y", "next", "z"]

    async def test_a_schedule_survives_the_release(self, subject: Subject) -> None:
        """Released before it is due: scheduled. The delay counts from the submission."""
        lease = await start_one(subject.backend, item("p"))
        await submit(subject.backend, gate("p", id="next", delay=100))
        await subject.advance(50)
        settled = await apply(subject.backend, succeed(lease))
        assert [released.id for released in settled.effects.released] == ["next"]
        assert await status(subject.backend, "next") == "scheduled"
        await subject.advance(51)
        assert await claim_ids(subject.backend) == ["next"]

    async def test_blocked_beyond_its_time(self, subject: Subject) -> None:
        """Due while blocked: not ready before the gate is met, and at once when it is."""
        lease = await start_one(subject.backend, item("p"))
        answer = await submit_one(subject.backend, gate("p", id="next", delay=100))
        assert answer.status == "blocked"
        await subject.advance(200)
        assert await claim_ids(subject.backend) == []
        await apply(subject.backend, succeed(lease))
        assert await status(subject.backend, "next") == "ready"

    async def test_one_end_releases_many(self, backend: Backend) -> None:
        """All dependents of one prerequisite, in one step, each with its own gate."""
        lease = await start_one(backend, item("p"))
        await submit(backend, *(gate("p", id=f"n{n}") for n in range(200)), gate("p", "q", id="both"))
        settled = await apply(backend, succeed(lease))
        assert sorted(one.id for one in settled.effects.released) == sorted(f"n{n}" for n in range(200))
        assert await status(backend, "both") == "blocked"
        assert len(await claim(backend, 500)) == 200
        await consistent(backend)
