"""Repair: a requeued item waits for its prerequisites again, and brings back what died because of it."""

from __future__ import annotations

from treadle.backend import Backend
from treadle.item import Filter, Item, Lease

from .build import (
    apply,
    by_id,
    claim,
    claim_answer,
    claim_ids,
    claim_one,
    contribute,
    dependent,
    die,
    doomed_lease,
    group,
    item,
    near,
    settle_one,
    start_one,
    state,
    statuses,
    submit,
    succeed,
)
from .check import consistent
from .subject import Subject, needs


async def kill(backend: Backend, *ids: str) -> list[str]:
    """Run all that can run, until nothing is left. The items with these ids die; the other items succeed.
    Return the ids of the successes, in their order."""
    done: list[str] = []
    while leases := (await claim_answer(backend)).leases:
        dying = [lease for lease in leases if lease.verdict or lease.id in ids]
        done += [lease.id for lease in leases if lease not in dying]
        await apply(backend, *(die(lease) if lease in dying else succeed(lease) for lease in leases))
    return done


async def run(backend: Backend) -> list[str]:
    """Run all that can run, until nothing is left. Nothing may be doomed. Return the ids in their order."""
    done: list[str] = []
    while leases := await claim(backend):
        await apply(backend, *(succeed(lease) for lease in leases))
        done += [lease.id for lease in leases]
    return done


async def requeue(backend: Backend, *ids: str, alone: bool = False, cancelled: bool = False) -> list[str]:
    """Requeue these items. Return the ids of all items that are open again, as the answer has them."""
    changed = await backend.requeue(ids, alone=alone, cancelled=cancelled)
    return [one.id for one in changed.items]


async def start_workflow(backend: Backend, *children: Item) -> Lease:
    """Store a workflow: the root `root` has ended, and its children are open."""
    root = await start_one(backend, item("root"))
    await apply(backend, succeed(root, *children))
    return root


