"""Bugs of items that wait in their worker: for a permit, for a batch, for their turn."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.mutants.kit import Patch, mutant
from treadle.engine.run.attempt import AttemptRunner
from treadle.engine.run.dispatch import Dispatcher


@mutant("a limit of one type holds back other types in the same lane")
def closed_lanes_merged(patch: Patch) -> None:
    real = Dispatcher.demand

    def demand(self: Any, fairness: object) -> Any:
        found = real(self, fairness)
        if found is None or not found.avoid:
            return found
        lanes = frozenset[Any]().union(*found.avoid.values())
        return replace(found, avoid=dict.fromkeys(found.types, lanes))

    patch(Dispatcher, "demand", demand)


@mutant("a stopping worker keeps the items that wait in it", tests="tests/engine/test_limits.py")
def waiting_kept_at_stop(patch: Patch) -> None:
    patch(Dispatcher, "give_back_waiting", lambda self: None)


@mutant("an item that waits in its worker is not told of its deadline")
def deadline_ignored_while_waiting(patch: Patch) -> None:
    real = AttemptRunner.watch_deadline

    def watch_deadline(self: Any, held: Any) -> None:
        if held.started:
            real(self, held)

    patch(AttemptRunner, "watch_deadline", watch_deadline)
    patch(AttemptRunner, "may_begin", lambda self, held: not held.over)
