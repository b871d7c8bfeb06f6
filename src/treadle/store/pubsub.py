"""PubSub: publish/subscribe as treadle needs it for wake-ups.

It is one of the three ports (`treadle.ports`), and it can carry the wake-ups of another store
(`Treadle("postgresql://...", notify=...)`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Answer: TypeAlias = T | Awaitable[T]
"""The return type of a method that may be sync or async."""

MISSED: Final = ""
"""What a receiver gets when messages may have been lost."""


class PubSub(Protocol):
    """Delivers each published message to every subscriber in every process. It may lose messages: that costs
    time, never work.

    A message is never empty. A port that was cut off from its server, and is subscribed again, calls its
    receivers with an empty text: messages may have been lost. This is optional, and so is a method `close()`.
    """

    def publish(self, message: str, /) -> Answer[None]: ...

    def subscribe(self, receive: Callable[[str], None], /) -> Answer[Callable[[], Answer[None] | None]]:
        """Call `receive`, from any thread, for each message from now on. Return a function that ends the
        subscription."""
        ...


async def resolved(answer: Answer[T]) -> T:
    """The answer of a method that may be sync or async."""
    if inspect.isawaitable(answer):
        return await answer
    return answer
