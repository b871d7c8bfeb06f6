"""At most `limit` starts per `window` seconds, over the whole fleet."""

from __future__ import annotations

from typing import Literal

from treadle.base.timing import Duration, seconds
from treadle.errors import InputError

from .doer import Doer
from .limit_rules import LimitRule, Per
from .limited import LimitedDoer

ALGORITHMS = ("token_bucket", "fixed_window", "sliding_window")


def rate_limited(
    limit: int,
    window: Duration = 1.0,
    algorithm: Literal["token_bucket", "fixed_window", "sliding_window"] = "token_bucket",
    *,
    per: Per = None,
    inner: Doer | None = None,
    name: str | None = None,
) -> LimitedDoer:
    """Start `limit` tasks per `window` seconds on average, counted by the store for all workers together.

    algorithm: `token_bucket` makes up for unused starts in a burst of up to `limit`; `fixed_window` counts
        from the first start; `sliding_window` smooths the burst at the border of two windows. With each of
        them, some stretch of `window` seconds may see up to twice the `limit`: see docs/running.md.
    per: one limit for each `lane` (of each tenant), or for each `tenant`; None: one for all.
    inner: the doer that runs what may start (default: `unlimited()`); may be another limit. Permits of both
        are asked for together, and neither limit is charged for what the other denied.
    name: doers with the same name, limit and window count together. Default: each work type for itself.
    """
    if algorithm not in ALGORITHMS:
        raise InputError.of("algorithm", algorithm, f"must be one of {', '.join(ALGORITHMS)}")
    length = seconds(window, field="window")
    if length <= 0:
        raise InputError.of("window", window, "must be more than 0 seconds")
    return LimitedDoer([LimitRule(limit, length, algorithm, per, name)], inner)
