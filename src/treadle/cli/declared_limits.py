"""Declared limits: the fleet-wide limits that the code of an app has, to compare with those in use."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.doers.base import AdaptedDoer
from treadle.doers.limit_rules import LimitRule
from treadle.doers.limited import LimitedDoer
from treadle.doers.on_full import OnFullDoer
from treadle.engine.core import Core


def declared_limits(core: Core) -> dict[str, LimitRule]:
    """The limits of an app's types and workers, by how the names begin under which they are counted."""
    found: dict[str, LimitRule] = {}
    doers = [("app", core.worker_doer)]
    doers += [(type.name, type.options.get("doer")) for type in core.registry.types.values()]
    owners: dict[int, str] = {}
    for name, doer in doers:
        pattern = doer.doer if isinstance(doer, AdaptedDoer) else doer
        owner = owners.setdefault(id(pattern), name)  # types that share a doer count together
        for rule in _rules(pattern):
            found[f"{rule.name or owner}:{rule.kind}:"] = rule
    return found


def _rules(doer: object) -> Sequence[LimitRule]:
    if isinstance(doer, LimitedDoer):
        return doer.rules
    return (doer.rule,) if isinstance(doer, OnFullDoer) else ()


def declared_rule(declared: dict[str, LimitRule], name: str) -> LimitRule | None:
    """The rule that a limit of this name belongs to. None: the app has none."""
    return next((rule for start, rule in declared.items() if name.startswith(start)), None)
