"""Type limits: which fleet-wide limits apply to an item, as the code in this process says."""

from __future__ import annotations

from treadle.doers.base import AdaptedDoer
from treadle.doers.limited import LimitedDoer
from treadle.engine.core import Core
from treadle.engine.run.built_in import BUILT_IN
from treadle.item import ItemState, Limit


def limits_of(core: Core, item: ItemState) -> tuple[Limit, ...] | None:
    """The limits that an item waits for. None: not known, because the code of its type is not here."""
    if item.type in BUILT_IN:
        return ()
    type = core.registry.get(item.type)
    if type is None or not type.has_handler:
        return None
    doer = _pattern(type.options.get("doer", core.worker_doer))
    if doer is None:
        return None
    if not isinstance(doer, LimitedDoer):  # with `on_full` no item waits for its limit
        return ()
    owner = _owner(core, doer)
    return tuple(rule.limit_for(owner, item.tenant, item.lane) for rule in doer.rules)


def _owner(core: Core, doer: LimitedDoer) -> str:
    """The name under which a worker binds the doer: that of the first type that has it, or `app`."""
    if _pattern(core.worker_doer) is doer:
        return "app"
    types = core.registry.types.values()
    return next(type.name for type in types if _pattern(type.options.get("doer")) is doer)


def _pattern(doer: object) -> object:
    return doer.doer if isinstance(doer, AdaptedDoer) else doer
