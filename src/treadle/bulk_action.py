"""Bulk actions: one change of many items, which goes on although the process that asked for it is gone.

A bulk action is a group of items of a built-in type. Each item is a portion. The root has what was asked for
(`BulkOrder`), and the value of the group says how far it is (`BulkProgress`).

Rights come from the tenant of the item, never from its input: a portion changes items of its own tenant. Only
portions of the tenant `OPERATORS`, which no client can be bound to, change items of all tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from .item import Filter
from .retry import Retry

BULK_TYPE: Final = "treadle.bulk"
BULK_QUEUE: Final = "treadle.bulk"
BULK_WORKFLOW: Final = "treadle.bulk"
"""The workflow of the roots: they are found by it."""
OPERATORS: Final = "treadle.operators"
"""The tenant of bulk actions that a client of all tenants has started."""
PORTION: Final = 500
"""Items that one step reads and changes."""
MOST_IDS: Final = 10_000
"""The most items that a bulk action can name."""
MOST_EXAMPLES: Final = 20
"""Items that were not changed and are kept as examples, the first ones."""
BULK_RETRY: Final = Retry(attempts=8, base=0.5, factor=2.0, max=60.0, jitter=0.5)
"""For a portion that fails: the store refuses something, or is not there for long."""
KEPT: Final = 7 * 86_400.0
"""Seconds for which a bulk action can be looked at after its end."""

ActionVerb: TypeAlias = Literal["requeue", "cancel", "delete", "trigger", "hold", "unhold", "update"]
BulkStanding: TypeAlias = Literal["waiting", "running", "canary", "held_back", "done", "stopped", "failed"]
"""`waiting`: no portion has run yet. `canary`: it waits for the end of the first items. `held_back`: not all
of these succeeded, and the others stay as they are. `failed`: a portion failed too often."""
BulkPhase: TypeAlias = Literal["change", "canary", "held_back", "done", "stopped"]


class BulkRefusal(msgspec.Struct, frozen=True, gc=False):
    """An item that was not changed, and why."""

    id: str
    tenant: str | None
    error: str
    """The kind of the error, as in `BulkState.skipped`."""
    message: str


class BulkItem(msgspec.Struct, frozen=True, gc=False):
    """An item that a bulk action names."""

    id: str
    tenant: str | None = None
    """None: the first item with this id that the action may change."""


class BulkOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for: the input of the root."""

    verb: ActionVerb
    about: str
    where: Filter | None = None
    items: tuple[BulkItem, ...] = ()
    open: bool = False
    changes: dict[str, Any] = {}
    """For `update`: what it changes, as `UpdateOptions` in plain form."""
    rate: float | None = None
    canary: int = 0
    canary_wait: float = 0.0
    total: int = 0
    more: bool = False
    actor: str = ""
    reason: str = ""
    address: str = ""


class BulkProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a bulk action is: the input of a portion, and the value of the group after it."""

    phase: BulkPhase = "change"
    matched: int = 0
    changed: int = 0
    skipped: dict[str, int] = {}
    refused: tuple[BulkRefusal, ...] = ()
    cursor: str | None = None
    """Where the next portion begins: a cursor of `list`. If items were named: how many were taken."""
    tried: tuple[BulkItem, ...] = ()
    """The canary: the items that were changed first."""
    judged: bool = False
    """The canary has succeeded, or there is none."""
    judge_by: float = 0.0
    """When the canary must have ended, by the store's clock."""
    held_back_by: tuple[BulkItem, ...] = ()
    """Those of the canary that have not succeeded."""
    next: str = ""
    """In the value of the group: the id of the next portion, if there is one."""


class BulkInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The input of an item of a bulk action."""

    progress: BulkProgress = BulkProgress()
    order: BulkOrder | None = None
    """None: the root has it."""


class BulkState(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk action as it is now."""

    id: str
    verb: ActionVerb
    state: BulkStanding
    where: str
    """Which items it changes, as text."""
    changes: str = ""
    """For `update`: what it changes, as text: `queue=slow priority=-5`."""
    tenant: str | None
    """Whose items it may change. None: those of all tenants."""
    actor: str = ""
    reason: str = ""
    total: int = 0
    """How many items matched at the start, up to 10,000."""
    more: bool = False
    """Whether there were more."""
    matched: int = 0
    """How many items were looked at so far."""
    changed: int = 0
    """How many items were changed, with those that changed along with them."""
    skipped: Mapping[str, int] = {}
    """How many of those that matched were not changed, by the kind of the error."""
    refused: tuple[BulkRefusal, ...] = ()
    """The first 20 of these."""
    rate: float | None = None
    """Items per second. None: as fast as the store can."""
    canary: int = 0
    canary_wait: float = 0.0
    """Seconds in which the canary must succeed."""
    canary_tried: int = 0
    """For `canary`: how many items were changed, and are waited for."""
    canary_succeeded: int = 0
    """How many of these have succeeded."""
    held_back_by: tuple[BulkItem, ...] = ()
    """For `held_back`: the items of the canary that have not succeeded."""
    started_at: float = 0.0
    ended_at: float | None = None
    error: str | None = None
    """Why the last portion failed, if it did."""
    waits: str = ""
    """Why the next portion does not run, if no process runs it."""

    @property
    def asked(self) -> str:
        """Which items it changes and, for `update`, what about them."""
        return f"{self.changes} for {self.where}" if self.changes else self.where

    @property
    def in_vain(self) -> bool:
        """Whether it is done, and has changed none of the items that matched."""
        return self.state == "done" and not self.changed and bool(self.matched or self.total)


_encoder = msgspec.json.Encoder()
_input = msgspec.json.Decoder(BulkInput)
_progress = msgspec.json.Decoder(BulkProgress)


def encode_bulk(value: BulkInput | BulkProgress) -> bytes:
    return _encoder.encode(value)


def read_bulk_input(data: bytes) -> BulkInput:
    """Raises `msgspec.DecodeError`."""
    return _input.decode(data)


def read_bulk_progress(data: bytes) -> BulkProgress:
    """Raises `msgspec.DecodeError`."""
    return _progress.decode(data)


__all__ = ["ActionVerb", "BulkItem", "BulkRefusal", "BulkStanding", "BulkState"]
