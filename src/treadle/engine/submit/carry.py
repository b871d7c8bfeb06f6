"""Carry: what an item hands on to the items that it queues: its headers, and where they came from.

A child that gives headers of its own gets those of its parent too, where the names differ. One that gives
none, `headers={}`, gets none. The trace of a child is the attempt that queued it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from treadle.base.headers import add_headers, check_headers_size
from treadle.engine.guarded_telemetry import GuardedAttempt
from treadle.handler.telemetry import Trace
from treadle.item import Item, Lease

from .build_item import NO_OPTIONS, ItemOptions, encode_stored, read_stored


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
