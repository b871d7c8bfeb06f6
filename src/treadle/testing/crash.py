"""A worker that dies at a chosen point of an attempt, in a test.

    backend = FaultyBackend(MemoryBackend())
    async with run_inline(Treadle(backend, work=[charge])) as app:
        crash = crash_at(app, "returned")
        await app.enqueue(charge(5)).result()     # it ran twice: the first worker died before it could settle
        assert crash.hits == 1

The process goes on, of course. The store is told that the worker is dead, so all that it held is free, and
what it writes from then on is refused. That is what a store sees of a process that was killed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

from msgspec.structs import replace

from treadle.app import Treadle
from treadle.engine.registry import AnyType
from treadle.errors import InputError, LeaseLost
from treadle.item import Claim, Lease, Record, Settlement
from treadle.operate.operator import core_of

from .faults import Fault, FaultyBackend

CrashPoint: TypeAlias = Literal["claimed", "returned", "settled"]
"""`claimed`: it has the item, and its handler has not begun. `returned`: the handler has returned or raised,
and nothing of that is stored. `settled`: its outcome is stored, and nothing else was done."""

_POINTS: Final[tuple[str, ...]] = get_args(CrashPoint)
_VERBS: Final[dict[str, str]] = {"claimed": "claim", "returned": "settle", "settled": "settle"}
_AFTER_STEP: Final = "after_step:"


def crash_at(app: Treadle, point: CrashPoint | str, type: AnyType | None = None, *, times: int = 1) -> Fault:
    """Let the worker of an app die at this point, `times` times. It starts again at once. The app needs a
    `FaultyBackend`.

    point: `claimed`, `returned`, `settled`, or `after_step:` and the name of a step, which is recorded then.
    A wait is recorded when it suspends its item. type: only in an attempt of this type.

    A handler that opens `ctx.transaction()` loses its item when the transaction begins, and the transaction
    is rolled back: as if the process had died before its commit. `settled` is after its commit.

    Returns the fault: `hits` is how often the worker died, `await fault.reached()` waits for the first time.
    """
    backend = app.backend
    if not isinstance(backend, FaultyBackend):
        raise InputError(
            "crash_at needs an app on a FaultyBackend, as in Treadle(FaultyBackend(MemoryBackend())). The "
            "fixture treadle_crash_at makes one",
            parameters=("app",),
        )
    if point not in _POINTS and not point.startswith(_AFTER_STEP):
        raise InputError.of("point", point, f"must be one of {', '.join(_POINTS)}, {_AFTER_STEP}NAME")
    return backend.faults.add(_Crash(app, backend, point, type, times))


class _Crash(Fault):
    def __init__(
        self, app: Treadle, backend: FaultyBackend, point: str, type: AnyType | None, times: int
    ) -> None:
        super().__init__(_VERBS.get(point, "record"), _strike, times=times)
        self._app = app
        self._inner = backend.inner
        self._point = point
        self._step = point.removeprefix(_AFTER_STEP) if point.startswith(_AFTER_STEP) else None
        self._suspends = False
        self._names = None if type is None else {type.name, *type.aliases}

    def meets(self, verb: str, args: tuple[Any, ...]) -> bool:
        if self._left == 0 or self._point == "claimed":
            return False
        if self._step is not None:
            # A wait is recorded by the settlement that suspends its item.
            at = {"record": 0, "settle": 0, "commit": 1}.get(verb)
            written: Sequence[Record | Settlement] = () if at is None else args[at]
            self._suspends = verb == "settle"
            return self._concerns(one.lease for one in written if self._has_step(one)) and self._count()
        if verb == "begin" and not args and self._point == "returned":  # of a handler's transaction
            return self._concerns(self._app.active()) and self._count()
        # A handler's transaction settles its item: the outcome is stored when it has committed.
        settles = verb == "settle" or (verb == "commit" and self._point == "settled")
        leases = (settlement.lease for settlement in args[0]) if settles else ()
        return self._concerns(leases) and self._count()

    def _has_step(self, written: Record | Settlement) -> bool:
        return any(step.name == self._step for step in written.steps)

    def _concerns(self, leases: Iterable[Lease]) -> bool:
        return any(self._names is None or lease.type in self._names for lease in leases)

    def _count(self) -> bool:
        return super().meets(self._verb, ())

    async def settle(self, call: Callable[[], Awaitable[Any]]) -> Any:
        if self._point == "returned":
            await self._die()
            return await call()
        answer = await call()
        await self._die()
        if self._step is None or self._suspends:
            return answer
        if answer is None:  # the commit of a transaction: the process would not have learned of it
            raise LeaseLost(self._app.worker.id, "taken")
        return ["taken"] * len(answer)

    async def answered(self, verb: str, answer: Any) -> Any:
        """A claim may have been under way before this fault was made, so its answer is what counts."""
        if self._point != "claimed" or not isinstance(answer, Claim) or self._left == 0:
            return answer
        if not self._concerns(answer.leases):
            return answer
        self._count()
        await self._die()
        return replace(answer, leases=())

    async def _die(self) -> None:
        await self._inner.remove_worker(self._app.worker.id)
        core_of(self._app).wakeups.ready()


async def _strike(fault: Fault, call: Callable[[], Awaitable[Any]]) -> Any:
    assert isinstance(fault, _Crash)
    return await fault.settle(call)
