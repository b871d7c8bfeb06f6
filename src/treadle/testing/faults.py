"""A store that fails when a test says so.

    backend = FaultyBackend(MemoryBackend())
    async with Treadle(backend, work=[add]) as app:
        lost = backend.faults.fail("settle", when="after")      # it is settled, and the answer is lost
        assert await app.enqueue(add(1, 2)).result() == 3
        assert lost.hits == 1

Faults strike in the order in which they were set. At most one strikes a call. A fault names a verb of
`Backend`, a step of a transaction (`begin`, `settle_within`, `submit_within`,
`get_within`, `claim_key_within`, `commit`), `heartbeat_connection` for the
heartbeats of a blocked worker, or `*` for all of them except `close`, which needs no store. `match` is
called with the positional arguments of the call; for `commit`, with the settlements of the transaction.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypeVar

from treadle.backend import Backend
from treadle.base.wording import did_you_mean
from treadle.errors import StoreUnavailable
from treadle.ports import PubSub, Queue, Store

from .wrap import VERBS, WrappedBackend

T = TypeVar("T")

PORT_VERBS: frozenset[str] = frozenset(
    name for port in (Queue, PubSub, Store) for name in vars(port) if not name.startswith("_")
) | {"dead_letter", "size", "swap"}
"""The methods of all ports, including the optional ones."""

When: TypeAlias = Literal["before", "after", "later"]
Match: TypeAlias = Callable[..., bool]


class Fault:
    """What goes wrong with calls of a verb. `hits` is the number of calls it struck."""

    def __init__(
        self, verb: str, strike: Strike, *, times: int | None = 1, skip: int = 0, match: Match | None = None
    ) -> None:
        known = sorted(VERBS | PORT_VERBS)
        if verb not in known and verb != "*":
            hint = did_you_mean(verb, known, f"there are *, {', '.join(known)}")
            raise ValueError(f"neither a backend nor a port has the verb {verb!r}: {hint}")
        self._verb = verb
        self._strike = strike
        self._left = times
        self._skip = skip
        self._match = match
        self._struck = asyncio.Event()
        self._go = asyncio.Event()
        self._late: set[asyncio.Future[Any]] = set()
        self.hits = 0

    def meets(self, verb: str, args: tuple[Any, ...]) -> bool:
        """Return whether the fault strikes this call, and count it."""
        named = self._verb == verb or (self._verb == "*" and verb != "close")
        if self._left == 0 or not named:
            return False
        if self._match is not None and not self._match(*args):
            return False
        if self._skip > 0:
            self._skip -= 1
            return False
        self.hits += 1
        self._left = None if self._left is None else self._left - 1
        self._struck.set()
        return True

    async def strike(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return await self._strike(self, call)

    async def answered(self, verb: str, answer: Any) -> Any:
        """Called with the answer to each call that was carried out. Return it, or another one."""
        return answer

    async def reached(self) -> None:
        """Return when it has struck."""
        await self._struck.wait()

    def release(self) -> None:
        """Let the calls go on that it holds back, and those to come."""
        self._go.set()

    async def released(self) -> None:
        await self._go.wait()

    def add_late(self, late: asyncio.Future[Any]) -> None:
        self._late.add(late)

    async def landed(self) -> None:
        """Return when the calls that were to happen `later` have happened."""
        await asyncio.gather(*self._late, return_exceptions=True)

    def end(self) -> None:
        """Strike no more calls, and release those that it holds back."""
        self._left = 0
        self._go.set()


Strike: TypeAlias = Callable[[Fault, Callable[[], Awaitable[Any]]], Awaitable[Any]]


class Faults:
    """The faults of a test. Each method adds one and returns it."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def fail(
        self,
        verb: str,
        *,
        when: When = "before",
        error: Callable[[], BaseException] | None = None,
        times: int | None = 1,
        skip: int = 0,
        match: Match | None = None,
    ) -> Fault:
        """Raise `error` (default: `StoreUnavailable`) from `times` calls (None: from all), after `skip` calls
        have passed.

        when: `before`: the request is lost. `after`: it is carried out, and the answer is lost. `later`: the
        caller gets the error at once, and the request is carried out when the fault is `release`d.
        """
        raising = error or (lambda: StoreUnavailable(f"fault injected: {verb}, {when}"))
        strike = {"before": _before, "after": _after, "later": _later}[when](raising)
        return self._add(verb, strike, times=times, skip=skip, match=match)

    def hold(
        self,
        verb: str,
        *,
        when: Literal["before", "after"] = "before",
        times: int | None = 1,
        skip: int = 0,
        match: Match | None = None,
    ) -> Fault:
        """Hold calls back until the fault is `release`d: before they are carried out, or after, with the
        answer."""
        return self._add(
            verb, _hold_before if when == "before" else _hold_after, times=times, skip=skip, match=match
        )

    def repeat(self, verb: str, *, times: int | None = 1, skip: int = 0, match: Match | None = None) -> Fault:
        """Carry calls out twice, like a network that repeats a request. The second answer is returned."""
        return self._add(verb, _twice, times=times, skip=skip, match=match)

    def drop(self, verb: Literal["publish"] = "publish", *, times: int | None = None) -> Fault:
        """Lose wake-ups without an error."""
        return self._add(verb, _dropped, times=times)

    @contextmanager
    def outage(self) -> Generator[Fault]:
        """Inside the block every call fails: the store is away."""
        away = _before(lambda: StoreUnavailable("fault injected: the store is away"))
        fault = self._add("*", away, times=None, first=True)
        try:
            yield fault
        finally:
            fault.end()

    def clear(self) -> None:
        """End all faults."""
        for fault in self._faults:
            fault.end()
        self._faults.clear()

    def find(self, verb: str, args: tuple[Any, ...]) -> Fault | None:
        return next((fault for fault in self._faults if fault.meets(verb, args)), None)

    async def answered(self, verb: str, answer: T) -> T:
        for fault in tuple(self._faults):
            answer = await fault.answered(verb, answer)
        return answer

    def add(self, fault: Fault, *, first: bool = False) -> Fault:
        """Add a fault of another kind, after the others or before them."""
        self._faults.insert(0 if first else len(self._faults), fault)
        return fault

    def _add(self, verb: str, strike: Strike, *, first: bool = False, **conditions: Any) -> Fault:
        return self.add(Fault(verb, strike, **conditions), first=first)


