"""Compensation: the item that is submitted when another one dies.

What to submit is stored with an item that has `on_dead`, because the worker that settles it may know neither
its type nor the type of the compensation. A worker that knows the latter computes its options anew.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from treadle.define.work import Work
from treadle.engine.registry import AnyType, Registry
from treadle.engine.settings import Settings
from treadle.flow_control import Failure
from treadle.item import DeathReason, Item, Lease

from .build_item import Compensating, ItemBuilder, LineOptions, not_contributing, read_stored


class CompensationBuilder:
    def __init__(self, registry: Registry, settings: Settings, builder: ItemBuilder) -> None:
        self._registry = registry
        self._settings = settings
        self._builder = builder

    def items(
        self, lease: Lease, reason: DeathReason, error: str, attempts: int, *, computed: bool
    ) -> tuple[Item, ...]:
        """The items to submit because the item of this lease died. Only if an attempt began, unless
        `on_dead_unstarted` says otherwise.

        attempts: how many began. computed: with the options that the `options(input)` of the type computes.
        Public: mutants replace it.
        """
        wanted = self._wanted(lease)
        if wanted is None or not (attempts or wanted.unstarted):
            return ()
        data = wanted.input
        if data is None:
            input = self._input_of(lease)
            failure = Failure(lease.id, lease.type, input, error, reason, attempts)
            data = self._settings.codec.encode({wanted.parameter: msgspec.structs.asdict(failure)})
        type = self._registry.get(wanted.type)
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
        return (not_contributing(item),)

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
        stored = _stored_input(lease)
        type = self._registry.get(lease.type)
        upcast = None if type is None else type.options.get("upcast")
        if upcast is None or not stored:
            return stored
        try:
            changed: object = upcast(stored)
            return cast("dict[str, Any]", changed) if isinstance(changed, dict) else _stored_input(lease)
        except BaseException:  # noqa: BLE001  a function of the user may raise anything, and change what it got
            return _stored_input(lease)


def _stored_input(lease: Lease) -> dict[str, Any]:
    try:
        input = msgspec.json.decode(lease.input)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", input) if isinstance(input, dict) else {}
