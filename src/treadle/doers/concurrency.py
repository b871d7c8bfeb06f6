"""At most `limit` at once, over the whole fleet."""

from __future__ import annotations

from treadle.errors import InputError

from .doer import Doer
from .limit_rules import LimitRule, Per
from .limited import LimitedDoer
from .on_full import ALONE, OnFull, OnFullDoer


def concurrency(
    limit: int,
    *,
    per: Per = None,
    strict: bool = False,
    on_full: OnFull = "wait",
    inner: Doer | None = None,
    name: str | None = None,
) -> LimitedDoer | OnFullDoer:
    """Run at most `limit` tasks at once, counted by the store for all workers together. With
    `concurrency(1, per="lane")` the items of a lane run one after the other, on any worker.

    per: one limit for each `lane` (of each tenant), or for each `tenant`; None: one for all.
    strict: an item that has started keeps its lane until it has succeeded, died or was cancelled. While it
        waits for its retry, or after its worker died, nothing else of its type starts in that lane. Needs
        `limit=1` and `per="lane"`; each work type has lanes of its own.
    on_full: what becomes of an item that is to start while the limit is reached. `wait`: it waits. `drop`: it
        ends `cancelled`, and its error says why. `replace`: the oldest that runs is cancelled, and the new
        one starts when it has stopped; the newest items win. With the last two there can be no other limit
        inside or around, and no batch.
    inner: the doer that runs what may start (default: `unlimited()`); may be another limit.
    name: doers with the same name count together. Default: each work type for itself.
    """
    rule = LimitRule(limit, 1.0, "slots", per, name)
    if on_full not in ("wait", "drop", "replace"):
        raise InputError.of("on_full", on_full, "must be 'wait', 'drop' or 'replace'")
    if strict:
        _check_strict(rule, on_full)
        return LimitedDoer((), inner, strict=True)
    if on_full == "wait":
        return LimitedDoer([rule], inner)
    if isinstance(inner, LimitedDoer | OnFullDoer):
        raise InputError.of("on_full", on_full, f"is given with a limit as inner, {ALONE}")
    return OnFullDoer(rule, on_full, inner)


def _check_strict(rule: LimitRule, on_full: OnFull) -> None:
    if on_full != "wait":
        problem = "must be 'wait' with strict=True: the items of a strict lane wait for each other"
        raise InputError.of("on_full", on_full, problem)
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
