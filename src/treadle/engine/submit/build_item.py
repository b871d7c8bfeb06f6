"""Itemize: a Work and its options become an Item, the form in which storage takes new work.

What the engine needs again when the item is claimed (the retry policy, the timeout, the compensation) goes
along as `ItemOptions`, but only where it differs from the type: a worker reads the options of the type from
its own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from treadle.codec import check_size
from treadle.condition import need
from treadle.dependency import GATE
from treadle.engine.registry import AnyType, Registry
from treadle.engine.settings import Settings
from treadle.errors import InputError
from treadle.flow_control import Failure
from treadle.item import Counting, Item, Lease, Reason
from treadle.options import Compensation, Resolved, resolve
from treadle.retry import Retry
from treadle.work import Work, WorkTypeBase


class Compensating(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to submit should the item die."""

    type: str
    input: bytes | None = None
    """None: the handler is told of the failure, as its only argument, `parameter`."""
    parameter: str = ""


class StoredRetry(msgspec.Struct, frozen=True):
    base: float
    factor: float
    max: float
    jitter: float


class ItemOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an item says for itself. Unset: ask the type."""

    retry: StoredRetry | msgspec.UnsetType = msgspec.UNSET
    timeout: float | msgspec.UnsetType | None = msgspec.UNSET
    on_dead: Compensating | msgspec.UnsetType | None = msgspec.UNSET
    compensates: bool = False
    """It makes up for a dead item: it adds nothing to the group's value."""


PLAIN = ItemOptions()
NO_NEED: tuple[int, Counting] = (0, "success")
_decoder = msgspec.json.Decoder(ItemOptions)
_encoder = msgspec.json.Encoder()


def read_stored(data: bytes) -> ItemOptions:
    return _decoder.decode(data) if data else PLAIN