class RepairCases:
    @needs("operating", "nested")
    async def test_a_repaired_workflow_runs_in_order(self, backend: Backend) -> None:
        """`charge` dies, and `email` with it. Once `charge` is requeued, `email` waits for it again."""
        await start_workflow(backend, item("charge"), dependent("charge", id="email"))
        assert await kill(backend, "charge") == []
        assert await statuses(backend, "charge", "email") == ["dead", "dead"]
        changed = await backend.requeue(["charge"])
        assert [(one.id, one.status, one.reason) for one in changed.items] == [
            ("charge", "dead", "aborted"),
            ("email", "dead", "unsatisfiable"),
        ]
        assert await statuses(backend, "charge", "email") == ["ready", "blocked"]
        found = await group(backend, "root")
        assert (found.open, found.failed, found.ended_at) == (2, 0, None)
        await consistent(backend)
        assert await run(backend) == ["charge", "email"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_group_that_is_repaired_ends_once_more(self, backend: Backend) -> None:
        """Not before the dependent that came back has ended."""
        await start_workflow(backend, item("charge"), dependent("charge", id="email"))
        await kill(backend, "charge")
        await requeue(backend, "charge")
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert settled.effects.ended_groups == ()
        assert [one.id for one in settled.effects.released] == ["email"]
        settled = await apply(backend, contribute(await claim_one(backend), b"sent"))
        assert [(one.id, one.value) for one in settled.effects.ended_groups] == [("root", b"sent")]

    @needs("operating", "nested")
    async def test_a_requeued_dependent_waits_for_what_is_open(self, backend: Backend) -> None:
        """Both are requeued, in either order. The dependent does not run before its prerequisite."""
        await submit(backend, item("charge"), dependent("charge", id="email"))
        for order in (["charge", "email"], ["email", "charge"]):
            await kill(backend, "charge")
            assert await requeue(backend, *order) == order
            assert await claim_ids(backend) == ["charge"]
            await backend.remove_worker("w")
            await consistent(backend)

    @needs("operating", "nested")
    async def test_an_item_that_cannot_run_stays_as_it_was(self, backend: Backend) -> None:
        """`charge` is dead, so `email` could only die again."""
        await submit(backend, item("charge"), dependent("charge", id="email"))
        await kill(backend, "charge")
        before = await state(backend, "email")
        assert await requeue(backend, "email") == []
        assert await state(backend, "email") == before
        assert (await backend.requeue(Filter(reason="unsatisfiable"))).items == ()
        assert await statuses(backend, "charge", "email") == ["dead", "dead"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_an_item_whose_prerequisites_are_met_runs_at_once(self, backend: Backend) -> None:
        """It had run before, and died of its own failure."""
        await submit(backend, item("charge"), dependent("charge", id="email"))
        assert await kill(backend, "email") == ["charge"]
        assert await requeue(backend, "email") == ["email"]
        assert await run(backend) == ["email"]

    @needs("operating", "nested")
    async def test_a_diamond_comes_back_as_a_whole(self, backend: Backend) -> None:
        """Each item runs exactly once."""
        await start_workflow(
            backend,
            item("top"),
            dependent("top", id="left"),
            dependent("top", id="right"),
            dependent("left", "right", id="bottom"),
        )
        await kill(backend, "top")
        assert (await group(backend, "root")).failed == 4
        opened = await requeue(backend, "top")
        assert (opened[0], sorted(opened)) == ("top", ["bottom", "left", "right", "top"])
        assert await statuses(backend, "top", "left", "right", "bottom") == ["ready", *["blocked"] * 3]
        done = await run(backend)
        assert (done[0], sorted(done[1:3]), done[3]) == ("top", ["left", "right"], "bottom")
        assert (await group(backend, "root")).failed == 0
        await consistent(backend)

    @needs("operating", "nested")
    async def test_half_a_diamond_stays_dead(self, backend: Backend) -> None:
        """Two prerequisites died. The dependent comes back when both are open or have succeeded."""
        await submit(backend, item("a"), item("b"), dependent("a", "b", id="c"), dependent("c", id="d"))
        await kill(backend, "a", "b")
        assert await requeue(backend, "a") == ["a"]
        assert await statuses(backend, "c", "d") == ["dead", "dead"]
        assert await run(backend) == ["a"]
        assert await requeue(backend, "b") == ["b", "c", "d"]
        assert await run(backend) == ["b", "c", "d"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_dependents_that_have_run_stay_ended(self, backend: Backend) -> None:
        """They count any end, or needed fewer. So do dependents that died of another reason."""
        await submit(
            backend,
            item("a"),
            item("ok"),
            dependent("a", id="any", counting="done"),
            dependent("a", "ok", id="one", need=1),
            dependent("a", id="failed", counting="done"),
        )
        await kill(backend, "a", "failed")
        assert await statuses(backend, "any", "one", "failed") == ["success", "success", "dead"]
        assert await requeue(backend, "a") == ["a"]
        assert await run(backend) == ["a"]

    @needs("operating", "nested")
    async def test_more_prerequisites_may_open_than_are_needed(self, backend: Backend) -> None:
        """The dependent needs one of three, and comes back once."""
        await submit(backend, *(item(id) for id in "abc"), dependent("a", "b", "c", id="one", need=1))
        await kill(backend, "a", "b", "c")
        assert await requeue(backend, "a", "b", "c") == ["a", "b", "c", "one"]
        settled = await apply(backend, *(succeed(lease) for lease in await claim(backend)))
        assert [one.id for one in settled.effects.released] == ["one"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_alone_leaves_dependents_dead(self, backend: Backend) -> None:
        """They can be requeued later, on their own."""
        await submit(backend, item("charge"), dependent("charge", id="email"), dependent("email", id="log"))
        await kill(backend, "charge")
        assert await requeue(backend, "charge", alone=True) == ["charge"]
        assert await run(backend) == ["charge"]
        assert await statuses(backend, "email", "log") == ["dead", "dead"]
        assert await requeue(backend, "email") == ["email", "log"]
        assert await run(backend) == ["email", "log"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_dependent_between_two_requeued_items_stays_dead_with_alone(
        self, backend: Backend
    ) -> None:
        """So the item behind it cannot run, and stays as it was."""
        await submit(backend, item("a"), dependent("a", id="b"), dependent("b", id="c"))
        await kill(backend, "a")
        assert await requeue(backend, "c", "a", alone=True) == ["a"]
        assert await statuses(backend, "b", "c") == ["dead", "dead"]
        await kill(backend, "a")
        assert await requeue(backend, "c", "a") == ["c", "a", "b"]
        assert await run(backend) == ["a", "b", "c"]

    @needs("operating", "nested")
    async def test_a_blocked_dependent_waits_again(self, backend: Backend) -> None:
        """The death did not count for it. It needs two of three, and one of those left died meanwhile."""
        await submit(backend, item("a"), item("b"), item("c"), dependent("a", "b", "c", id="most", need=2))
        leases = by_id(await claim(backend))
        await apply(backend, die(leases["a"]))
        await requeue(backend, "a")
        await apply(backend, die(leases["b"]))
        assert (await apply(backend, succeed(leases["c"]))).effects.released == ()
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert [one.id for one in settled.effects.released] == ["most"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_death_that_counted_stays_counted(self, backend: Backend) -> None:
        """The second end of the prerequisite is not counted."""
        await submit(backend, item("a"), item("b"), dependent("a", "b", id="any", counting="done"))
        leases = by_id(await claim(backend))
        await apply(backend, die(leases["a"]))
        await requeue(backend, "a")
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert settled.effects.released == ()
        settled = await apply(backend, succeed(leases["b"]))
        assert [one.id for one in settled.effects.released] == ["any"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_doomed_dependent_is_blocked_again(self, backend: Backend) -> None:
        """It has not been handed out yet. It had not ended, so the answer does not name it."""
        await submit(backend, item("a"), dependent("a", id="b", expires_in=1000))
        await apply(backend, die(await claim_one(backend)))
        assert await requeue(backend, "a") == ["a"]
        assert await statuses(backend, "a", "b") == ["ready", "blocked"]
        assert (await state(backend, "b")).deadline == near(await backend.now() + 1000)
        assert await run(backend) == ["a", "b"]
        await consistent(backend)

    @needs("operating", "nested", "fencing")
    async def test_a_lease_with_a_verdict_is_lost(self, backend: Backend) -> None:
        """The dependent was handed out to be ended, and its condition can be met again."""
        await submit(backend, item("a"), dependent("a", id="b"))
        await apply(backend, die(await claim_one(backend)))
        doomed = await doomed_lease(backend)
        await requeue(backend, "a")
        outcome = await settle_one(backend, die(doomed))
        assert (outcome.verb, outcome.loss) == ("stale", "taken")
        assert await run(backend) == ["a", "b"]
        await consistent(backend)

    @needs("operating", "nested")
    async def test_a_doomed_dependent_with_a_deadline_may_still_expire(self, subject: Subject) -> None:
        """It is blocked again, and its deadline counts."""
        backend = subject.backend
        await submit(backend, item("a"), dependent("a", id="b", expires_in=50))
        await apply(backend, die(await claim_one(backend)))
        await requeue(backend, "a")
        await subject.advance(60)
        leases = by_id((await claim_answer(backend)).leases)
        assert (leases["a"].verdict, leases["b"].verdict) == (None, "expired")
