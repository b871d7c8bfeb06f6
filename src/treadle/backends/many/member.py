"""Member: one of the stores, as this process sees it: whether it answers, and when to ask it again.

A store that does not answer is left alone for a pause that grows. Calls in that time are refused at once:
nothing was sent. The log has one line when it goes away, and one when it is back, for each store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from treadle.backend import Backend, store_name
from treadle.base.timing import Clock
from treadle.errors import StoreTooSlow, StoreUnavailable, WrongStore, message_of
from treadle.retry import Retry
from treadle.store.outage import StoreOutage

T = TypeVar("T")
K = TypeVar("K")

AWAY: Final = Retry(attempts=None, base=0.05, factor=2.0, max=1.0, jitter=0.0)
"""How long a store that does not answer is left alone."""
WEIGHT: Final = 0.2
"""Weight of the newest claim in the average of how long claims take."""
TOKEN_BITS: Final = 64
"""Bits that hold a token of a store. Outside, the number of the store stands above them."""


class Member:
    """check: called when the store has been opened, each time."""

    def __init__(self, name: str, number: int, backend: Backend, clock: Clock) -> None:
        self.name = name
        self.number = number
        """Its place in the order in which the stores were named to home. Home is 0."""
        self.backend = backend
        self.on_open: list[Callable[[Member], Awaitable[None]]] = []
        """Called when it has been opened. One that raises leaves it closed."""
        self.check: Callable[[Member], Awaitable[None]] = _is_any
        """Raises `WrongStore` if another store is there now."""
        self.latency: float | None = None
        """Seconds that a claim takes, of late."""
        self._monotonic = clock.monotonic
        self._outage = StoreOutage(clock.monotonic)
        self._outage.store = f"{name} ({store_name(backend)})"
        self._opening = asyncio.Lock()
        self._failures = 0
        self._why = ""
        """Why it did not answer."""
        self._away_until = 0.0
        self.is_open = False
        self._is_unchecked = False
        """Whether it has failed since it was checked."""

    def __repr__(self) -> str:
        return f"<{self.name} at {store_name(self.backend)}>"

    @property
    def is_away(self) -> bool:
        """Whether it did not answer lately, and is not asked yet."""
        return self._failures > 0 and self._monotonic() < self._away_until

    @property
    def fails(self) -> bool:
        """Whether its last call has failed."""
        return self._failures > 0

    def took(self, seconds: float) -> None:
        """A claim took so long."""
        before = seconds if self.latency is None else self.latency
        self.latency = before + WEIGHT * (seconds - before)

    async def open(self) -> None:
        """Open it. Idempotent. Those who come while it does not answer are refused with the first one."""
        async with self._opening:
            if self.is_open:
                return
            if self.is_away:
                raise self.refusal()
            try:
                await self.backend.open()
                for call in self.on_open:
                    await call(self)
            except StoreUnavailable as error:
                self._failed(error)
                raise
            self.is_open = True
            self._answered()

    async def _check_again(self) -> None:
        """It has not answered: when it is back, it may be another one. Then it counts as away."""
        async with self._opening:
            if not self._is_unchecked:
                return
            if self.is_away:
                raise self.refusal()
            try:
                await self.check(self)
            except StoreUnavailable as error:
                self._failed(error)
                raise
            except WrongStore as error:
                away = StoreUnavailable(str(error))
                self._failed(away)
                raise away from error
            self._is_unchecked = False

    async def close(self) -> None:
        self.is_open = False
        await self.backend.close()

    def abandon(self) -> None:
        self.is_open = False
        self._opening = asyncio.Lock()
        self.backend.abandon()

    async def call(self, verb: str, /, *args: Any, **options: Any) -> Any:
        """Call a verb of it. `StoreUnavailable` at once while it is away."""
        if self._failures and self.is_away:
            raise self.refusal()
        if not self.is_open:
            await self.open()
        elif self._is_unchecked:
            await self._check_again()
        try:
            answer = await getattr(self.backend, verb)(*args, **options)
        except StoreTooSlow as error:  # it answers, but not this
            error.store = self.name
            raise
        except StoreUnavailable as error:
            self._failed(error)
            raise
        if self._failures:
            self._answered()
        return answer

    def refusal(self) -> StoreUnavailable:
        why = self._why or "it takes too long"
        error = StoreUnavailable(f"the store {self.name!r} is asked again soon: {why}")
        error.store = self.name
        return error

    def _failed(self, error: StoreUnavailable) -> None:
        error.store = self.name
        self._why = message_of(error)
        self._failures += 1
        self._is_unchecked = self.is_open
        self._away_until = self._monotonic() + AWAY.delay(min(self._failures, 10))
        self._outage.failed(error, "claim")

    def _answered(self) -> None:
        self._failures, self._why = 0, ""
        self._outage.answered("claim")

    # -- tokens ----------------------------------------------------------------------------------------

    def outer(self, token: int) -> int:
        """A token of this store as it is known outside."""
        return token + (self.number << TOKEN_BITS)


async def _is_any(member: Member) -> None:
    """Any store will do."""


def inner(token: int) -> int:
    """A token as its store knows it."""
    return token & ((1 << TOKEN_BITS) - 1)


def number_of(token: int) -> int:
    """The number of the store that gave a token."""
    return token >> TOKEN_BITS


async def in_parts(
    things: Iterable[T],
    of: Callable[[T], Member],
    call: Callable[[Member, list[T]], Awaitable[Sequence[K]]],
) -> list[K]:
    """Call each store with its part of the things, all at the same time. The answers, in the order of the
    things. If calls raise, the first error is raised when all have ended."""
    given = list(things)
    parts: dict[int, tuple[Member, list[int]]] = {}
    for place, thing in enumerate(given):
        member = of(thing)
        parts.setdefault(member.number, (member, []))[1].append(place)
    if not given:
        return []
    if len(parts) == 1:
        ((member, _),) = parts.values()
        return list(await call(member, given))
    found: dict[int, K] = {}

    async def one(member: Member, places: list[int]) -> None:
        answers = await call(member, [given[place] for place in places])
        found.update(zip(places, answers, strict=True))

    await together([one(*part) for part in parts.values()])
    return [found[place] for place in range(len(given))]


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The answers of all calls. If some raise, the first error is raised when all have ended."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    found: list[T] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        found.append(answer)
    return found