class ItemBuilder:
    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._bases: dict[AnyType, Resolved] = {}
        self._usual: dict[AnyType, tuple[Any, ...]] = {}
        """What items of a type say behind their tenant, if nothing is asked for when they are submitted."""

    def base(self, type: AnyType) -> Resolved:
        """What holds for every Work of the type, unless it says otherwise."""
        base = self._bases.get(type)
        if base is None:
            base = self._bases[type] = resolve({"retry": self._settings.retry}, type.options)
        return base

    def item(
        self,
        work: Work[Any, Any],
        options: Mapping[str, Any],
        *,
        tenant: str,
        parent: Lease | None = None,
        lease_to: Callable[[str], str | None] | None = None,
    ) -> Item:
        """`options` are checked. `lease_to` is asked for a worker if the options ask for `skip_queue`."""
        type = self._registry.type_of(work)
        if options or (parent is not None and (parent.workflow or parent.workflow_type)):
            return self._item(work, type, options, tenant, parent, lease_to)
        usual = self._usual.get(type)
        if usual is not None:  # two thirds of the time that the long way takes
            return Item(work.id, work.type, self._encoded(type, work.input), tenant, *usual)
        item = self._item(work, type, options, tenant, parent, lease_to)
        if type is not GATE and type.options.get("options") is None and not self.base(type).skip_queue:
            self._usual[type] = msgspec.structs.astuple(item)[4:]
        return item

    def _item(
        self,
        work: Work[Any, Any],
        type: AnyType,
        options: Mapping[str, Any],
        tenant: str,
        parent: Lease | None,
        lease_to: Callable[[str], str | None] | None,
    ) -> Item:
        base = self.base(type)
        resolved = resolve(type.computed_options(work.input), options, base=base)
        required, counting = need(resolved.when, len(resolved.after)) if resolved.after else NO_NEED
        worker = lease_to(work.type) if lease_to and resolved.skip_queue and _starts_now(resolved) else None
        # In the order of the fields: by keyword this would take four times as long.
        return Item(
            work.id,
            work.type,
            self._gated(work, options, tenant) if type is GATE else self._encoded(type, work.input),
            tenant,
            resolved.queue,
            resolved.lane,
            resolved.priority,
            resolved.retry.attempts,
            resolved.delay,
            resolved.run_at,
            resolved.expires_in,
            resolved.deadline,
            None,
            resolved.workflow or (parent.workflow if parent else None),
            resolved.workflow_type or (parent.workflow_type if parent else None),
            resolved.after,
            required,
            counting,
            resolved.key,
            resolved.key_scope,
            b"" if resolved is base and base.on_dead is None else self._stored(resolved, base),
            type.options.get("keep", self._settings.keep),
            self._settings.keep_dead,
            worker,
        )

    def _encoded(self, type: AnyType, input: dict[str, Any]) -> bytes:
        data = type.encode_input(input, self._settings.codec)
        check_size(data, self._settings.max_payload, "the input of", type.name)
        return data

    def _gated(self, gate: Work[Any, Any], options: Mapping[str, Any], tenant: str) -> bytes:
        """The works behind a `dependency`, as the items that they will be: who opens it may not know them."""
        on, when = gate.input["on"], gate.input["when"]
        if options.get("after", on) != on:
            raise InputError("a dependency waits for `on` alone: it takes no after=", parameters=("after",))
        behind = {"after": on, "when": when} if on else {}
        items = tuple(self.item(work, behind, tenant=tenant) for work in gate.input["queue"])
        data = _encoder.encode(items)
        check_size(data, self._settings.max_payload, "a dependency, with its works,")
        return data

    def _stored(self, resolved: Resolved, base: Resolved) -> bytes:
        stored = ItemOptions(
            retry=msgspec.UNSET if resolved.retry is base.retry else _stored_retry(resolved.retry),
            timeout=msgspec.UNSET if resolved.timeout == base.timeout else resolved.timeout,
            # Always said if there is one: whoever settles the item may not have its type.
            on_dead=self._compensating(resolved.on_dead, base.on_dead),
        )
        return b"" if stored == PLAIN else _encoder.encode(stored)

    def _compensating(
        self, wanted: Compensation | None, default: Compensation | None
    ) -> Compensating | msgspec.UnsetType | None:
        if wanted is None:
            return msgspec.UNSET if default is None else None
        if isinstance(wanted, WorkTypeBase):
            return Compensating(wanted.name, None, wanted.failure_parameter)
        return Compensating(wanted.type, self._encoded(self._registry.type_of(wanted), wanted.input))

    # -- compensation ----------------------------------------------------------------------------------

    def compensation(self, lease: Lease, reason: Reason, error: str) -> tuple[Item, ...]:
        """What is to be submitted because the item of this lease died."""
        wanted = self._wanted(lease)
        if wanted is None:
            return ()
        data = wanted.input
        if data is None:
            data = self._told(lease, wanted.parameter, reason, error)
        return (self._compensation_item(lease, wanted.type, data),)

    def _wanted(self, lease: Lease) -> Compensating | None:
        stored = read_stored(lease.options).on_dead
        if stored is not msgspec.UNSET:
            return stored
        type = self._registry.get(lease.type)
        found = None if type is None else self._compensating(self.base(type).on_dead, None)
        return None if found is msgspec.UNSET else found

    def _told(self, lease: Lease, parameter: str, reason: Reason, error: str) -> bytes:
        failure = Failure(lease.id, lease.type, self._input_of(lease), error, reason)
        return self._settings.codec.encode({parameter: _plain(failure)})

    def _input_of(self, lease: Lease) -> dict[str, Any]:
        try:
            input = msgspec.json.decode(lease.input)
        except msgspec.DecodeError:
            return {}
        return cast("dict[str, Any]", input) if isinstance(input, dict) else {}

    def _compensation_item(self, lease: Lease, name: str, data: bytes) -> Item:
        type = self._registry.get(name)
        base = Resolved(retry=self._settings.retry) if type is None else self.base(type)
        return Item(
            id=self._settings.generate_id(),
            type=name,
            input=data,
            tenant=lease.tenant,
            queue=base.queue,
            lane=base.lane,
            priority=base.priority,
            attempts=base.retry.attempts,
            workflow=lease.workflow,
            workflow_type=lease.workflow_type,
            options=_encoder.encode(ItemOptions(compensates=True)),
            keep=self._settings.keep if type is None else type.options.get("keep", self._settings.keep),
            keep_dead=self._settings.keep_dead,
        )


def retry_of(stored: ItemOptions, base: Retry) -> Retry:
    """The policy for an item: its own, or its type's."""
    own = stored.retry
    if own is msgspec.UNSET:
        return base
    return Retry(base.attempts, own.base, own.factor, own.max, own.jitter, base.backoff)


def timeout_of(stored: ItemOptions, base: float | None) -> float | None:
    return base if stored.timeout is msgspec.UNSET else stored.timeout


def _stored_retry(retry: Retry) -> StoredRetry:
    return StoredRetry(retry.base, retry.factor, retry.max, retry.jitter)


def _starts_now(resolved: Resolved) -> bool:
    return not (resolved.delay or resolved.run_at or resolved.after)


def _plain(failure: Failure) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in ("id", "type", "input", "error", "reason")}


__all__ = ["ItemBuilder", "ItemOptions", "read_stored", "retry_of", "timeout_of"]
