"""At most `limit` at once, over the whole fleet."""

from __future__ import annotations

from .doer import Doer
from .limit_rules import LimitRule, Per
from .limited import LimitedDoer


def concurrency(
    limit: int, *, per: Per = None, inner: Doer | None = None, name: str | None = None
) -> LimitedDoer:
    """Run at most `limit` tasks at once, counted by the store for all workers together. With
    `concurrency(1, per="lane")` the items of a lane run one after the other, on any worker.

    per: one limit for each `lane` (of each tenant), or for each `tenant`; None: one for all.
    inner: the doer that runs what may start (default: `unlimited()`); may be another limit.
    name: doers with the same name count together. Default: each work type for itself.
    """
    return LimitedDoer([LimitRule(limit, 1.0, "slots", per, name)], inner)
