"""Failed groups: deaths that fail a group, deaths that are tolerated, and members that add no value."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.backend import Backend
from treadle.item import Contribution, Filter, Lease, Settlement
from treadle.store.rules.settlement import next_version

from .build import (
    apply,
    by_id,
    cancel,
    claim,
    claim_answer,
    claim_one,
    contribute,
    dependent,
    die,
    doomed_lease,
    end,
    group,
    item,
    settle,
    settle_one,
    start_one,
    state,
    submit,
    succeed,
)
from .check import consistent
from .subject import Subject, needs


async def start_group(backend: Backend, *children: Any) -> dict[str, Lease]:
    """Start the children of the group `root` that can run. The root has ended without a contribution."""
    await apply(backend, succeed(await start_one(backend, item("root")), *children))
    return by_id(await claim(backend))


async def deaths(backend: Backend, id: str = "root", tenant: str | None = None) -> list[str]:
    """The members whose deaths failed the group. The count must agree, as long as there are at most ten."""
    found = await group(backend, id, tenant)
    assert found.failed == len(found.deaths)
    return [one.id for one in found.deaths]


class FailedGroupCases:
    async def test_a_death_fails_the_group(self, backend: Backend) -> None:
        """It counts as soon as the member is dead, and is shown without history."""
        leases = await start_group(backend, item("a"), item("b"))
        assert await deaths(backend) == []
        await apply(backend, die(leases["a"]))
        found = await group(backend, "root")
        assert (found.open, found.failed, len(found.deaths)) == (1, 1, 1)
        dead = found.deaths[0]
        assert (dead.id, dead.status, dead.reason, dead.error) == ("a", "dead", "aborted", "Oops: no")
        assert dead.history == ()
        await apply(backend, contribute(leases["b"], b"value"))
        found = await group(backend, "root")
        assert (found.open, found.failed, found.value) == (0, 1, b"value")
        await consistent(backend)

    async def test_a_group_of_one_item_fails_with_it(self, backend: Backend) -> None:
        """A success and a cancellation fail nothing."""
        await end(backend, item("dead"), how=die)
        await end(backend, item("cancelled"), how=cancel)
        await end(backend, item("success"))
        assert await deaths(backend, "dead") == ["dead"]
        assert await deaths(backend, "cancelled") == []
        assert await deaths(backend, "success") == []
        ended = await backend.ended([], [("default", "dead")])
        assert ended.groups["default", "dead"].failed == 1

    async def test_a_root_that_dies_with_children_fails_its_group(self, backend: Backend) -> None:
        """Its compensation runs in the same group."""
        await apply(backend, die(await start_one(backend, item("root")), item("undo")))
        assert await deaths(backend) == ["root"]
        await apply(backend, succeed(await claim_one(backend)))
        assert await deaths(backend) == ["root"]
        await consistent(backend)

    async def test_the_first_ten_deaths_are_shown_in_their_order(self, subject: Subject) -> None:
        """`failed` counts all of them."""
        backend = subject.backend
        leases = await start_group(backend, *(item(f"m{n:02}") for n in range(12)))
        for n in reversed(range(12)):
            await subject.advance(1)
            await apply(backend, die(leases[f"m{n:02}"]))
        found = await group(backend, "root")
        assert found.failed == 12
        assert [one.id for one in found.deaths] == [f"m{n:02}" for n in reversed(range(2, 12))]
        await consistent(backend)

    async def test_a_dependent_that_dies_unsatisfiable_fails_the_group_too(self, subject: Subject) -> None:
        """It is a death like any other."""
        backend = subject.backend
        leases = await start_group(backend, item("a"), dependent("a", id="b"))
        await apply(backend, die(leases["a"]))
        await subject.advance(1)
        await apply(backend, die(await doomed_lease(backend)))
        assert await deaths(backend) == ["a", "b"]

    @pytest.mark.parametrize(
        ("fields", "tolerated"),
        [
            ({"counting": "done"}, True),
            ({"need": 1}, True),
            ({"need": 0}, True),
            ({"need": 1, "counting": "done"}, True),
            ({"need": 2}, False),
        ],
    )
    async def test_a_death_is_tolerated_if_a_dependent_would_run_all_the_same(
        self, backend: Backend, fields: dict[str, Any], tolerated: bool
    ) -> None:
        """It counts any end, or needs fewer than it names."""
        after = dependent("a", "b", id="after", **fields)
        leases = await start_group(backend, item("a"), item("b"), after)
        await apply(backend, die(leases["a"]))
        assert await deaths(backend) == ([] if tolerated else ["a"])
        await consistent(backend)

    async def test_one_tolerant_dependent_of_several_is_enough(self, backend: Backend) -> None:
        """Another dependent dies of it, which fails the group."""
        leases = await start_group(
            backend, item("a"), dependent("a", id="strict"), dependent("a", id="any", counting="done")
        )
        settled = await apply(backend, die(leases["a"]))
        assert [one.id for one in settled.effects.released] == ["any"]
        assert await deaths(backend) == []
        lease = only_verdict(await claim_all(backend))
        await apply(backend, die(lease))
        assert await deaths(backend) == ["strict"]

    @needs("operating")
    async def test_a_filter_selects_the_deaths_that_failed_groups(self, backend: Backend) -> None:
        """`list` and `requeue` take it. It holds for dead items alone."""
        any_end = dependent("tolerated", id="any", counting="done")
        leases = await start_group(
            backend, item("tolerated"), any_end, item("dead"), item("cancelled"), item("open")
        )
        await apply(backend, die(leases["tolerated"]), die(leases["dead"]), cancel(leases["cancelled"]))
        await end(backend, item("lone", type="other"), how=die)

        async def found(**fields: Any) -> list[str]:
            where = Filter(failed_group=True, **fields)
            return [one.id for one in (await backend.list(where, oldest_first=True)).items]

        assert await found() == ["dead", "lone"]
        assert await found(status=("dead",)) == ["dead", "lone"]
        assert await found(status=("dead", "cancelled", "ready")) == ["dead", "lone"]
        assert await found(status=("cancelled", "running")) == []
        assert await found(group_id="root") == ["dead"]
        assert await found(reason="aborted", type="other") == ["lone"]
        changed = await backend.requeue(Filter(failed_group=True), cancelled=True)
        assert sorted(one.id for one in changed.items) == ["dead", "lone"]
        assert await found() == []

    async def test_a_dependent_of_another_group_tolerates_a_death(self, backend: Backend) -> None:
        """Any item of the tenant does, and none of another tenant."""
        leases = await start_group(backend, item("a"), item("b"))
        await submit(backend, dependent("a", id="outside", counting="done"))
        await submit(backend, dependent("b", id="elsewhere", counting="done", tenant="other"))
        await apply(backend, die(leases["a"]), die(leases["b"]))
        assert await deaths(backend) == ["b"]

    async def test_a_dependent_that_was_released_before_tolerates_a_death(self, backend: Backend) -> None:
        """Also if it has ended meanwhile."""
        leases = await start_group(
            backend,
            *(item(id) for id in "abc"),
            dependent("a", "b", "c", id="first", need=1),
        )
        await apply(backend, succeed(leases["a"]))
        first = await claim_one(backend)
        await apply(backend, die(leases["b"]))
        assert await deaths(backend) == []
        await apply(backend, succeed(first))
        await apply(backend, die(leases["c"]))
        assert await deaths(backend) == []
        await consistent(backend)

    async def test_what_is_submitted_after_a_death_does_not_tolerate_it(self, backend: Backend) -> None:
        """It is decided when the member dies."""
        await end(backend, item("a"), how=die)
        await submit(backend, dependent("a", id="late", counting="done"))
        assert await deaths(backend, "a") == ["a"]

    @needs("operating")
    async def test_a_tolerant_dependent_that_was_cancelled_tolerates_a_death(self, backend: Backend) -> None:
        """It is still stored, and names the item."""
        leases = await start_group(backend, item("a"), dependent("a", id="any", counting="done"))
        await backend.cancel(["any"])
        await apply(backend, die(leases["a"]))
        assert await deaths(backend) == []

    @needs("operating")
    async def test_a_requeue_takes_a_death_back(self, backend: Backend) -> None:
        """If the member dies again, it counts again, and last."""
        leases = await start_group(backend, item("a"), item("b"))
        await apply(backend, die(leases["a"]))
        await apply(backend, die(leases["b"]))
        await backend.requeue(["a"])
        assert await deaths(backend) == ["b"]
        await apply(backend, succeed(await claim_one(backend)))
        assert await deaths(backend) == ["b"]
        await backend.requeue(["b"])
        assert await deaths(backend) == []
        await apply(backend, die(await claim_one(backend)))
        assert await deaths(backend) == ["b"]
        await consistent(backend)

    @needs("operating")
    async def test_a_requeue_of_a_group_of_one_item_takes_its_death_back(self, backend: Backend) -> None:
        """It dies, runs again with a child, and succeeds."""
        await end(backend, item("root"), how=die)
        await backend.requeue(["root"])
        assert await deaths(backend) == []
        await apply(backend, succeed(await claim_one(backend), item("child")))
        assert await deaths(backend) == []

    @needs("operating")
    async def test_a_death_that_was_tolerated_once_is_judged_again(self, backend: Backend) -> None:
        """The dependent was removed before the second death."""
        await submit(backend, item("a"))
        await submit(backend, dependent("a", id="any", counting="done"))
        await apply(backend, die(await claim_one(backend)))
        assert await deaths(backend, "a") == []
        await backend.cancel(["any"])
        await backend.requeue(["a"])
        await backend.delete(["any"])
        await apply(backend, die(await claim_one(backend)))
        assert await deaths(backend, "a") == ["a"]

    @needs("operating")
    async def test_a_pruned_member_has_failed_its_group_all_the_same(self, subject: Subject) -> None:
        """It is counted, and no longer shown."""
        backend = subject.backend
        leases = await start_group(backend, item("a", keep_dead=10), item("b"))
        await apply(backend, die(leases["a"]), succeed(leases["b"]))
        await subject.advance(20)
        assert await backend.prune() == 1
        found = await group(backend, "root")
        assert (found.failed, found.deaths) == (1, ())
        await consistent(backend)


async def claim_all(backend: Backend) -> list[Lease]:
    """Claim without a check for verdicts."""
    return list((await claim_answer(backend)).leases)


def only_verdict(leases: list[Lease]) -> Lease:
    """The only doomed item."""
    (found,) = (lease for lease in leases if lease.verdict is not None)
    return found


class ContributesCases:
    async def test_a_member_that_does_not_contribute_leaves_the_value(self, backend: Backend) -> None:
        """Its settlement applies, with its result. Value, version and `final` stay."""
        leases = await start_group(backend, item("a"), item("b", contributes=False))
        await apply(backend, contribute(leases["a"], b"value"))
        outcome = await settle_one(backend, contribute(leases["b"], b"other", final=True))
        assert (outcome.verb, outcome.version, outcome.value) == ("applied", 0, None)
        found = await group(backend, "root")
        version = next_version(leases["a"].token, None)
        assert (found.value, found.version, found.final, found.open) == (b"value", version, False, 0)
        assert (await state(backend, "b")).result == b"result"
        await consistent(backend)

    async def test_the_death_of_a_member_that_does_not_contribute_fails_no_group(
        self, backend: Backend
    ) -> None:
        """It is a compensation, or a compensation queued it: the death that it compensates has failed the
        group. Once that item has succeeded, nothing has failed."""
        leases = await start_group(backend, item("a"), item("b", contributes=False))
        await apply(backend, die(leases["b"]), contribute(leases["a"], b"value"))
        found = await group(backend, "root")
        assert (found.open, found.failed, found.deaths, found.value) == (0, 0, (), b"value")
        await consistent(backend)

    async def test_a_lone_item_that_does_not_contribute_has_no_value(self, backend: Backend) -> None:
        """Its own result is not the value of its group."""
        lease = await start_one(backend, item("a", contributes=False))
        settled = await apply(backend, succeed(lease, contribution=Contribution()))
        assert [closed.value for closed in settled.effects.ended_groups] == [None]
        found = await group(backend, "a")
        assert (found.contributed, found.version, found.value) == (False, 0, None)

    @needs("folds")
    async def test_a_fold_of_such_a_member_is_never_moved(self, backend: Backend) -> None:
        """It adds nothing, so its version does not matter. Folds of others go on."""
        leases = await start_group(backend, item("a"), item("b", contributes=False), item("c"))
        settled = await settle(
            backend,
            contribute(leases["a"], b"1", version=0),
            contribute(leases["b"], b"2", version=7),
            contribute(leases["c"], b"3", version=next_version(leases["a"].token, 0)),
        )
        assert [outcome.verb for outcome in settled.outcomes] == ["applied"] * 3
        found = await group(backend, "root")
        assert found.value == b"3"

    @needs("operating")
    async def test_complete_does_not_make_it_contribute(self, backend: Backend) -> None:
        """In a group, and alone."""
        leases = await start_group(backend, item("a"), item("b", contributes=False))
        await apply(backend, contribute(leases["a"], b"value"))
        changed = await backend.complete("b", b"other")
        assert [closed.value for closed in changed.effects.ended_groups] == [b"value"]
        await submit(backend, item("lone", contributes=False))
        await backend.complete("lone", b"result")
        assert not (await group(backend, "lone")).contributed
        assert (await state(backend, "lone")).result == b"result"

    async def test_its_children_contribute_unless_they_say_otherwise(self, backend: Backend) -> None:
        """The store does not pass it on. The engine does."""
        leases = await start_group(backend, item("a", contributes=False))
        await apply(
            backend,
            Settlement(lease=leases["a"], kind="dead", reason="aborted", children=(item("b"),)),
        )
        await apply(backend, contribute(await claim_one(backend), b"value"))
        assert (await group(backend, "root")).value == b"value"
