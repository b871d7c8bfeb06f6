"""The retry policy that is stored with an item: without `attempts`, which the item has, and without code."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from treadle.base.timing import MAX_DURATION
from treadle.retry import Retry

Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=MAX_DURATION)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class StoredRetry(msgspec.Struct, frozen=True):
    base: Seconds
    factor: Seconds
    max: Seconds
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)]
    max_losses: _Count | None
    max_deferrals: _Count | None = None

    @classmethod
    def of(cls, retry: Retry) -> StoredRetry:
        return cls(retry.base, retry.factor, retry.max, retry.jitter, retry.max_losses, retry.max_deferrals)

    def over(self, base: Retry) -> Retry:
        """The policy of the item. base: that of its type."""
        return Retry(
            base.attempts,
            self.base,
            self.factor,
            self.max,
            self.jitter,
            base.backoff,
            self.max_losses,
            self.max_deferrals,
        )
