"""Ids that are used again: nothing of what is gone is taken for what has its id now."""

from __future__ import annotations

from treadle.backend import Backend
from treadle.item import Lease

from .build import (
    apply,
    by_id,
    claim,
    contribute,
    group,
    item,
    only,
    settle_one,
    start_one,
    succeed,
)
from .check import consistent
from .subject import Subject, needs


async def start_two(backend: Backend) -> tuple[Lease, Lease]:
    """Start the members `a` and `b` of the group `root`."""
    root = await start_one(backend, item("root", keep=10.0))
    await apply(backend, succeed(root, item("a", keep=10.0), item("b", keep=10.0)))
    leases = by_id(await claim(backend, 2))
    return leases["a"], leases["b"]


class ReusedIdCases:
    @needs("folds", "operating")
    async def test_a_version_of_a_deleted_group_is_not_used_again(self, backend: Backend) -> None:
        """A fold from the value of the group that was deleted is refused."""
        first, _ = await start_two(backend)
        gone = only((await apply(backend, contribute(first, b"gone", version=0))).outcomes)
        await backend.delete(["root"], cascade=True)
        await _refuse_folds_from(backend, gone.version)

    @needs("folds", "operating")
    async def test_a_version_of_a_pruned_group_is_not_used_again(self, subject: Subject) -> None:
        """The same after the group was pruned."""
        backend = subject.backend
        first, second = await start_two(backend)
        gone = only((await apply(backend, contribute(first, b"gone", version=0))).outcomes)
        await apply(backend, succeed(second))
        await subject.advance(100)
        while await backend.prune(limit=100):
            pass
        assert list(await backend.group(["root"])) == [None]
        await _refuse_folds_from(backend, gone.version)

    @needs("folds", "operating")
    async def test_what_an_operator_completes_makes_a_version(self, backend: Backend) -> None:
        """No version stands for two values, of one group or of two with the same id."""
        versions: set[int] = set()
        for _ in range(2):
            _, second = await start_two(backend)
            await backend.complete("a", b"completed")
            found = await group(backend, "root")
            assert (found.value, found.version > 0) == (b"completed", True)
            versions.add(found.version)
            outcome = await settle_one(backend, contribute(second, b"x", version=0))
            assert (outcome.verb, outcome.version, outcome.value) == ("moved", found.version, b"completed")
            applied = await apply(backend, contribute(second, b"x", version=outcome.version))
            versions.add(only(applied.outcomes).version)
            await backend.delete(["root"])
        assert len(versions) == 4


async def _refuse_folds_from(backend: Backend, version: int) -> None:
    """Make `root` again, and fold from a value that is not its own."""
    first, second = await start_two(backend)
    new = only((await apply(backend, contribute(first, b"new", version=0))).outcomes)
    outcome = await settle_one(backend, contribute(second, b"gone, too", version=version))
    assert (outcome.verb, outcome.version, outcome.value) == ("moved", new.version, b"new")
    await apply(backend, contribute(second, b"new, too", version=outcome.version))
    assert (await group(backend, "root")).value == b"new, too"
    await consistent(backend)
