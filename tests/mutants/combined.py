"""Bugs that show only where features meet: losses beside failures, lost items beside others, items that wait
in their worker."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.mutants.kit import Patch, mutant
from treadle.backends.memory import settle, transitions, workers
from treadle.engine.run import dispatch
from treadle.engine.run.attempt import AttemptRunner
from treadle.engine.run.bound_types import BoundTypes
from treadle.engine.run.isolation import Isolation
from treadle.store.rules.settlement import after_loss, put_back

# ---------------------------------------------------------------------------------------- losses and failures


def _after_loss(patch: Patch, **wrong: Any) -> None:
    """Change what the store makes of a lost item. A function gets what is right."""

    def spoiled(now: float, counters: Any, number: int, *, due: float, deadline: Any) -> Any:
        right = after_loss(now, counters, number, due=due, deadline=deadline)
        return right._replace(
            **{
                name: change(right, counters) if callable(change) else change
                for name, change in wrong.items()
            }
        )

    patch(transitions, "after_loss", spoiled)


@mutant("a loss counts as a failure")
def loss_is_failure(patch: Patch) -> None:
    _after_loss(patch, failures=lambda right, counters: right.failures + counters.begun)


@mutant("an item that lost its worker goes to the end of its line")
def loss_loses_place(patch: Patch) -> None:
    _after_loss(patch, keeps_place=False)


@mutant("an attempt that had not begun counts as a loss")
def unbegun_counts(patch: Patch) -> None:
    _after_loss(patch, losses=lambda right, counters: counters.losses + 1)


@mutant("losses are not counted")
def losses_not_counted(patch: Patch) -> None:
    _after_loss(patch, losses=lambda right, counters: counters.losses)


def _put_back(patch: Patch, kinds: tuple[str, ...], losses: Any) -> None:
    def spoiled(settlement: Any, now: float, counters: Any, *, due: float, deadline: Any) -> Any:
        right = put_back(settlement, now, counters, due=due, deadline=deadline)
        return right._replace(losses=losses(counters)) if settlement.kind in kinds else right

    patch(settle, "put_back", spoiled)


@mutant("a failure does not end a row of losses")
def losses_not_reset(patch: Patch) -> None:
    _put_back(patch, ("retry", "defer"), lambda counters: counters.losses)


@mutant("an item that is given back forgets its losses")
def release_resets_losses(patch: Patch) -> None:
    _put_back(patch, ("release",), lambda counters: 0)


@mutant("an item that kills its workers is tried for ever")
def losses_unbounded(patch: Patch) -> None:
    patch(dispatch, "is_lost_too_often", lambda lease, base: False)


@mutant("an item dies with its first lost worker")
def first_loss_kills(patch: Patch) -> None:
    patch(dispatch, "is_lost_too_often", lambda lease, base: lease.losses > 0)


# -------------------------------------------------------------------------------------------------- isolation


@mutant("a lost item runs beside all others")
def no_isolation(patch: Patch) -> None:
    patch(Isolation, "most_beside", lambda self, lease: float("inf"))


@mutant("a third loss isolates no more than the second")
def isolation_not_halved(patch: Patch) -> None:
    real = Isolation.most_beside

    def most_beside(self: Any, lease: Any) -> float:
        return real(self, replace(lease, losses=min(lease.losses, 2)))

    patch(Isolation, "most_beside", most_beside)


@mutant("items are claimed beside a lost one that runs")
def isolation_not_kept(patch: Patch) -> None:
    patch(Isolation, "admit", lambda self, leases: (list(leases), []))


# -------------------------------------------------------------------------------- items that wait in a worker


@mutant("the store is not told that an attempt begins")
def begin_not_told(patch: Patch) -> None:
    async def begin_in_store(self: Any, items: Any) -> Any:
        return items

    patch(AttemptRunner, "begin_in_store", begin_in_store)


@mutant("begin does not refuse a stale token")
def begin_unfenced(patch: Patch) -> None:
    real = workers.begin

    def begin(store: Any, leases: Any) -> Any:
        real(store, leases)
        return {}

    patch(workers, "begin", begin)


@mutant("items that wait for their batch count as begun")
def buffered_counts_as_begun(patch: Patch) -> None:
    real = BoundTypes.add

    def add(self: Any, type: Any) -> None:
        real(self, type)
        self.buffered = frozenset()

    patch(BoundTypes, "add", add)
