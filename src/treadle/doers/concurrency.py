"""At most `limit` at once, over the whole fleet."""

from __future__ import annotations

from typing import Literal, TypeAlias

from treadle.errors import InputError

from .doer import Doer
from .limit_rules import LimitRule, Per
from .limited import LimitedDoer

OnFull: TypeAlias = Literal["wait", "drop", "replace"]
"""What becomes of an item that is to start while its limit is reached."""


def concurrency(
    limit: int,
    *,
    per: Per = None,
    strict: bool = False,
    inner: Doer | None = None,
    name: str | None = None,
) -> LimitedDoer:
    """Run at most `limit` tasks at once, counted by the store for all workers together. With
    `concurrency(1, per="lane")` the items of a lane run one after the other, on any worker.

    per: one limit for each `lane` (of each tenant), or for each `tenant`; None: one for all.
    strict: an item that has started keeps its lane until it has succeeded, died or was cancelled. While it
        waits for its retry, or after its worker died, nothing else of its type starts in that lane. Needs
        `limit=1` and `per="lane"`; each work type has lanes of its own.
    inner: the doer that runs what may start (default: `unlimited()`); may be another limit.
    name: doers with the same name count together. Default: each work type for itself.
    """
    rule = LimitRule(limit, 1.0, "slots", per, name)
    if strict:
        _check_strict(rule)
        return LimitedDoer((), inner, strict=True)
    return LimitedDoer([rule], inner)


def _check_strict(rule: LimitRule) -> None:
    if rule.limit != 1:
        raise InputError.of("limit", rule.limit, "must be 1 with strict=True: a lane has one item at a time")
    if rule.per != "lane":
        problem = (
            "must be 'lane' with strict=True: an item keeps its lane. Items without a lane share one, for "
            "each tenant"
        )
        raise InputError.of("per", rule.per, problem)
    if rule.name is not None:
        problem = "cannot be given with strict=True: each work type has lanes of its own"
        raise InputError.of("name", rule.name, problem)
