"""Group values: contributions, folds with compare-and-set, and how groups end."""

from __future__ import annotations

import asyncio

import pytest

from treadle.backend import Backend
from treadle.item import Contribution, Lease, Settlement

from .build import (
    abandon,
    apply,
    claim,
    claim_one,
    connections,
    contribute,
    die,
    doomed_lease,
    end,
    gate,
    group,
    item,
    only,
    settle,
    settle_one,
    start,
    start_one,
    status,
    submit,
    succeed,
)
from .check import consistent, recount
from .subject import Subject, needs


async def members(backend: Backend, count: int) -> list[Lease]:
    """So many running members of the group `root`, whose root has ended without a contribution."""
    root = await start_one(backend, item("root", "flow"))
    await apply(backend, succeed(root, *(item(f"m{n}") for n in range(count))))
    leases = await claim(backend, count)
    assert len(leases) == count
    return sorted(leases, key=lambda lease: int(lease.id[1:]))


class GroupValueCases:
    async def test_a_group_begins_without_a_value(self, backend: Backend) -> None:
        """Nobody contributed: no value, version 0; the type is the root's."""
        await submit(backend, item("root", "flow"))
        found = await group(backend, "root")
        assert (found.id, found.tenant, found.type, found.open) == ("root", "default", "flow", 1)
        assert (found.value, found.contributed, found.final, found.version) == (None, False, False, 0)
        assert (found.ended_at, found.failed) == (None, None)

    async def test_a_lone_item_is_a_group(self, backend: Backend) -> None:
        """Its end is the group's, its contribution the group's value."""
        lease = await start_one(backend, item("root", "flow"))
        settled = await apply(backend, contribute(lease, b"value"))
        closed = only(settled.effects.closed)
        assert (closed.id, closed.tenant, closed.value, closed.type) == ("root", "default", b"value", "flow")
        found = await group(backend, "root")
        assert (found.value, found.contributed, found.version, found.open) == (b"value", True, 1, 0)
        assert found.ended_at is not None
        await consistent(backend)

    async def test_a_contribution_without_a_value_is_the_result(self, backend: Backend) -> None:
        """`value` None: the item's own result."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, result=b"mine", contribution=Contribution()))
        assert (await group(backend, "root")).value == b"mine"

    async def test_an_empty_value_is_a_value(self, backend: Backend) -> None:
        """b"" was contributed; so was the result None."""
        first, second = await start(backend, item("a"), item("b"))
        nothing = succeed(second, result=None, contribution=Contribution())
        await apply(backend, contribute(first, b""), nothing)
        found = await group(backend, "a")
        assert (found.value, found.contributed) == (b"", True)
        found = await group(backend, "b")
        assert (found.value, found.contributed, found.version) == (None, True, 1)

    async def test_the_last_contribution_wins(self, backend: Backend) -> None:
        """In the order of settling, across calls and within one."""
        leases = await members(backend, 3)
        await apply(backend, contribute(leases[2], b"2"))
        assert (await group(backend, "root")).value == b"2"
        settled = await apply(backend, contribute(leases[1], b"1"), contribute(leases[0], b"0"))
        found = await group(backend, "root")
        assert (found.value, found.version) == (b"0", 3)
        assert only(settled.effects.closed).value == b"0"

    async def test_an_applied_contribution_says_the_new_value(self, backend: Backend) -> None:
        """Version and value as this contribution made them."""
        first, second = await members(backend, 2)
        settled = await apply(backend, contribute(first, b"a"), contribute(second, b"b"))
        assert [(outcome.version, outcome.value) for outcome in settled.outcomes] == [(1, b"a"), (2, b"b")]

    async def test_no_contribution_leaves_the_value(self, backend: Backend) -> None:
        """A success without one, a death, a cancellation: the value and version stay."""
        first, second, third, fourth = await members(backend, 4)
        await apply(backend, contribute(first, b"value"))
        await apply(backend, succeed(second), die(third), abandon(fourth))
        found = await group(backend, "root")
        assert (found.value, found.version, found.open) == (b"value", 1, 0)

    async def test_final_locks_the_value(self, backend: Backend) -> None:
        """Later contributions are ignored, and their settlements apply."""
        first, second, third = await members(backend, 3)
        await apply(backend, contribute(first, b"locked", final=True))
        await apply(backend, contribute(second, b"late"), contribute(third, b"later", final=True))
        found = await group(backend, "root")
        assert (found.value, found.final, found.version, found.open) == (b"locked", True, 1, 0)
        assert await status(backend, second.id) == "success"
        await consistent(backend)

    async def test_final_locks_within_a_call(self, backend: Backend) -> None:
        """Contributions are applied in the order of the settlements."""
        first, second, third = await members(backend, 3)
        batch = contribute(first, b"a"), contribute(second, b"b", final=True), contribute(third, b"c")
        settled = await apply(backend, *batch)
        assert only(settled.effects.closed).value == b"b"
        assert (await group(backend, "root")).version == 2

    async def test_a_failed_group_says_who_failed(self, backend: Backend) -> None:
        """`failed`: a dead member, else a cancelled one, once the group has ended."""
        first, second, third = await members(backend, 3)
        await apply(backend, abandon(first), die(second))
        assert (await group(backend, "root")).failed is None
        await apply(backend, succeed(third))
        failed = (await group(backend, "root")).failed
        assert failed is not None
        assert (failed.id, failed.status, failed.reason) == (second.id, "dead", "aborted")

    async def test_a_cancelled_group_says_so(self, backend: Backend) -> None:
        """Nobody dead, somebody cancelled."""
        await end(backend, item("a"), how=abandon)
        failed = (await group(backend, "a")).failed
        assert failed is not None
        assert (failed.id, failed.status) == ("a", "cancelled")

    async def test_the_id_of_a_member_is_not_a_group(self, backend: Backend) -> None:
        """Groups are named by their roots; what does not exist is None, in the order asked for."""
        await members(backend, 1)
        found = await backend.group(["m0", "root", "nobody"])
        assert [one and one.id for one in found] == [None, "root", None]
        assert list(await backend.group([])) == []


class GroupEndCases:
    async def test_a_group_ends_with_its_last_member(self, backend: Backend) -> None:
        """In the very step that ends it; not sooner."""
        leases = await members(backend, 3)
        for lease, left in zip(leases, (2, 1, 0), strict=True):
            settled = await apply(backend, succeed(lease))
            assert len(settled.effects.closed) == (left == 0)
            assert await recount(backend, "root") == left
        await consistent(backend)

    async def test_members_that_end_in_one_call_end_it_once(self, backend: Backend) -> None:
        """One ending, however many ended it."""
        leases = await members(backend, 5)
        settled = await apply(backend, *(succeed(lease) for lease in leases))
        assert [closed.id for closed in settled.effects.closed] == ["root"]

    async def test_a_member_that_queues_more_does_not_end_it(self, backend: Backend) -> None:
        """Children are counted in the step that ends their parent: the group is never empty between."""
        await submit(backend, item("root"))
        for n in range(5):
            settled = await apply(backend, succeed(await claim_one(backend), item(f"c{n}")))
            assert settled.effects.closed == ()
            assert await recount(backend, "root") == 1
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert [closed.id for closed in settled.effects.closed] == ["root"]

    async def test_a_group_does_not_end_while_a_member_is_blocked(self, backend: Backend) -> None:
        """Blocked, scheduled and doomed members hold it open."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, gate("x", id="doomed", need=2)))
        assert (await group(backend, "root")).ended_at is None
        settled = await apply(backend, die(await doomed_lease(backend)))
        assert [closed.id for closed in settled.effects.closed] == ["root"]

    async def test_a_group_without_a_value_ends_without_one(self, backend: Backend) -> None:
        """`Closed.value` is None if nobody contributed."""
        settled = await end(backend, item("root", "flow"))
        closed = only(settled.effects.closed)
        assert (closed.value, closed.type) == (None, "flow")

    async def test_groups_end_independently(self, backend: Backend) -> None:
        """Each with its own members, in one call."""
        leases = await start(backend, item("a"), item("b"), item("c"))
        settled = await apply(backend, succeed(leases[0]), succeed(leases[1], item("child")), die(leases[2]))
        assert sorted(closed.id for closed in settled.effects.closed) == ["a", "c"]
        await consistent(backend)


