"""Requests of one call that affect each other, and calls of any size.

The settlements of one call are applied as if one after the other. The order is specified only for
contributions, ids and keys: the first one wins.
"""

from __future__ import annotations

import pytest

from treadle.backend import Backend
from treadle.item import Demand, Heartbeat, Rejected, Submission
from treadle.store.rules.settlement import next_version

from .build import (
    LEASE,
    apply,
    claim,
    claim_ids,
    claim_one,
    contribute,
    dependent,
    die,
    end,
    exists,
    group,
    item,
    items,
    only,
    release,
    settle,
    start,
    start_one,
    state,
    status,
    statuses,
    submit,
    submit_one,
    succeed,
    tells_in_parts,
    verdicts,
)
from .check import consistent, open_members
from .groups import start_members
from .subject import needs


class BatchedSettleCases:
    """Settlements of one call that affect each other."""

    async def test_a_child_may_wait_for_an_item_settled_earlier_in_the_call(self, backend: Backend) -> None:
        """That item has ended, so it counts at once."""
        first, second = await start(backend, item("p"), item("q"))
        settled = await apply(backend, succeed(first), succeed(second, dependent("p", id="next")))
        assert settled.effects.released == ()
        assert await status(backend, "next") == "ready"
        await consistent(backend)

    async def test_a_child_may_wait_for_an_item_settled_later_in_the_call(self, backend: Backend) -> None:
        """The child is released, or stored ready. Either way it is ready once."""
        first, second = await start(backend, item("p"), item("q"))
        settled = await apply(backend, succeed(second, dependent("p", id="next")), succeed(first))
        assert [released.id for released in settled.effects.released] in ([], ["next"])
        assert await status(backend, "next") == "ready"
        await consistent(backend)

    async def test_a_child_may_be_doomed_by_an_item_settled_later_in_the_call(self, backend: Backend) -> None:
        """That item dies, so the condition of the child cannot be met."""
        first, second = await start(backend, item("p"), item("q"))
        settled = await apply(backend, succeed(second, dependent("p", id="next")), die(first))
        assert settled.effects.released == ()
        assert await verdicts(backend) == {"next": "unsatisfiable"}

    async def test_children_of_two_settlements_may_wait_for_each_other(self, backend: Backend) -> None:
        """Across groups, in any order."""
        first, second = await start(backend, item("r1"), item("r2"))
        await apply(backend, succeed(first, dependent("b", id="a")), succeed(second, item("b")))
        found = await state(backend, "a")
        assert (found.status, found.waiting_for, found.group_id) == ("blocked", (), "r1")
        await apply(backend, succeed(await claim_one(backend)))
        assert await claim_ids(backend) == ["a"]
        await consistent(backend)

    async def test_a_cycle_through_two_settlements_is_rejected(self, backend: Backend) -> None:
        """The settlement that closes it is rejected, and its lease stays valid."""
        first, second = await start(backend, item("r1"), item("r2"))
        settled = await settle(
            backend, succeed(first, dependent("b", id="a")), succeed(second, dependent("a", id="b"))
        )
        assert [outcome.verb for outcome in settled.outcomes] == ["applied", "rejected"]
        rejected = settled.outcomes[1].rejected
        assert rejected is not None
        assert (rejected.why, sorted(rejected.ids)) == ("cycle", ["a", "b"])
        assert await statuses(backend, "r2", "a", "b") == ["running", "blocked", None]
        await consistent(backend)

    async def test_ids_and_keys_of_a_rejected_settlement_are_free(self, backend: Backend) -> None:
        """The next settlement of the call may use them."""
        await submit(backend, item("taken"))
        bad, good = await start(backend, item("r1"), item("r2"))
        settled = await settle(
            backend,
            succeed(bad, item("a"), item("b", key="k"), item("taken")),
            succeed(good, item("a"), item("c", key="k")),
        )
        assert [outcome.verb for outcome in settled.outcomes] == ["rejected", "applied"]
        assert not settled.outcomes[1].existing
        assert (await state(backend, "a")).group_id == "r2"
        assert (await submit_one(backend, item("d", key="k"))).id == "c"
        await consistent(backend)

    @needs("folds")
    async def test_ids_and_keys_of_a_moved_settlement_are_free(self, backend: Backend) -> None:
        """The settlement was refused because of its fold."""
        first, second = await start(backend, item("r1"), item("r2"))
        fold = contribute(first, b"x", version=9)
        moved = succeed(first, item("a", key="k"), contribution=fold.contribution)
        settled = await settle(backend, moved, succeed(second, item("a", key="k")))
        assert [outcome.verb for outcome in settled.outcomes] == ["moved", "applied"]
        assert (await state(backend, "a")).group_id == "r2"
        assert await open_members(backend, "r1") == 1
        await consistent(backend)

    async def test_a_child_takes_the_key_of_a_group_that_ended_earlier_in_the_call(
        self, backend: Backend
    ) -> None:
        """An earlier settlement of the call ended the holder's group: the child takes the key over."""
        holder, other = await start(backend, item("holder", key="k"), item("other"))
        settled = await apply(backend, succeed(holder), succeed(other, item("child", key="k")))
        assert not settled.outcomes[1].existing
        assert await status(backend, "child") == "ready"

    async def test_a_child_meets_the_key_of_a_group_that_ends_later_in_the_call(
        self, backend: Backend
    ) -> None:
        """Exactly one of two: the holder is returned, or the child takes the key over."""
        holder, other = await start(backend, item("holder", key="k"), item("other"))
        settled = await apply(backend, succeed(other, item("child", key="k")), succeed(holder))
        stored = await exists(backend, "child")
        assert (settled.outcomes[0].existing or {}) == ({} if stored else {"child": "holder"})
        answer = await submit_one(backend, item("later", key="k", key_scope="any"))
        assert answer.id == ("child" if stored else "holder")
        await consistent(backend)

    async def test_children_of_other_settlements_wait_for_the_id_as_written(self, backend: Backend) -> None:
        """Only siblings of a keyed child wait for the existing item instead."""
        await submit(backend, item("earlier", key="k"))
        first, second = await start(backend, item("r1"), item("r2"))
        await apply(
            backend,
            succeed(first, item("child", key="k"), dependent("child", id="x")),
            succeed(second, dependent("child", id="y")),
        )
        assert (await state(backend, "x")).after == ("earlier",)
        found = await state(backend, "y")
        assert (found.status, found.after, found.waiting_for) == ("blocked", ("child",), ("child",))
        await consistent(backend)

    async def test_two_deaths_doom_a_dependent_once(self, backend: Backend) -> None:
        """Effects count doomed items, not deaths."""
        leases = await start(backend, item("p"), item("q"))
        await submit(backend, dependent("p", "q", id="next"))
        assert (await apply(backend, *(die(lease) for lease in leases))).effects.doomed == 1
        assert await verdicts(backend) == {"next": "unsatisfiable"}

    async def test_a_death_and_a_success_in_one_call_are_both_counted(self, backend: Backend) -> None:
        """at_least(1) and all_done are released, all_success is doomed, each once."""
        first, second = await start(backend, item("p"), item("q"))
        await submit(backend, dependent("p", "q", id="one", need=1), dependent("p", "q", id="all"))
        await submit(backend, dependent("p", "q", id="done", counting="done"))
        effects = (await apply(backend, die(first), succeed(second))).effects
        assert sorted(released.id for released in effects.released) == ["done", "one"]
        assert effects.doomed == 1
        await consistent(backend)

    async def test_a_doomed_item_is_settled_with_its_prerequisite(self, backend: Backend) -> None:
        """A verdict and the end of another prerequisite share a call, in both orders."""
        first, second, third = await start(backend, item("p"), item("q"), item("r"))
        await submit(backend, dependent("p", "q", id="a"), dependent("p", "r", id="b"))
        await apply(backend, die(first))
        doomed = {lease.id: lease for lease in (await backend.claim(_verdicts_only())).leases}
        settled = await apply(backend, die(doomed["a"]), succeed(second), succeed(third), die(doomed["b"]))
        assert settled.effects.released == ()
        assert await statuses(backend, "a", "b", "q", "r") == ["dead", "dead", "success", "success"]
        await consistent(backend)

    @needs("folds")
    async def test_a_final_contribution_affects_later_settlements_of_the_call(self, backend: Backend) -> None:
        """A later fold is refused with `final`, a later plain contribution is ignored."""
        leases = await start_members(backend, 3)
        settled = await settle(
            backend,
            contribute(leases[0], b"locked", final=True),
            contribute(leases[1], b"fold", version=0),
            contribute(leases[2], b"plain"),
        )
        assert [outcome.verb for outcome in settled.outcomes] == ["applied", "moved", "applied"]
        moved = settled.outcomes[1]
        assert moved.version == next_version(leases[0].token, None)
        assert (moved.value, moved.final) == (b"locked", True)
        assert await open_members(backend, "root") == 1

    async def test_a_group_that_is_never_empty_does_not_end(self, backend: Backend) -> None:
        """A group ends only if it is empty after a settlement."""
        first, second = await start_members(backend, 2)
        settled = await apply(backend, succeed(first, item("x"), item("y")), succeed(second))
        assert settled.effects.ended_groups == ()
        assert await open_members(backend, "root") == 2

    async def test_settlements_of_every_kind_in_one_group_are_counted_exactly(self, backend: Backend) -> None:
        """The number of open members is exact."""
        leases = await start_members(backend, 6)
        settled = await apply(
            backend,
            succeed(leases[0], item("child")),
            die(leases[1], item("refund")),
            release(leases[2]),
            contribute(leases[3], b"v"),
            die(leases[4]),
            succeed(leases[5]),
        )
        assert settled.effects.ended_groups == ()
        assert await open_members(backend, "root") == 3
        await consistent(backend)


