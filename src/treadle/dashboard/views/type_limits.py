"""Type limits: the doers of types in words, and which limits in use are theirs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from treadle.base.wording import duration
from treadle.define.work_type import AnyWorkType
from treadle.doers.base import AdaptedDoer
from treadle.doers.bounded import BoundedDoer, UnlimitedDoer
from treadle.doers.limit_rules import LimitRule, read_limit_name
from treadle.doers.limited import LimitedDoer
from treadle.doers.on_full import OnFullDoer
from treadle.item_facts import LimitUse


def rules_of(doer: object) -> Sequence[LimitRule]:
    """The fleet-wide limits of a doer."""
    if isinstance(doer, LimitedDoer):
        return doer.rules
    return (doer.rule,) if isinstance(doer, OnFullDoer) else ()


def limits_of_types(
    uses: Iterable[LimitUse], types: Mapping[str, AnyWorkType], names: Iterable[str]
) -> list[LimitUse]:
    """The limits in use that items of these types count under, as far as the code here says."""
    owners = {"app", *names}
    for name in names:
        doer = types[name].options.get("doer") if name in types else None
        if doer is not None:  # one that several types share counts under the name of the first
            owners.add(next(each for each, type in types.items() if type.options.get("doer") is doer))
            owners |= {rule.name for rule in rules_of(doer) if rule.name is not None}
    return [use for use in uses if (read := read_limit_name(use.name)) is not None and read.owner in owners]


def doer_words(doer: object) -> str:
    """A doer in words."""
    if doer is None:
        return "that of the worker"
    if isinstance(doer, AdaptedDoer):
        return f"{type(doer.doer).__qualname__}, your own"
    if isinstance(doer, OnFullDoer):
        return f"{_rule_words(doer.rule)}, then {doer.on_full}"
    if isinstance(doer, LimitedDoer):
        words = [_rule_words(rule) for rule in doer.rules] + (
            ["one item of each lane at a time, until it has ended"] if doer.strict else []
        )
        inner = "" if isinstance(doer.inner, UnlimitedDoer) else f"; inside: {doer_words(doer.inner)}"
        return ", ".join(words) + inner
    if isinstance(doer, BoundedDoer):
        return f"at most {doer.limit} at once in each worker"
    return "unlimited" if isinstance(doer, UnlimitedDoer) else type(doer).__qualname__


def _rule_words(rule: LimitRule) -> str:
    per = "" if rule.per is None else f" per {rule.per}"
    if rule.algorithm == "slots":
        return f"at most {rule.limit:,} at once{per} in the whole fleet"
    kind = rule.algorithm.replace("_", " ")
    return f"{rule.limit:,} starts every {duration(rule.window)}{per} in the whole fleet ({kind})"
