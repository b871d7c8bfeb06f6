"""Build children: the items that an item queues, their nested groups, and its compensation.

Children inherit the headers of their parent, where the names differ from their own. A child with `headers={}`
gets none. The trace of a child is the attempt that queued it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec.structs import replace

from treadle.base.headers import add_headers, check_headers_size
from treadle.codec import Codec
from treadle.define.work import Work
from treadle.engine.guarded_telemetry import GuardedAttempt
from treadle.engine.registry import AnyType, Registry
from treadle.engine.settings import Settings
from treadle.flow_control import Failure
from treadle.handler.telemetry import Trace
from treadle.item import GROUP_MARK, GROUP_TYPE, JOIN_TYPE, DeathReason, Item, Lease, StepRecord
from treadle.store.rules.steps import join_of

from .build_item import (
    NO_OPTIONS,
    SILENT,
    Compensating,
    ItemBuilder,
    ItemOptions,
    LineOptions,
    encode_stored,
    not_contributing,
    read_stored,
    read_undo,
)

if TYPE_CHECKING:
    from treadle.handler.result_plan import PlannedGroup, ResultPlan


def build_children(builder: ItemBuilder, settings: Settings, plan: ResultPlan, lease: Lease) -> list[Item]:
    """Build the children of the item of this lease. An item that closes a nested group comes before the
    members of the group."""
    items = [
        builder.item(child.work, child.options, tenant=lease.tenant, parent=lease) for child in plan.children
    ]
    if not plan.groups:
        return items
    builder.check_nested("ctx.group")
    members = [
        item if child.group_id is None else replace(item, group_id=child.group_id)
        for child, item in zip(plan.children, items, strict=True)
    ]
    keyed: dict[str | None, list[str]] = {}
    for item in members:
        if item.key is not None:
            keyed.setdefault(item.group_id, []).append(item.id)
    closing = [_closing_item(group, lease, settings, keyed.get(group.id, ())) for group in plan.groups]
    return [*closing, *members]


def _closing_item(group: PlannedGroup, lease: Lease, settings: Settings, keyed: Sequence[str]) -> Item:
    """The item that ends with the nested group. If other works follow, these take the value of the group.

    keyed: the works of the group that have a key. For each an earlier item may answer, which is no member.
    The store leaves out the names of those that it stores as members: see `Item.closes_group`.
    """
    after = (f"{GROUP_MARK}{group.id}", *keyed)
    return _item_that_waits(
        group.id,
        GROUP_TYPE,
        after,
        lease,
        settings,
        group_id=group.group_id,
        closes_group=True,
        contributes=not group.followed,
        options=SILENT if group.followed else b"",
    )


def joining_item(wait: StepRecord, children: Sequence[str], lease: Lease, settings: Settings) -> Item:
    """The item that waits for children of a suspended item, however they end, and then ends its wait."""
    return _item_that_waits(
        join_of(wait.signal),
        JOIN_TYPE,
        children,
        lease,
        settings,
        counting="done",
        contributes=False,
        options=SILENT,
    )


def _item_that_waits(
    id: str, type: str, after: Sequence[str], lease: Lease, settings: Settings, **other: Any
) -> Item:
    """An item of the engine that waits for all of `after`, in the line of the item that queued it, so that a
    worker claims it that can claim that one."""
    return Item(
        id=id,
        type=type,
        input=b"",
        tenant=lease.tenant,
        queue=lease.queue,
        lane=lease.lane,
        priority=lease.priority,
        attempts=None,
        workflow=lease.workflow,
        workflow_type=lease.workflow_type,
        after=tuple(after),
        need=len(after),
        keep=settings.keep,
        keep_dead=settings.keep_dead,
        **other,
    )


def silenced(items: Sequence[Item]) -> list[Item]:
    """The same items as children of one that adds nothing to the value of its group: nor do those that join
    the same group. Members of a nested group may: its value ends at the item that closes it."""
    return [not_contributing(item) if item.group_id is None else item for item in items]


def carry_on(
    items: Sequence[Item], lease: Lease, span: GuardedAttempt | None = None, *, checked: bool = True
) -> Sequence[Item]:
    """The same items, as those that the item of this lease queues. span: of the attempt that queued them. If
    there is none, they came from where their parent came from.

    checked: raise InputError if one would carry too much.
    """
    if not lease.options and span is None:
        return items
    parent = read_stored(lease.options)
    headers = {} if parent.headers is msgspec.UNSET else parent.headers
    stored = None if parent.trace is msgspec.UNSET else parent.trace
    trace = stored if span is None else span.trace
    if not headers and trace is None:
        return items
    usual = encode_stored(_carrying(NO_OPTIONS, headers, trace, checked=checked))
    return [
        msgspec.structs.replace(
            item,
            options=encode_stored(_carrying(read_stored(item.options), headers, trace, checked=checked))
            if item.options
            else usual,
        )
        for item in items
    ]


def _carrying(
    stored: ItemOptions, headers: dict[str, str], trace: Trace | None, checked: bool
) -> ItemOptions:
    own = stored.headers
    carried = dict(add_headers(headers, None if own is msgspec.UNSET else own))
    if checked and own is not msgspec.UNSET:
        check_headers_size(carried)
    return msgspec.structs.replace(
        stored,
        headers=carried if carried or own is not msgspec.UNSET else msgspec.UNSET,
        trace=msgspec.UNSET if trace is None else dict(trace),
    )


def with_traces(items: Iterable[Item], traces: Sequence[Trace | None]) -> tuple[Item, ...]:
    """The same items, each with the trace that is stored with it."""
    return tuple(
        item if trace is None else _with_trace(item, trace) for item, trace in zip(items, traces, strict=True)
    )


def _with_trace(item: Item, trace: Trace) -> Item:
    stored = msgspec.structs.replace(read_stored(item.options), trace=dict(trace))
    return msgspec.structs.replace(item, options=encode_stored(stored))


class CompensationBuilder:
    """Builds the item that is submitted when another one dies.

    What to submit is stored with an item that has `on_dead`, because the worker that settles it may know
    neither its type nor the type of the compensation. A worker that knows the latter computes its options.
    """

    def __init__(self, registry: Registry, settings: Settings, builder: ItemBuilder) -> None:
        self._registry = registry
        self._settings = settings
        self._builder = builder

    def items(
        self,
        lease: Lease,
        reason: DeathReason,
        error: str,
        attempts: int,
        undoable: Sequence[StepRecord],
        report: Callable[[BaseException, str], object],
    ) -> tuple[Item, ...]:
        """The items to submit because the item of this lease died: the undos of its steps, the last step
        first, each after the one before, and then its `on_dead`. That only if an attempt began, unless
        `on_dead_unstarted` says otherwise.

        If the options of their type cannot be computed, they are submitted without these. One that cannot be
        made does not hold up the others. attempts: how many began. report: is told what could not be done.
        """
        makers: list[Callable[..., Item | None]] = [
            partial(self._undo, lease, step, error) for step in reversed(undoable)
        ]
        makers.append(partial(self._on_dead, lease, reason, error, attempts, bool(undoable)))
        items: list[Item] = []
        for make in makers:
            item = self._made(make, report)
            if item is not None and items:
                item = replace(item, after=(items[-1].id,), need=1, counting="done")
            if item is not None:
                items.append(item)
        return tuple(items)

    def _made(
        self, make: Callable[..., Item | None], report: Callable[[BaseException, str], object]
    ) -> Item | None:
        for computed in (True, False):
            try:
                return make(computed=computed)
            except BaseException as error:  # noqa: BLE001  the item must still die
                report(error, "compute the options of" if computed else "make")
        return None

    def _undo(self, lease: Lease, step: StepRecord, error: str, *, computed: bool) -> Item:
        stored = read_undo(step)
        value = self._settings.codec.decode(stored.value) if stored.value else None
        undo = {"value": value, "input": self._input_of(lease), "error": error}
        return self._item(lease, stored.wanted, undo, computed=computed)

    def _on_dead(
        self, lease: Lease, reason: DeathReason, error: str, attempts: int, undone: bool, *, computed: bool
    ) -> Item | None:
        wanted = self._wanted(lease)
        if wanted is None or not (attempts or undone or wanted.unstarted):
            return None
        failure = Failure(lease.id, lease.type, self._input_of(lease), error, reason, attempts)
        return self._item(lease, wanted, msgspec.structs.asdict(failure), computed=computed)

    def _item(self, lease: Lease, wanted: Compensating, argument: Any, *, computed: bool) -> Item:
        """argument: what it takes, unless its input is stored."""
        type, data = self._registry.get(wanted.type), wanted.input
        if data is None:
            data = self._codec_of(type).encode({wanted.parameter: argument})
        if type is None or not computed:
            item = self._plain(lease, wanted, data, type)
        else:
            work: Work[Any, Any] = Work(
                self._settings.generate_id(),
                type.name,
                type.decode_input(data, self._settings.codec),
                type,
            )
            built = self._builder.item(work, {}, tenant=lease.tenant, parent=lease)
            # It must not be refused because of its key: the item dies in the same step.
            item = msgspec.structs.replace(built, input=data, key_policy="existing", debounce_max=None)
        return not_contributing(item)

    def _wanted(self, lease: Lease) -> Compensating | None:
        stored = read_stored(lease.options).on_dead
        if stored is not msgspec.UNSET:
            return stored
        type = self._registry.get(lease.type)
        found = None if type is None else self._builder.compensating(self._builder.base(type), None)
        return None if found is msgspec.UNSET else found

    def _plain(self, lease: Lease, wanted: Compensating, data: bytes, type: AnyType | None) -> Item:
        """An item with the options that were stored for it."""
        settings = self._settings
        line = LineOptions() if wanted.line is msgspec.UNSET else wanted.line
        return Item(
            id=settings.generate_id(),
            type=wanted.type,
            input=data,
            tenant=lease.tenant,
            queue=line.queue,
            lane=line.lane,
            priority=line.priority,
            attempts=line.attempts,
            delay=line.delay,
            run_at=line.run_at,
            expires_in=line.expires_in,
            deadline=line.deadline,
            key=line.key,
            key_scope=line.key_scope,
            workflow=line.workflow or lease.workflow,
            workflow_type=line.workflow_type or lease.workflow_type,
            keep=settings.keep if type is None else type.options.get("keep", settings.keep),
            keep_dead=settings.keep_dead,
        )

    def _input_of(self, lease: Lease) -> dict[str, Any]:
        """The arguments through the `upcast` of the type, if it is known here."""
        type = self._registry.get(lease.type)
        stored = self._stored_input(lease, type)
        upcast = None if type is None else type.options.get("upcast")
        if upcast is None or not stored:
            return stored
        try:
            changed: object = upcast(stored)
        except BaseException:  # noqa: BLE001  a function of the user may raise anything, and change what it got
            changed = None
        if isinstance(changed, dict):
            return cast("dict[str, Any]", changed)
        return self._stored_input(lease, type)

    def _stored_input(self, lease: Lease, type: AnyType | None) -> dict[str, Any]:
        try:
            input = msgspec.json.decode(lease.input)
        except (msgspec.DecodeError, RecursionError):
            try:
                input = self._codec_of(type).decode(lease.input)
            except Exception:  # noqa: BLE001  a codec of the user may raise anything
                return {}
        return cast("dict[str, Any]", input) if isinstance(input, dict) else {}

    def _codec_of(self, type: AnyType | None) -> Codec:
        """The codec of a type, if it is known here, otherwise that of the app."""
        codec: Codec = self._settings.codec
        return codec if type is None else type.options.get("codec", codec)