class FoldCases:
    @needs("folds")
    async def test_a_fold_of_the_right_version_applies(self, backend: Backend) -> None:
        """Every contribution that is applied raises the version by one."""
        first, second = await members(backend, 2)
        outcome = only((await apply(backend, contribute(first, b"1", version=0))).outcomes)
        assert (outcome.version, outcome.value) == (1, b"1")
        await apply(backend, contribute(second, b"2", version=1))
        found = await group(backend, "root")
        assert (found.version, found.value) == (2, b"2")

    @needs("folds")
    async def test_a_fold_of_another_version_has_moved(self, backend: Backend) -> None:
        """Refused with its whole settlement; the answer says what to fold from; the lease stands."""
        first, second = await members(backend, 2)
        await apply(backend, contribute(first, b"one"))
        fold = Settlement(
            lease=second, kind="success", contribution=Contribution(b"two", version=0), children=(item("c"),)
        )
        settled = await settle(backend, fold)
        outcome = only(settled.outcomes)
        assert (outcome.verb, outcome.version, outcome.value) == ("moved", 1, b"one")
        assert (outcome.final, outcome.again, settled.effects.closed) == (False, False, ())
        assert await status(backend, second.id) == "running"
        assert list(await backend.get(["c"])) == [None]
        await apply(backend, contribute(second, b"one two", version=outcome.version))
        assert (await group(backend, "root")).value == b"one two"
        await consistent(backend)

    @needs("folds")
    async def test_a_version_from_the_future_has_moved(self, backend: Backend) -> None:
        """Exactly this version, not at least."""
        lease = await start_one(backend, item("root"))
        outcome = await settle_one(backend, contribute(lease, b"x", version=1))
        assert (outcome.verb, outcome.version, outcome.value) == ("moved", 0, None)

    @needs("folds")
    async def test_folds_may_be_chained_in_one_call(self, backend: Backend) -> None:
        """Each sees the version that the one before it made; unconditional ones count too."""
        leases = await members(backend, 4)
        chain = [contribute(lease, b"%d" % n, version=n) for n, lease in enumerate(leases)]
        chain[1] = contribute(leases[1], b"any")
        settled = await apply(backend, *chain)
        assert [outcome.version for outcome in settled.outcomes] == [1, 2, 3, 4]
        assert only(settled.effects.closed).value == b"3"

    @needs("folds")
    async def test_a_fold_after_a_refused_one_has_moved(self, backend: Backend) -> None:
        """A chain breaks where it breaks; other groups and plain settlements are not touched."""
        leases = await members(backend, 4)
        other = await start_one(backend, item("other"))
        await apply(backend, contribute(leases[0], b"first"))
        settled = await settle(
            backend,
            contribute(leases[1], b"x", version=0),
            contribute(other, b"fine", version=0),
            contribute(leases[2], b"y", version=1 + 1),
            succeed(leases[3]),
        )
        assert [outcome.verb for outcome in settled.outcomes] == ["moved", "applied", "moved", "applied"]
        assert {outcome.version for outcome in settled.outcomes[::2]} == {1}
        assert (await group(backend, "root")).value == b"first"
        assert await recount(backend, "root") == 2
        await consistent(backend)

    @needs("folds")
    async def test_a_fold_after_a_refused_one_has_moved_whatever_its_version(self, backend: Backend) -> None:
        """It was computed from a value that did not come to be: its version may be right by chance."""
        leases = await members(backend, 3)
        await apply(backend, contribute(leases[0], b"first"))
        settled = await settle(
            backend, contribute(leases[1], b"x", version=7), contribute(leases[2], b"y", version=1)
        )
        assert [(outcome.verb, outcome.version) for outcome in settled.outcomes] == [("moved", 1)] * 2
        assert (await group(backend, "root")).value == b"first"

    @needs("folds")
    async def test_a_fold_into_a_locked_value_is_told_so(self, backend: Backend) -> None:
        """`moved` with `final`: contribute without a version, it will be ignored."""
        first, second, third = await members(backend, 3)
        await apply(backend, contribute(first, b"a"))
        await apply(backend, contribute(second, b"locked", final=True))
        outcome = await settle_one(backend, contribute(third, b"x", version=1))
        assert (outcome.verb, outcome.final, outcome.value) == ("moved", True, b"locked")
        await apply(backend, contribute(third, b"x"))
        assert (await group(backend, "root")).value == b"locked"

    @needs("folds")
    async def test_a_fold_never_changes_a_locked_value(self, backend: Backend) -> None:
        """Not even one of the right version."""
        first, second = await members(backend, 2)
        await apply(backend, contribute(first, b"locked", final=True))
        await settle(backend, contribute(second, b"x", version=1))
        found = await group(backend, "root")
        assert (found.value, found.version) == (b"locked", 1)

    @needs("folds")
    async def test_a_fold_that_locks(self, backend: Backend) -> None:
        """With `final`: fold, then lock."""
        first, second = await members(backend, 2)
        await apply(backend, contribute(first, b"one", final=True, version=0))
        await apply(backend, contribute(second, b"two"))
        found = await group(backend, "root")
        assert (found.value, found.final, found.version) == (b"one", True, 1)

    @needs("folds")
    async def test_a_repeated_fold_is_not_folded_twice(self, backend: Backend) -> None:
        """Its answer was lost: `again`, and not `moved`."""
        first, _ = await members(backend, 2)
        fold = contribute(first, b"1", version=0)
        await apply(backend, fold)
        outcome = await settle_one(backend, fold)
        assert (outcome.verb, outcome.again) == ("applied", True)
        assert (await group(backend, "root")).version == 1

    @needs("folds")
    async def test_a_stale_fold_is_stale(self, backend: Backend) -> None:
        """The fence comes first: a lost lease is not told to fold again."""
        lease = await start_one(backend, item("root"))
        await backend.cancel(["root"])
        assert (await settle_one(backend, contribute(lease, b"x", version=7))).verb == "stale"
        assert not (await group(backend, "root")).contributed

    @needs("folds")
    @pytest.mark.parametrize("connected", [1, 4])
    async def test_twenty_concurrent_appends_are_exact(self, subject: Subject, connected: int) -> None:
        """20 concurrent appends of 1 give 20, however often they have to fold again."""
        backends = await connections(subject, connected)
        leases = await members(subject.backend, 20)

        async def append(backend: Backend, lease: Lease) -> None:
            version, value = 0, None
            while True:
                total = int(value or b"0") + 1
                outcome = await settle_one(backend, contribute(lease, b"%d" % total, version=version))
                if outcome.verb == "applied":
                    return
                assert outcome.verb == "moved"
                version, value = outcome.version, outcome.value

        await asyncio.gather(*(append(backends[n % connected], lease) for n, lease in enumerate(leases)))
        found = await group(subject.backend, "root")
        assert (found.value, found.version, found.open) == (b"20", 20, 0)
        await consistent(subject.backend)
