"""Bound types: the work types that a worker runs, each with the doer that runs its items."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable
from typing import Final

from treadle.bulk_action import BULK_QUEUE, BULK_TYPE
from treadle.define.signature import Handler
from treadle.doers import Doer, Task
from treadle.doers.base import BaseDoer, Failing, WorkerDoers
from treadle.doers.limit_rules import LimitRule, rule_of_type, rules_in_force
from treadle.doers.limited import LimitedDoer, has_strict_lanes
from treadle.doers.on_full import OnFullCalls, OnFullDoer
from treadle.engine.core import Core
from treadle.engine.hooks import Phase
from treadle.engine.registry import AnyType
from treadle.engine.settings import WorkerSettings
from treadle.item import Limit, Order
from treadle.logs.kept_lines import start_keeping, stop_keeping
from treadle.options import RunIn

from .built_in import SETTLED_AT_ONCE
from .held import BoundType
from .permits import PermitLedger, add_strict_type, check_batch, prepare_limits

_REPORTS: Final[dict[Failing, tuple[Phase, str]]] = {
    "task": ("hook", "an attempt's task failed"),
    "doer": ("hook", "a doer failed"),
    "permits": ("claim", "could not take or return permits of a limit; will retry"),
}


class BoundTypes:
    """The work types that a worker runs, each bound to its doer.

    on_free: called when a doer has room again, or a type was added.
    on_give_back: called with tasks that a limit holds back.
    on_full: what a limit does that drops or replaces items.
    on_wrong_permits: called when the store counts other permits than the worker has.
    """

    def __init__(
        self,
        core: Core,
        worker: WorkerSettings,
        on_free: Callable[[], None],
        on_give_back: Callable[[list[Task]], None],
        on_full: OnFullCalls,
        on_wrong_permits: Callable[[], None],
    ) -> None:
        self._core = core
        self._worker = worker
        self._on_free = on_free
        self._on_give_back = on_give_back
        self._on_full = on_full
        self.permits = PermitLedger(core.backend, worker.id, on_wrong_permits)
        self._doers = WorkerDoers()
        self.doer = self._doers.of(worker.doer)
        """The doer of the types that have none of their own."""
        self._opened: dict[BaseDoer, str] = {}
        """The doers that are bound, in the order of their binding, each with the name of its owner."""
        self._limited: dict[str, LimitedDoer] = {}
        """By type: the doer that obeys a limit that was ordered for this type, if there was one."""
        self._limits: tuple[Order, ...] = ()
        """The limits that are ordered."""
        self.all: list[BoundType] = []
        self.by_name: dict[str, BoundType] = {}
        """The same types by name. A type with aliases is there under each of them too."""
        self.buffered: frozenset[str] = frozenset()
        """The types whose items may wait here before their handlers begin: see `Demand.buffered`."""
        self.strict: frozenset[str] = frozenset()
        """The types whose lanes are strict: see `Demand.strict`."""
        serves_bulk = worker.queues is None or BULK_QUEUE in worker.queues
        self.runs_bulk = core.run_portion is not None and serves_bulk
        """Whether this worker runs items of bulk actions."""
        self.built_in = dict.fromkeys((*SETTLED_AT_ONCE, BULK_TYPE) if self.runs_bulk else SETTLED_AT_ONCE)
        """The types that it settles without a handler."""
        self.shares_room = False
        """Whether some of its types share room: in a pool, or under several names."""
        self.has_limits = False
        """Whether some of its types have fleet-wide limits."""
        self.has_own_doers = False
        """Whether some of its types have a doer of their own."""
        self.keeps_logs = False
        """Whether what handlers log is kept, for some of its types."""

    def open(self) -> None:
        """Bind the worker's doer, and all types that are registered."""
        self._loop = get_running_loop()
        self._bind(self.doer, "app")
        for type in self._core.registry.types.values():
            self.add(type)

    def add(self, type: AnyType) -> None:
        """Run this type too, if it is among the worker's types and has a handler."""
        core, worker = self._core, self._worker
        names = (type.name, *type.aliases)
        wanted = worker.types is None or not worker.types.isdisjoint(names)
        handler = core.registry.handler(type)
        if not wanted or handler is None or type.name in self.by_name:
            return
        given: Doer = type.options.get("doer", worker.doer)
        doer = self._doers.of(given)
        check_batch(type, doer)
        if has_strict_lanes(given):
            add_strict_type(core, names)
            self.strict |= {*names}
        self._bind(doer, type.name)
        metrics = core.metrics.of(type.name)
        bound = BoundType(
            type,
            handler,
            self._run_in(type, handler),
            core.item_builder,
            core.settings,
            metrics,
            doer,
            own_doer=doer is not self.doer,
            keeps_logs="steps" in core.backend.capabilities and type.options.get("logs", core.settings.logs),
            mask=core.registry.mask,
        )
        if bound.keeps_logs and not self.keeps_logs:
            self.keeps_logs = True
            start_keeping(self, self._loop)
        self.all.append(bound)
        self.by_name.update(dict.fromkeys(names, bound))
        self.obey(self._limits)
        self._on_free()

    def close(self) -> None:
        """The worker ends."""
        if self.keeps_logs:
            self.keeps_logs = False
            stop_keeping(self)

    def rebind(self, type: AnyType) -> None:
        """The function that runs this type is another one now, or there is none."""
        bound, handler = self.by_name.get(type.name), self._core.registry.handler(type)
        if bound is None:
            self.add(type)
        elif handler is not None:
            bound.use(handler, self._run_in(type, handler))
        else:
            self.all.remove(bound)
            for name in bound.names:
                del self.by_name[name]
        self._look()

    def obey(self, limits: tuple[Order, ...]) -> list[tuple[BoundType, Limit]]:
        """Obey the limits that are ordered, in place of others. Returns those on how many of a type run at
        once: what runs already has perhaps asked for no permit."""
        self._limits = limits
        for doer, owner in self._opened.items():
            if isinstance(doer, LimitedDoer) and doer not in self._limited.values():
                doer.use(rules_in_force(doer.rules, owner, limits))
            elif isinstance(doer, OnFullDoer):
                (doer.rule,) = rules_in_force((doer.declared,), owner, limits)
        found: list[tuple[BoundType, Limit]] = []
        for bound in self.all:
            rules = [rule_of_type(each) for each in limits if each.type in bound.names]
            if isinstance(bound.given_doer, OnFullDoer) or not rules:
                bound.doer = bound.given_doer
                continue
            bound.doer = self._limited_doer(bound, rules)
            slots = [rule for rule in rules if rule.algorithm == "slots"]
            found += [(bound, rule.limit_for("", "", "")) for rule in slots]
        self._look()
        return found

    def limited(self, bound: BoundType) -> LimitedDoer:
        """The doer that obeys, or has obeyed, a limit that was ordered for this type."""
        return self._limited[bound.name]

    def _limited_doer(self, bound: BoundType, rules: list[LimitRule]) -> LimitedDoer:
        """The doer of a type, with these rules beside its own."""
        given, owner = bound.given_doer, bound.name
        inner = given
        if isinstance(given, LimitedDoer):
            inner, owner = given.inner, self._opened[given]
            rules = [*rules, *rules_in_force(given.rules, owner, self._limits)]
        doer = self._limited.get(bound.name)
        if doer is None:
            doer = self._limited[bound.name] = LimitedDoer(rules, inner)
            self._bind(doer, owner)
        doer.use(rules)
        return doer

    def _look(self) -> None:
        """Note what a claim has to ask for, so that it does not look at each type."""
        buffers = [bound for bound in self.all if bound.type.batch is not None or bound.doer.buffers]
        self.buffered = frozenset(name for bound in buffers for name in bound.names)
        self.shares_room = any(bound.pooled or bound.type.aliases for bound in self.all)
        self.has_limits = any(isinstance(bound.doer, LimitedDoer) for bound in self.all)
        self.has_own_doers = any(bound.own_doer for bound in self.all)

    def _run_in(self, type: AnyType, handler: Handler) -> RunIn:
        """Where it runs. Another process could not import a function that replaces a handler."""
        if not self._core.registry.is_replaced(type):
            return type.run_in
        return "loop" if handler.is_async or type.options.get("run_in") == "loop" else "thread"

    def _bind(self, doer: BaseDoer, name: str) -> None:
        """Bind a doer, unless it is bound: types that share a doer share its binding."""
        if doer in self._opened:
            return
        core = self._core
        prepare_limits(core, doer, self._on_full)
        doer.bind(self.permits, core.settings.clock, self._worker.id, name)
        self._opened[doer] = name
        doer.on_free(self._on_free)
        doer.on_give_back(self._on_give_back)
        doer.on_error(self._report)

    def _report(self, error: Exception, failing: Failing) -> None:
        phase, message = _REPORTS[failing]
        self._core.hooks.report(error, phase, message)

    def names(self) -> tuple[str, ...]:
        """All types that this worker settles: those that are built in need no handler."""
        return (*self.by_name, *self.built_in)

    def doers(self) -> list[BaseDoer]:
        """Each once, always in the same order."""
        return list(self._opened)
