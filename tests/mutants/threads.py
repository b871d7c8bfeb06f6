"""Bugs of sync handlers, whose threads cannot be stopped, and of items that skip the queue."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tests.mutants.kit import Patch, mutant
from treadle.engine.run import decide
from treadle.engine.run.batch import Batches
from treadle.engine.run.handler_pools import POOLS, HandlerPools
from treadle.engine.run.held import HeldLease
from treadle.engine.run.runtime import Runtime
from treadle.store.rules.limits import SharedRooms

SHARED = "tests/engine/test_handler_pools.py::test_types_share_the_threads[memory]"
TIMEOUT = "tests/engine/test_handler_pools.py::test_a_timeout_does_not_count_the_wait_for_a_thread"


@mutant("a stopping worker gives back an item whose thread still runs")
def thread_given_back(patch: Patch) -> None:
    patch(HeldLease, "runs_in_thread", property(lambda self: False))


@mutant("a worker frees its leases and permits although a thread of it still runs")
def freed_while_thread_runs(patch: Patch) -> None:
    patch(Runtime, "has_left_threads", lambda self: False)


@mutant("a worker is removed before what its last threads returned is settled")
def removed_before_settled(patch: Patch) -> None:
    async def settle_nothing(self: Any) -> None: ...

    patch(Runtime, "settle_left", settle_nothing)


@mutant(
    "an item for which no thread could be started has failed", tests="tests/engine/test_thread_shortage.py"
)
def shortage_is_a_failure(patch: Patch) -> None:
    patch(decide, "ThreadNotStarted", type("OtherError", (Exception,), {}))


@mutant("an item skips the queue to a worker that does not serve its queue or tenant")
def skips_to_any_worker(patch: Patch) -> None:
    real = Runtime.offers

    def offers(self: Any, type: str, queue: str, tenant: str) -> Any:
        settings = self._worker
        return real(self, type, (settings.queues or (queue,))[0], (settings.tenants or (tenant,))[0])

    patch(Runtime, "offers", offers)


@mutant("each type is given the room of all threads", tests=SHARED)
def unshared_room(patch: Patch) -> None:
    def use(self: Any, type: str, rooms: Any) -> bool:
        return False

    patch(SharedRooms, "use", use)


@mutant("items on their way to a thread take no room", tests=SHARED)
def room_taken_late(patch: Patch) -> None:
    patch(Batches, "pool_rooms", lambda self, types: {name: self._runner.pools.room(name) for name in POOLS})


@mutant("a handler begins before there is a thread for it", tests=TIMEOUT)
def begins_without_thread(patch: Patch) -> None:
    patch(HandlerPools, "place", lambda self, run_in: nullcontext())
