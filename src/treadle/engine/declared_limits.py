"""Declared limits: the fleet-wide limits that code has: that of the workers, as they say, and that in this
process. The store does not know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.base.wording import duration, listed, plain
from treadle.define.dependency import BUILT_IN
from treadle.doers.base import AdaptedDoer
from treadle.doers.limit_rules import (
    TYPE_LIMIT,
    LimitRule,
    ordered_algorithm,
    owner_and_window,
    rule_of_type,
    rules_in_force,
)
from treadle.doers.limited import LimitedDoer
from treadle.doers.on_full import OnFullDoer
from treadle.errors import InputError
from treadle.item import ItemState, Limit, Order, WorkerState
from treadle.item_facts import LimitUse
from treadle.store.fleet import Fleet
from treadle.worker_info import WorkerInfo

from .core import Core


def declared_limits(core: Core) -> dict[str, LimitRule]:
    """The limits of all doers known here, by how the names begin under which they are counted. If two doers
    differ, a name is that of the first."""
    found: dict[str, LimitRule] = {}
    for doer, owner in _doers(core).values():
        for rule in _rules(doer):
            found.setdefault(rule.start(owner), rule)
    return found


def declared_rule(declared: Mapping[str, LimitRule], name: str) -> LimitRule | None:
    """The rule that a limit of this name belongs to. None: there is none here."""
    return next((rule for start, rule in declared.items() if name.startswith(start)), None)


def limit_of(declared: Mapping[str, LimitRule], name: str) -> int | None:
    """How much the code allows under a name. None: it is not known here."""
    rule = declared_rule(declared, name)
    return None if rule is None else rule.limit


def slots_of(core: Core) -> dict[str, int]:
    """How much the code in this process allows under `slots` limits, by how their names begin."""
    rules = declared_limits(core).items()
    return {start: rule.limit for start, rule in rules if rule.algorithm == "slots"}


def rates_of(core: Core) -> tuple[str, ...]:
    """How the names begin of the limits on starts that the code in this process has."""
    return tuple(sorted(start for start, rule in declared_limits(core).items() if rule.algorithm != "slots"))


async def live_workers(backend: Backend) -> list[WorkerState]:
    """Those that take items, as far as the store lists workers."""
    if "listing" not in backend.capabilities:
        return []
    return Fleet(await backend.workers(), await backend.now()).taking


def has_limit_for(declared: Iterable[str], workers: Iterable[WorkerState], order: Order) -> bool:
    """Whether code here, or that of live workers, has a limit that an order by name changes. True also if a
    worker does not say which it has."""
    infos = [worker.info for worker in workers if worker.info is not None and not worker.info.manual]
    if order.window is not None and any(info.rates is None for info in infos):
        return True
    return (order.window is None) in {
        window is None for window in _windows(declared, infos, order.name or "")
    }


def check_kind(core: Core, workers: Sequence[WorkerState], order: Order) -> None:
    """`InputError` if the limits of this name are all of the other kind, or if the type of this name has
    none: as far as the code here and that of live workers says."""
    declared, name = declared_limits(core), order.name or ""
    if has_limit_for(declared, workers, order):
        return
    besides = f"{plain(name)} can have one besides, as a type: type= (--type)"
    windows = _windows(declared, [each.info for each in workers if each.info is not None], name)
    if None in windows:
        kind = "limits how many run at once, not how many start in a time: leave the window out"
        raise InputError.of("name", name, f"{kind}. {besides}")
    if windows:
        known = listed(f"per {duration(each)}" for each in sorted(each or 0.0 for each in windows))
        kind = f"limits how many start ({known}), not how many run at once: say in which time, as 50/1m"
        raise InputError.of("name", name, f"{kind}, or window=60. {besides}")
    type = core.registry.get(name)
    if type is not None and type.has_handler:
        doer = _pattern(type.options.get("doer", core.worker_doer))
        owner = _doers(core)[id(doer)][1]
        names = listed(dict.fromkeys(rule.name or owner for rule in _rules(doer)))
        known = f"is a type whose limit is {names}" if names else "is a type without a limit"
        raise InputError.of(
            "name", name, f"{known}: name that, or {besides}" if names else f"{known}: {besides}"
        )


def _windows(declared: Iterable[str], infos: Iterable[WorkerInfo], name: str) -> set[float | None]:
    """The windows of the limits of this name. None: of those on what runs at once."""
    said = [start for info in infos for start in (*info.limits, *(info.rates or ()))]
    found = (owner_and_window(start) for start in (*declared, *said))
    return {window for owner, window in found if owner == name}


def used_limit(workers: Iterable[WorkerState], declared: Mapping[str, LimitRule], name: str) -> int | None:
    """How much is allowed under a name by the code of live workers: they are who takes permits. If they
    differ, as during a deployment: the most. If none says so: by the code here."""
    said = _said(workers, name)
    return max(said) if said else limit_of(declared, name)


def uses_in_force(
    core: Core, uses: Iterable[LimitUse], workers: Sequence[WorkerState], orders: Iterable[Order]
) -> list[LimitUse]:
    """The uses of limits, with how much is allowed: as ordered, as the code of live workers says, or as that
    here does. See `with_orders`."""
    declared = declared_limits(core)
    known = [with_limit(use, workers, declared) if use.limit is None else use for use in uses]
    return with_orders(known, orders, declared, workers)


def with_limit(use: LimitUse, workers: Sequence[WorkerState], declared: Mapping[str, LimitRule]) -> LimitUse:
    """The use of a `slots` limit, with how much is allowed: see `used_limit`."""
    limit = used_limit(workers, declared, use.name)
    lowest = min(_said(workers, use.name), default=limit)
    return replace(use, limit=limit, lowest=None if lowest == limit else lowest)


def with_orders(
    uses: Iterable[LimitUse],
    orders: Iterable[Order],
    declared: Mapping[str, LimitRule],
    workers: Sequence[WorkerState],
) -> list[LimitUse]:
    """The uses, each with the order that is in force for it and what the code says; and one for each order
    under which nothing counts now. Left out are limits in code that an order has replaced, and limits of
    orders that are over: what counts under them holds nothing back."""
    limits = {each.subject: each for each in orders if each.kind == "limit"}
    shown: list[LimitUse] = []
    unused = dict(limits)
    for use in uses:
        rule = _alike(declared, use.name)
        if rule is not None:
            window = None if rule.algorithm == "slots" else rule.window
            use = replace(use, code=rule.limit, code_window=window)
        elif use.algorithm == "slots":
            use = replace(use, code=use.limit)
        order = next((each for each in limits.values() if _is_of(use.name, each)), None)
        over = rule is None and use.name.startswith(TYPE_LIMIT)
        if order is None and (over or any(_is_replaced(use.name, each) for each in limits.values())):
            continue
        if order is not None:
            unused.pop(order.subject, None)
            use = replace(use, limit=order.limit, lowest=None, order=order)
        shown.append(use)
    return shown + [_unused(order, declared, workers) for order in unused.values()]


def _unused(order: Order, declared: Mapping[str, LimitRule], workers: Sequence[WorkerState]) -> LimitUse:
    if order.type is not None:
        rule = rule_of_type(order)
        return LimitUse(rule.start(""), rule.algorithm, 0.0, order.limit, order=order)
    name = order.name or ""
    algorithm = ordered_algorithm(order)
    start = LimitRule(order.limit or 1, order.window or 1.0, algorithm, None, name).start("")
    rule_in_code = _alike(declared, start)
    use = LimitUse(start, algorithm, 0.0, order.limit)
    if rule_in_code is not None:
        window = None if algorithm == "slots" else rule_in_code.window
        changed = replace(rule_in_code, window=order.window or rule_in_code.window, algorithm=algorithm)
        use = replace(use, name=changed.start(name), code=rule_in_code.limit, code_window=window)
    return replace(use, order=order, known=has_limit_for(declared, workers, order))


def _is_of(name: str, order: Order) -> bool:
    """Whether a limit of this name obeys the order."""
    window = "" if order.window is None else f"/{order.window:g}"
    return name.startswith(f"{_ordered(order)}:{ordered_algorithm(order)}{window}:")


def _is_replaced(name: str, order: Order) -> bool:
    """Whether a limit of this name, in code, is not in force because of the order."""
    owner, window = owner_and_window(name)
    return owner == _ordered(order) and window is not None and window == order.window


def _ordered(order: Order) -> str:
    return (order.name or "") if order.type is None else f"{TYPE_LIMIT}{order.type}"


def _alike(declared: Mapping[str, LimitRule], name: str) -> LimitRule | None:
    """The rule in code that a limit of this name belongs to, perhaps with another window."""
    owner, window = owner_and_window(name)
    found = [rule for start, rule in declared.items() if _is_same_kind(start, owner, window)]
    return next((rule for rule in found if window in (None, rule.window)), found[0] if found else None)


def _is_same_kind(start: str, owner: str, window: float | None) -> bool:
    other, length = owner_and_window(start)
    return owner == other and (window is None) == (length is None)


def _said(workers: Iterable[WorkerState], name: str) -> list[int]:
    return [
        limit
        for worker in workers
        if worker.info is not None
        for start, limit in worker.info.limits.items()
        if name.startswith(start)
    ]


def limits_of(
    core: Core, item: ItemState, orders: Sequence[Order]
) -> list[tuple[Limit, Order | None]] | None:
    """The limits that an item waits for, as the orders change them. None: not known, because the code of its
    type is not here."""
    if item.type in BUILT_IN:
        return []
    type = core.registry.get(item.type)
    if type is None or not type.has_handler:
        return None
    doer = _pattern(type.options.get("doer", core.worker_doer))
    if doer is None:
        return None
    if isinstance(doer, OnFullDoer):  # no item waits for its limit
        return []
    limits = [each for each in orders if each.kind == "limit"]
    names = (type.name, *type.aliases)
    rules = [("", rule_of_type(each)) for each in limits if each.type in names]
    if isinstance(doer, LimitedDoer):
        _, owner = _doers(core)[id(doer)]
        rules += [(owner, rule) for rule in rules_in_force(doer.rules, owner, limits)]
    found = [rule.limit_for(owner, item.tenant, item.lane) for owner, rule in rules]
    return [(limit, next((each for each in limits if _is_of(limit.name, each)), None)) for limit in found]


def drops_items(core: Core, type: str) -> bool:
    """Whether a type known here has a limit with `on_full`."""
    found = core.registry.get(type)
    return found is not None and isinstance(_pattern(found.options.get("doer", core.worker_doer)), OnFullDoer)


def _doers(core: Core) -> dict[int, tuple[object, str]]:
    """The doers known here, by identity, each with the name under which a worker binds it: `app`, or the
    first type that has it."""
    found: dict[int, tuple[object, str]] = {}
    named = [("app", core.worker_doer)]
    named += [(type.name, type.options.get("doer")) for type in core.registry.types.values()]
    for name, doer in named:
        pattern = _pattern(doer)
        found.setdefault(id(pattern), (pattern, name))
    return found


def _pattern(doer: object) -> object:
    return doer.doer if isinstance(doer, AdaptedDoer) else doer


def _rules(doer: object) -> Sequence[LimitRule]:
    if isinstance(doer, LimitedDoer):
        return doer.rules
    return (doer.rule,) if isinstance(doer, OnFullDoer) else ()
