"""Bugs of what operators see and do: each names the tests that find it."""

from __future__ import annotations

from typing import Any

from tests.mutants.kit import Patch, mutant
from treadle.backends.memory import fairness
from treadle.backends.sqlite import watch
from treadle.cli.change_items import BulkVerb
from treadle.engine.submit import build_children, enqueue
from treadle.logs import tracebacks
from treadle.operate.changes import CanaryEnd
from treadle.operate.why import meaning
from treadle.store import fleet
from treadle.store.fleet import Fleet

CONTRACT = "tests/backends/test_memory.py::TestContract::"

# ------------------------------------------------------------------------------------------------------- why


@mutant("the most binding reason comes last", tests="tests/unit/test_why.py")
def least_binding_first(patch: Patch) -> None:
    real = meaning.ready_reasons
    patch(meaning, "ready_reasons", lambda facts: real(facts)[::-1])


@mutant("a worker that is stopping counts as one that takes items", tests="tests/unit/test_fleet.py")
def stopping_takes(patch: Patch) -> None:
    real = Fleet.__init__

    def init(self: Any, workers: Any, now: float) -> None:
        real(self, workers, now)
        self.taking = self.live

    patch(Fleet, "__init__", init)


@mutant("a worker of other queues counts as one that could run an item", tests="tests/unit/test_fleet.py")
def any_queue_served(patch: Patch) -> None:
    real = fleet.serves

    def serves(worker: Any, *, type: Any = None, queue: Any = None, tenant: Any = None) -> bool:
        return real(worker, type=type, tenant=tenant)

    patch(fleet, "serves", serves)


# ------------------------------------------------------------------------------------------------- the store


@mutant(
    "an overview does not say which counts are estimates",
    tests="tests/backends/test_sqlite.py::TestSqlite::test_a_quick_look_says_which_counts_are_estimates",
)
def estimates_untold(patch: Patch) -> None:
    real = watch.shown_counts
    patch(watch, "shown_counts", lambda found, estimated=(): real(found))


@mutant("lanes that were avoided lose their turns", tests=f"{CONTRACT}test_avoided_lanes_keep_their_place")
def turns_lost(patch: Patch) -> None:
    def end(self: Any) -> None:
        for level, name in self._left_out:
            level.let_in(name)

    patch(fairness.FairOrder, "end", end)


@mutant("every message of an error is a mark of its own", tests="tests/unit/test_fingerprint.py")
def mark_of_message(patch: Patch) -> None:
    real = tracebacks.mark_of

    def mark_of(type: str, reason: Any, failure: Any, error: Any) -> str:
        return real(type + failure.message, reason, failure, error)

    patch(tracebacks, "mark_of", mark_of)


# ------------------------------------------------------------------------------------------- the command line


@mutant("a canary that fails lets the others follow", tests="tests/cli/test_dead.py")
def canary_ignored(patch: Patch) -> None:
    patch(CanaryEnd, "is_good", True)


@mutant("items that a verb does not fit are not skipped", tests="tests/cli/test_verbs.py")
def nothing_skipped(patch: Patch) -> None:
    patch(BulkVerb, "refusal", lambda self, item: None)


# --------------------------------------------------------------------------------- what items carry with them


@mutant("children do not inherit headers", tests="tests/engine/test_headers.py")
def headers_not_inherited(patch: Patch) -> None:
    patch(build_children, "add_headers", lambda inherited, own: own or {})


@mutant("headers={} inherits headers", tests="tests/engine/test_headers.py")
def headers_always_inherited(patch: Patch) -> None:
    patch(build_children, "add_headers", lambda inherited, own: {**inherited, **(own or {})})


@mutant("submits do not pass the middlewares", tests="tests/engine/test_submit_middleware.py")
def middleware_passed_by(patch: Patch) -> None:
    async def submit_through(middlewares: Any, items: Any, store: Any) -> None:
        await store()

    patch(enqueue, "submit_through", submit_through)
