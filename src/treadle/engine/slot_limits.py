"""Slot limits: how many may run at once, as the code in this process says. The store does not know it."""

from __future__ import annotations

from treadle.doers.limited import LimitedDoer
from treadle.doers.on_full import OnFullDoer

from .core import Core


def slot_limits(core: Core) -> dict[str, int]:
    """The limits of all doers known here, by how their names begin: see `LimitRule.limit_for`. If two workers
    of different code differ, a name is that of the first."""
    found: dict[str, int] = {}
    doers: dict[int, tuple[object, str]] = {id(core.worker_doer): (core.worker_doer, "app")}
    for type in core.registry.types.values():
        doer = type.options.get("doer")
        doers.setdefault(id(doer), (doer, type.name))
    for doer, owner in doers.values():
        rules = doer.rules if isinstance(doer, LimitedDoer) else ()
        for rule in (doer.rule,) if isinstance(doer, OnFullDoer) else rules:
            if rule.algorithm == "slots":
                found.setdefault(f"{rule.name or owner}:{rule.kind}:", rule.limit)
    return found