def _verdicts_only() -> Demand:
    return Demand(worker="w", limit=0)


class BatchedSubmitCases:
    """Submissions of one call that affect each other."""

    async def test_an_item_may_wait_for_a_later_submission_of_the_call(self, backend: Backend) -> None:
        """It names an id that comes later in the call."""
        answers = await backend.submit([Submission((dependent("x", id="a"),)), Submission((item("x"),))])
        assert not any(isinstance(answer, Rejected) for answer in answers)
        assert (await state(backend, "a")).waiting_for == ()
        await apply(backend, succeed(await claim_one(backend)))
        assert await claim_ids(backend) == ["a"]

    @needs("batches")
    async def test_ids_of_a_refused_submission_are_free(self, backend: Backend) -> None:
        """The next submission of the call may use them."""
        await submit(backend, item("taken"))
        bad, good = Submission((item("a"), item("taken"))), Submission((item("a"), item("b")))
        answers = await backend.submit([bad, good])
        assert [isinstance(answer, Rejected) for answer in answers] == [True, False]
        assert sorted(await claim_ids(backend)) == ["a", "b", "taken"]

    @needs("batches")
    async def test_dependencies_of_a_refused_submission_are_not_stored(self, backend: Backend) -> None:
        """They close no cycle and release nothing."""
        await submit(backend, item("taken"))
        bad = Submission((dependent("y", id="x"), item("taken")))
        refusal, answer = await backend.submit([bad, Submission((dependent("x", id="y"),))])
        assert isinstance(refusal, Rejected)
        assert not isinstance(answer, Rejected)
        assert answer[0].status == "blocked"
        settled = await end(backend, item("x"))
        assert [released.id for released in settled.effects.released] == ["y"]
        await consistent(backend)

    async def test_an_item_may_wait_for_the_key_of_an_earlier_submission(self, backend: Backend) -> None:
        """The existing item of one submission is the prerequisite in the next."""
        first = Submission((item("a", key="k"),))
        second = Submission((item("b", key="k"), dependent("b", id="next")))
        await backend.submit([first, second])
        assert (await state(backend, "next")).after == ("a",)
        assert await claim_ids(backend) == ["a"]

    async def test_prerequisites_of_every_status_are_counted(self, backend: Backend) -> None:
        """Ended, open, missing, and part of the same submission."""
        await end(backend, item("good"))
        await end(backend, item("bad"), how=die)
        await submit(backend, item("open"))
        names = ("good", "bad", "open", "missing", "new")
        await submit(
            backend, item("new"), dependent(*names, id="next", need=4), dependent(*names, id="more", need=5)
        )
        found = await state(backend, "next")
        assert (found.status, found.after, found.waiting_for) == ("blocked", names, ("missing",))
        assert await verdicts(backend) == {"more": "unsatisfiable"}
        await apply(backend, *(succeed(lease) for lease in await claim(backend)))
        assert await status(backend, "next") == "blocked"
        await end(backend, item("missing"))
        assert await claim_ids(backend) == ["next"]
        await consistent(backend)