class FaultyBackend(WrappedBackend):
    """Calls `inner`, except where `faults` strike. Several may share one `Faults`: a fleet whose store
    fails."""

    def __init__(self, inner: Backend, faults: Faults | None = None) -> None:
        super().__init__(inner)
        self.faults = faults or Faults()

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        fault = self.faults.find(verb, args)
        answer: T = await (call() if fault is None else fault.strike(call))
        return await self.faults.answered(verb, answer)


class FaultyPort:
    """Calls a port, except where `faults` strike. Several ports may share them. Its methods are async.

    faults = Faults()
    queue = FaultyPort(memory_queue(), faults)
    lost = faults.fail("push", when="after")      # it is pushed, and the answer is lost
    """

    def __init__(self, port: Any, faults: Faults) -> None:
        self._port = port
        self.faults = faults

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call, name, getattr(self._port, name))

    async def _call(self, name: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            answer = method(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        fault = self.faults.find(name, args)
        return await (call() if fault is None else fault.strike(call))


# --------------------------------------------------------------------------------------------------- strikes


def _before(error: Callable[[], BaseException]) -> Strike:
    async def strike(fault: Fault, call: Callable[[], Awaitable[Any]]) -> Any:
        raise error()

    return strike


def _after(error: Callable[[], BaseException]) -> Strike:
    async def strike(fault: Fault, call: Callable[[], Awaitable[Any]]) -> Any:
        await call()
        raise error()

    return strike


def _later(error: Callable[[], BaseException]) -> Strike:
    async def strike(fault: Fault, call: Callable[[], Awaitable[Any]]) -> Any:
        fault.add_late(asyncio.ensure_future(_when_released(fault, call)))
        raise error()

    return strike


async def _when_released(fault: Fault, call: Callable[[], Awaitable[Any]]) -> None:
    await fault.released()
    await call()


async def _hold_before(fault: Fault, call: Callable[[], Awaitable[Any]]) -> Any:
    await fault.released()
    return await call()


async def _hold_after(fault: Fault, call: Callable[[], Awaitable[Any]]) -> Any:
    answer = await call()
    await fault.released()
    return answer


async def _twice(fault: Fault, call: Callable[[], Awaitable[Any]]) -> Any:
    await call()
    return await call()


async def _dropped(fault: Fault, call: Callable[[], Awaitable[Any]]) -> None:
    return None
