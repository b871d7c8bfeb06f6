"""Groups: contributions, folds with compare-and-set, and how groups end."""

from __future__ import annotations

import asyncio

import pytest

from treadle.backend import Backend
from treadle.item import Contribution, Lease, Settlement
from treadle.store.rules.settlement import next_version

from .build import (
    apply,
    cancel,
    claim,
    claim_one,
    connections,
    contribute,
    dependent,
    die,
    doomed_lease,
    end,
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
from .check import consistent, open_members
from .subject import Subject, needs


async def start_members(backend: Backend, count: int) -> list[Lease]:
    """Start `count` members of the group `root`. The root itself has ended without a contribution."""
    root = await start_one(backend, item("root", "flow"))
    await apply(backend, succeed(root, *(item(f"m{n}") for n in range(count))))
    leases = await claim(backend, count)
    assert len(leases) == count
    return sorted(leases, key=lambda lease: int(lease.id[1:]))


class GroupValueCases:
    async def test_a_new_group_has_no_value(self, backend: Backend) -> None:
        """No contribution yet: no value, version 0. The type is that of the root."""
        await submit(backend, item("root", "flow"))
        found = await group(backend, "root")
        assert (found.id, found.tenant, found.type, found.open) == ("root", "default", "flow", 1)
        assert (found.value, found.contributed, found.final, found.version) == (None, False, False, 0)
        assert (found.ended_at, found.failed, found.cancelled) == (None, 0, None)

    @needs("operating")
    async def test_the_end_of_a_group_tells_of_deaths(self, backend: Backend) -> None:
        """`failed`, if the backend gives it, is that of the group."""
        for how in (die, succeed):
            first, second = await start_members(backend, 2)
            await apply(backend, how(first))
            settled = await apply(backend, succeed(second))
            closed = only(settled.effects.ended_groups)
            found = await group(backend, closed.id)
            assert found.failed == (how is die)
            assert closed.failed in (None, found.failed)
            await backend.delete([closed.id], cascade=True)

    async def test_a_single_item_is_a_group(self, backend: Backend) -> None:
        """Its end is the end of the group, and its contribution is the value."""
        lease = await start_one(backend, item("root", "flow"))
        settled = await apply(backend, contribute(lease, b"value"))
        closed = only(settled.effects.ended_groups)
        assert (closed.id, closed.tenant, closed.value, closed.type) == ("root", "default", b"value", "flow")
        found = await group(backend, "root")
        assert (found.value, found.contributed, found.open) == (b"value", True, 0)
        assert found.version > 0
        assert found.ended_at is not None
        await consistent(backend)

    async def test_a_contribution_without_a_value_contributes_the_result(self, backend: Backend) -> None:
        """`value` None means the item's own result."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, result=b"mine", contribution=Contribution()))
        assert (await group(backend, "root")).value == b"mine"

    async def test_an_empty_value_counts_as_contributed(self, backend: Backend) -> None:
        """b"" is a contribution, and so is the result None."""
        first, second = await start(backend, item("a"), item("b"))
        nothing = succeed(second, result=None, contribution=Contribution())
        await apply(backend, contribute(first, b""), nothing)
        found = await group(backend, "a")
        assert (found.value, found.contributed) == (b"", True)
        found = await group(backend, "b")
        assert (found.value, found.contributed, found.version > 0) == (None, True, True)

    async def test_the_last_contribution_wins(self, backend: Backend) -> None:
        """The order of settling decides, across calls and within one."""
        leases = await start_members(backend, 3)
        await apply(backend, contribute(leases[2], b"2"))
        assert (await group(backend, "root")).value == b"2"
        settled = await apply(backend, contribute(leases[1], b"1"), contribute(leases[0], b"0"))
        found = await group(backend, "root")
        assert found.value == b"0"
        assert only(settled.effects.ended_groups).value == b"0"

    async def test_the_outcome_reports_the_new_value_and_version(self, backend: Backend) -> None:
        """Each outcome shows version and value as its own contribution made them."""
        first, second = await start_members(backend, 2)
        settled = await apply(backend, contribute(first, b"a"), contribute(second, b"b"))
        assert [(outcome.version, outcome.value) for outcome in settled.outcomes] == [
            (next_version(first.token, None), b"a"),
            (next_version(second.token, None), b"b"),
        ]
        assert (await group(backend, "root")).version == settled.outcomes[1].version

    async def test_ends_without_a_contribution_leave_the_value(self, backend: Backend) -> None:
        """A success without a contribution, a death and a cancellation leave value and version unchanged."""
        first, second, third, fourth = await start_members(backend, 4)
        await apply(backend, contribute(first, b"value"))
        version = (await group(backend, "root")).version
        await apply(backend, succeed(second), die(third), cancel(fourth))
        found = await group(backend, "root")
        assert (found.value, found.version, found.open) == (b"value", version, 0)

    async def test_final_locks_the_value(self, backend: Backend) -> None:
        """Later contributions are ignored, also results of members. Their settlements are applied."""
        first, second, third, fourth = await start_members(backend, 4)
        await apply(backend, contribute(first, b"locked", final=True))
        version = (await group(backend, "root")).version
        await apply(backend, contribute(second, b"late"), contribute(third, b"later", final=True))
        await apply(backend, contribute(fourth, None))
        found = await group(backend, "root")
        assert (found.value, found.final, found.version, found.open) == (b"locked", True, version, 0)
        assert await status(backend, second.id) == "success"
        await consistent(backend)

    async def test_a_final_contribution_locks_the_value_within_a_call(self, backend: Backend) -> None:
        """Contributions are applied in the order of the settlements."""
        first, second, third = await start_members(backend, 3)
        batch = contribute(first, b"a"), contribute(second, b"b", final=True), contribute(third, b"c")
        settled = await apply(backend, *batch)
        assert only(settled.effects.ended_groups).value == b"b"
        assert (await group(backend, "root")).version == next_version(second.token, None)

    async def test_an_ended_group_names_a_dead_and_a_cancelled_member(self, backend: Backend) -> None:
        """The cancelled member is shown once the group has ended."""
        first, second, third = await start_members(backend, 3)
        await apply(backend, cancel(first), die(second))
        assert not (await group(backend, "root")).cancelled
        await apply(backend, succeed(third))
        found = await group(backend, "root")
        failed = only(found.deaths)
        assert (failed.id, failed.status, failed.reason) == (second.id, "dead", "aborted")
        assert found.cancelled is not None
        assert found.cancelled.id == first.id

    async def test_a_group_of_one_item_names_it_if_it_is_cancelled(self, backend: Backend) -> None:
        """It is not counted as failed."""
        await end(backend, item("a"), how=cancel)
        found = await group(backend, "a")
        assert found.cancelled is not None
        assert (found.cancelled.id, found.failed, found.deaths) == ("a", 0, ())

    async def test_the_id_of_a_member_is_not_a_group_id(self, backend: Backend) -> None:
        """A group has the id of its root. Unknown ids give None, in the order of the request."""
        await start_members(backend, 1)
        found = await backend.group(["m0", "root", "missing"])
        assert [one and one.id for one in found] == [None, "root", None]
        assert list(await backend.group([])) == []


class GroupEndCases:
    async def test_a_group_ends_with_its_last_member(self, backend: Backend) -> None:
        """The group ends in the step that ends its last open member."""
        leases = await start_members(backend, 3)
        for lease, left in zip(leases, (2, 1, 0), strict=True):
            settled = await apply(backend, succeed(lease))
            assert len(settled.effects.ended_groups) == (left == 0)
            assert await open_members(backend, "root") == left
        await consistent(backend)

    async def test_members_that_end_in_one_call_end_the_group_once(self, backend: Backend) -> None:
        """Five members end in one call."""
        leases = await start_members(backend, 5)
        settled = await apply(backend, *(succeed(lease) for lease in leases))
        assert [closed.id for closed in settled.effects.ended_groups] == ["root"]

    async def test_a_member_that_queues_children_does_not_end_the_group(self, backend: Backend) -> None:
        """Children are counted in the step that ends their parent, so the group is never empty in between."""
        await submit(backend, item("root"))
        for n in range(5):
            settled = await apply(backend, succeed(await claim_one(backend), item(f"c{n}")))
            assert settled.effects.ended_groups == ()
            assert await open_members(backend, "root") == 1
        settled = await apply(backend, succeed(await claim_one(backend)))
        assert [closed.id for closed in settled.effects.ended_groups] == ["root"]

    async def test_a_group_does_not_end_while_a_member_is_blocked(self, backend: Backend) -> None:
        """Blocked, scheduled and doomed members keep it open."""
        lease = await start_one(backend, item("root"))
        await apply(backend, succeed(lease, dependent("x", id="doomed", need=2)))
        assert (await group(backend, "root")).ended_at is None
        settled = await apply(backend, die(await doomed_lease(backend)))
        assert [closed.id for closed in settled.effects.ended_groups] == ["root"]

    async def test_a_group_without_contributions_ends_with_value_none(self, backend: Backend) -> None:
        """The type in the effects is that of the root."""
        settled = await end(backend, item("root", "flow"))
        closed = only(settled.effects.ended_groups)
        assert (closed.value, closed.type) == (None, "flow")

    async def test_groups_end_independently(self, backend: Backend) -> None:
        """One call ends members of several groups."""
        leases = await start(backend, item("a"), item("b"), item("c"))
        settled = await apply(backend, succeed(leases[0]), succeed(leases[1], item("child")), die(leases[2]))
        assert sorted(closed.id for closed in settled.effects.ended_groups) == ["a", "c"]
        await consistent(backend)


class FoldCases:
    @needs("folds")
    async def test_a_fold_with_the_current_version_is_applied(self, backend: Backend) -> None:
        """Every applied contribution makes another version, which follows from its token."""
        first, second = await start_members(backend, 2)
        outcome = only((await apply(backend, contribute(first, b"1", version=0))).outcomes)
        assert (outcome.version, outcome.value) == (next_version(first.token, 0), b"1")
        await apply(backend, contribute(second, b"2", version=outcome.version))
        found = await group(backend, "root")
        assert (found.version, found.value) == (next_version(second.token, outcome.version), b"2")

    @needs("folds")
    async def test_a_fold_with_an_old_version_is_refused_as_moved(self, backend: Backend) -> None:
        """The whole settlement is refused. The answer shows the current value, and the lease stays valid."""
        first, second = await start_members(backend, 2)
        await apply(backend, contribute(first, b"one"))
        fold = Settlement(
            lease=second, kind="success", contribution=Contribution(b"two", version=0), children=(item("c"),)
        )
        settled = await settle(backend, fold)
        outcome = only(settled.outcomes)
        version = next_version(first.token, None)
        assert (outcome.verb, outcome.version, outcome.value) == ("moved", version, b"one")
        assert (outcome.final, outcome.again, settled.effects.ended_groups) == (False, False, ())
        assert await status(backend, second.id) == "running"
        assert list(await backend.get(["c"])) == [None]
        await apply(backend, contribute(second, b"one two", version=outcome.version))
        assert (await group(backend, "root")).value == b"one two"
        await consistent(backend)

    @needs("folds")
    async def test_a_fold_with_a_future_version_is_refused_as_moved(self, backend: Backend) -> None:
        """The version must match exactly."""
        lease = await start_one(backend, item("root"))
        outcome = await settle_one(backend, contribute(lease, b"x", version=1))
        assert (outcome.verb, outcome.version, outcome.value) == ("moved", 0, None)

    @needs("folds")
    async def test_folds_may_be_chained_in_one_call(self, backend: Backend) -> None:
        """Each fold sees the version that the one before it made. Plain contributions count too."""
        leases = await start_members(backend, 4)
        versions, chain = [0], [contribute(leases[0], b"0", version=0)]
        versions.append(next_version(leases[0].token, 0))
        chain.append(contribute(leases[1], b"any"))
        versions.append(next_version(leases[1].token, None))
        for n in (2, 3):
            chain.append(contribute(leases[n], b"%d" % n, version=versions[n]))
            versions.append(next_version(leases[n].token, versions[n]))
        settled = await apply(backend, *chain)
        assert [outcome.version for outcome in settled.outcomes] == versions[1:]
        assert only(settled.effects.ended_groups).value == b"3"

    @needs("folds")
    async def test_a_fold_after_a_refused_fold_is_refused(self, backend: Backend) -> None:
        """Other groups and settlements without a contribution are not affected."""
        leases = await start_members(backend, 4)
        other = await start_one(backend, item("other"))
        await apply(backend, contribute(leases[0], b"first"))
        settled = await settle(
            backend,
            contribute(leases[1], b"x", version=0),
            contribute(other, b"fine", version=0),
            contribute(leases[2], b"y", version=next_version(leases[1].token, 0)),
            succeed(leases[3]),
        )
        assert [outcome.verb for outcome in settled.outcomes] == ["moved", "applied", "moved", "applied"]
        assert {outcome.version for outcome in settled.outcomes[::2]} == {next_version(leases[0].token, None)}
        assert (await group(backend, "root")).value == b"first"
        assert await open_members(backend, "root") == 2
        await consistent(backend)

    @needs("folds")
    async def test_a_fold_after_a_refused_fold_is_refused_with_any_version(self, backend: Backend) -> None:
        """It was computed from a value that was never stored. Its version may match by chance."""
        leases = await start_members(backend, 3)
        await apply(backend, contribute(leases[0], b"first"))
        now = next_version(leases[0].token, None)
        settled = await settle(
            backend, contribute(leases[1], b"x", version=7), contribute(leases[2], b"y", version=now)
        )
        assert [(outcome.verb, outcome.version) for outcome in settled.outcomes] == [("moved", now)] * 2
        assert (await group(backend, "root")).value == b"first"

    @needs("folds")
    async def test_a_fold_into_a_final_value_is_refused_with_final(self, backend: Backend) -> None:
        """`moved` with `final`: contribute without a version, and it will be ignored."""
        first, second, third = await start_members(backend, 3)
        await apply(backend, contribute(first, b"a"))
        await apply(backend, contribute(second, b"locked", final=True))
        outcome = await settle_one(backend, contribute(third, b"x", version=1))
        assert (outcome.verb, outcome.final, outcome.value) == ("moved", True, b"locked")
        await apply(backend, contribute(third, b"x"))
        assert (await group(backend, "root")).value == b"locked"

    @needs("folds")
    async def test_a_fold_never_changes_a_final_value(self, backend: Backend) -> None:
        """Not even with the current version."""
        first, second = await start_members(backend, 2)
        await apply(backend, contribute(first, b"locked", final=True))
        version = next_version(first.token, None)
        await settle(backend, contribute(second, b"x", version=version))
        found = await group(backend, "root")
        assert (found.value, found.version) == (b"locked", version)

    @needs("folds")
    async def test_a_final_fold_is_applied_and_locks_the_value(self, backend: Backend) -> None:
        """Later contributions are ignored."""
        first, second = await start_members(backend, 2)
        await apply(backend, contribute(first, b"one", final=True, version=0))
        await apply(backend, contribute(second, b"two"))
        found = await group(backend, "root")
        assert (found.value, found.final, found.version) == (b"one", True, next_version(first.token, 0))

    @needs("folds")
    async def test_a_repeated_fold_is_applied_once(self, backend: Backend) -> None:
        """Its answer was lost: the outcome is `applied` with `again`, not `moved`."""
        first, _ = await start_members(backend, 2)
        fold = contribute(first, b"1", version=0)
        await apply(backend, fold)
        outcome = await settle_one(backend, fold)
        assert (outcome.verb, outcome.again) == ("applied", True)
        assert (await group(backend, "root")).version == next_version(first.token, 0)

    @needs("folds")
    async def test_a_fold_with_a_stale_token_is_stale(self, backend: Backend) -> None:
        """The token is checked first: a lost lease is not asked to fold again."""
        lease = await start_one(backend, item("root"))
        await backend.cancel(["root"])
        assert (await settle_one(backend, contribute(lease, b"x", version=7))).verb == "stale"
        assert not (await group(backend, "root")).contributed

    @needs("folds")
    @pytest.mark.parametrize("connected", [1, 4])
    async def test_twenty_concurrent_appends_are_exact(self, subject: Subject, connected: int) -> None:
        """20 concurrent appends of 1 give 20. A refused fold is computed again."""
        backends = await connections(subject, connected)
        leases = await start_members(subject.backend, 20)

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
        assert (found.value, found.open) == (b"20", 0)
        await consistent(subject.backend)