class LargeCallCases:
    MANY = 5000

    async def test_reads_heartbeats_and_cancels_accept_thousands_of_names(self, backend: Backend) -> None:
        """5,000 missing names and 100 known ones."""
        leases = await start(backend, *items(100))
        names = [f"missing-{n}" for n in range(self.MANY)] + [lease.id for lease in leases]
        found = await backend.get(names)
        assert sum(one is not None for one in found) == 100
        assert sum(one is not None for one in await backend.group(names)) == 100
        refs = [("default", name) for name in names]
        missing = set((await backend.ended(refs, refs)).missing)
        while tells_in_parts(backend) and len(missing) < self.MANY:
            missing |= (await backend.ended(refs, refs)).missing
        assert len(missing) == self.MANY
        reply = await backend.beat(Heartbeat(worker="w", lease=LEASE, held=leases * 50))
        assert dict(reply.lost) == {}
        assert list(await backend.unknown_leases("w", [lease.token for lease in leases] * 50)) == []
        assert len((await backend.cancel(names)).items) == 100
        await consistent(backend)

    @needs("operating")
    async def test_requeue_and_delete_accept_thousands_of_names(self, backend: Backend) -> None:
        """5,000 missing names and five known ones."""
        await end(backend, *items(100), how=die)
        names = [f"missing-{n}" for n in range(self.MANY)] + [f"x{n}" for n in range(5)]
        await end(backend, *(item(f"x{n}") for n in range(5)), how=die)
        assert len((await backend.requeue(names)).items) == 5
        assert len((await backend.delete(names)).items) == 5
        await consistent(backend)

    async def test_an_item_may_wait_for_a_thousand_others(self, backend: Backend) -> None:
        """The last of them releases it, once."""
        names = [f"p{n}" for n in range(1000)]
        leases = await start(backend, *(item(name) for name in names))
        await submit(backend, dependent(*names, id="next"))
        assert (await apply(backend, *(succeed(lease) for lease in leases[1:]))).effects.released == ()
        settled = await apply(backend, succeed(leases[0]))
        assert [released.id for released in settled.effects.released] == ["next"]
        assert (await claim_one(backend)).after == tuple(names)

    async def test_one_call_may_hold_a_thousand_settlements_with_children(self, backend: Backend) -> None:
        """Each has a child and a dependent of that child."""
        leases = await start(backend, *(item(f"r{n}") for n in range(1000)))
        batch = [succeed(one, item(f"{one.id}a"), dependent(f"{one.id}a", id=f"{one.id}b")) for one in leases]
        assert (await apply(backend, *batch)).effects.ended_groups == ()
        children = await claim(backend, 2000)
        assert len(children) == 1000
        settled = await apply(backend, *(succeed(lease) for lease in children))
        assert len(settled.effects.released) == 1000
        settled = await apply(backend, *(succeed(lease) for lease in await claim(backend, 2000)))
        assert len(settled.effects.ended_groups) == 1000
        await consistent(backend)

    async def test_cancel_reaches_fifty_generations(self, backend: Backend) -> None:
        """From the ended root to the open descendants."""
        lease = await start_one(backend, item("g0"))
        for n in range(1, 50):
            await apply(backend, succeed(lease, item(f"g{n}"), item(f"side{n}")))
            lease = only(one for one in await claim(backend) if one.id == f"g{n}")
        changed = await backend.cancel(["g0"])
        assert len(changed.items) == 50
        assert (await group(backend, "g0")).open == 0
        await consistent(backend)

    @pytest.mark.parametrize("delay", [0.001, 1e6, 3e9])
    async def test_delays_from_a_millisecond_to_a_century_are_exact(
        self, backend: Backend, delay: float
    ) -> None:
        """A millisecond, eleven days, a century: `due_at` and `deadline` are exact."""
        await submit(backend, item("a", delay=delay, expires_in=2 * delay + 100))
        found = await state(backend, "a")
        assert found.due_at - found.queued_at == pytest.approx(delay, abs=0.0005)
        assert found.deadline == pytest.approx(found.queued_at + 2 * delay + 100, abs=0.0005)
