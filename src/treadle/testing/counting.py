"""Count the calls of a backend, and their sizes.

backend = CountingBackend(MemoryBackend())
async with Treadle(backend, work=[add]) as app:
    await asyncio.gather(*(app.enqueue(add(n, 1)).result() for n in range(500)))
assert backend.calls["submit"] < 5
assert sum(backend.sizes["claim"]) == 500
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sized
from typing import Any, TypeVar

from treadle.backend import Backend
from treadle.item import Claim

from .wrap import WrappedBackend

T = TypeVar("T")


class CountingBackend(WrappedBackend):
    """Calls `inner`, and counts the calls."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        """Calls by verb, including those that failed."""
        self.sizes: defaultdict[str, list[int]] = defaultdict(list)
        """By verb: the size of each call that was answered. That is the number of leases for `claim`, the
        length of the arguments that are collections, else 1."""

    async def around(self, verb: str, args: tuple[Any, ...], call: Callable[[], Awaitable[T]]) -> T:
        self.calls[verb] += 1
        answer = await call()
        self.sizes[verb].append(_size(args, answer))
        return answer

    def total(self, *verbs: str) -> int:
        """The number of calls of these verbs, or of all verbs if none are named."""
        return sum(self.calls[verb] for verb in verbs) if verbs else sum(self.calls.values())

    def useful(self, verb: str) -> int:
        """The number of calls of a verb whose size is not 0: for `claim`, those that returned leases."""
        return sum(1 for size in self.sizes[verb] if size)

    def reset(self) -> None:
        self.calls.clear()
        self.sizes.clear()


def _size(args: tuple[Any, ...], answer: object) -> int:
    if isinstance(answer, Claim):
        return len(answer.leases)
    collections = [len(arg) for arg in args if isinstance(arg, Sized) and not isinstance(arg, str | bytes)]
    return sum(collections) if collections else 1
