"""Steps on the page of an item: what it has recorded, how far it is, and the end of its stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from treadle.base.wording import duration, plain
from treadle.item import TERMINAL, Chunk, ItemState, Recorded, StepKind, StepRecord

from .payloads import json_text
from .visit import Visit

MOST_STEPS: Final = 100
"""Steps on a page, the newest. Waits that are not over are always there."""
MOST_CHUNKS: Final = 20
"""Chunks on a page, the last."""
LARGEST: Final = 65_536
"""Bytes of a value that is read for a page."""
MOST_CHARACTERS: Final = 2_000
"""Characters of a value on a page."""


class ShownStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step, as a visitor may see it."""

    name: str
    kind: StepKind
    at: float
    over: bool
    """False: the item waits for it."""
    until: float | None
    signal: str | None
    text: str
    """What it did, or what it waits for."""
    value: str | None = None
    """As JSON. None: there is none, or it is not shown."""
    size: int = 0
    """Bytes of a value that is too large for a page."""
    hidden: bool = False
    """There is a value, and this visitor sees no payloads."""


class ShownChunk(msgspec.Struct, frozen=True):
    number: int
    at: float
    value: str


class ItemSteps(msgspec.Struct, frozen=True, kw_only=True):
    """What an item has recorded."""

    steps: list[ShownStep] = []
    earlier: int = 0
    """Steps before these."""
    progress: dict[str, Any] | None = None
    progress_at: float | None = None
    mailbox: dict[str, int] = {}
    """How many signals of each name no wait has taken."""
    chunk_count: int = 0
    chunks: list[ShownChunk] = []
    fields: dict[str, Any] = {}
    """The same, for programs."""

    @property
    def waits(self) -> list[ShownStep]:
        """What it waits for."""
        return [step for step in self.steps if not step.over]

    @property
    def awaited(self) -> list[str]:
        """The names of the signals that it waits for."""
        return [step.signal for step in self.waits if step.signal]

    @property
    def goes_on(self) -> str:
        """What wakes an item that waits without a limit."""
        if self.awaited or not self.waits:
            return NEVER_WORDS
        return "when its children have ended"


RECORDED: Final = ("steps", "progress", "mailbox", "chunks", "stream")
"""The names of `fields`."""
NEVER_WORDS: Final = "when the signal comes"
"""What is said instead of `NEVER`."""


async def read_steps(visit: Visit, state: ItemState) -> ItemSteps | None:
    """What an item has recorded. None: not in time."""
    backend = visit.client.backend
    if "steps" not in backend.capabilities:
        return _shown(visit, state, Recorded(), ())
    found = await visit.in_time(backend.steps([state.id], tenant=state.tenant))
    if found is None:
        return None
    recorded = found[0] or Recorded()
    first = max(0, recorded.chunks - MOST_CHUNKS)
    last: Sequence[Chunk] | None = ()
    if recorded.chunks and visit.access.payloads:
        last = await visit.in_time(backend.stream(state.id, since=first, tenant=state.tenant))
    return _shown(visit, state, recorded, last or ())


def _shown(visit: Visit, state: ItemState, found: Recorded, chunks: Sequence[Chunk]) -> ItemSteps:
    kept = found.kept
    newest = [step for at, step in enumerate(kept, MOST_STEPS) if at >= len(kept) or not step.over]
    small = [_small(step) for step in newest]
    fields = visit.values.recorded(
        state, msgspec.structs.replace(found, steps=tuple(small)), visit.site.now()
    )
    for step in fields["steps"]:
        _hide(visit, step)
    fields["stream"] = [_chunk(visit, state, each) for each in chunks]
    ended, progress = state.status in TERMINAL, fields["progress"]
    if progress is not None and not visit.access.payloads:
        progress["message"] = None
    return ItemSteps(
        steps=[_step(visit, *pair, ended=ended) for pair in zip(newest, fields["steps"], strict=True)],
        earlier=len(kept) - len(newest),
        progress=progress,
        progress_at=found.progress_at,
        mailbox=found.mailbox,
        chunk_count=found.chunks,
        chunks=[
            ShownChunk(each.number, each.at, _chunk_text(each, shown["value"]))
            for each, shown in zip(chunks, fields["stream"], strict=True)
        ],
        fields=fields,
    )


def _small(step: StepRecord) -> StepRecord:
    """A step without a value that is too large to be read here."""
    is_large = step.kind != "failure" and len(step.value or b"") > LARGEST
    return msgspec.structs.replace(step, value=None) if is_large else step


def _hide(visit: Visit, fields: dict[str, Any]) -> None:
    """Mask what this dashboard masks, and leave out what this visitor may not see."""
    if visit.access.payloads:
        fields["value"] = visit.site.secrets.masked(fields["value"])
        return
    fields["value"] = None
    fields.pop("unreadable", None)
    if fields["error"] is not None:
        fields["error"] = fields["error"].partition(":")[0]


def _step(visit: Visit, step: StepRecord, fields: dict[str, Any], *, ended: bool) -> ShownStep:
    stored = step.value is not None and step.kind in ("value", "signal", "children")
    is_large = stored and len(step.value or b"") > LARGEST
    shown = stored and not is_large and visit.access.payloads
    return ShownStep(
        name=step.name,
        kind=step.kind,
        at=step.at,
        over=fields["over"] or ended,
        until=step.until,
        signal=step.signal if step.kind == "signal" else None,
        text=_words(step, fields["over"], ended, fields["error"]),
        value=_cut(json_text(fields["value"])) if shown else None,
        size=len(step.value or b"") if is_large and visit.access.payloads else 0,
        hidden=stored and not visit.access.payloads,
    )


def _words(step: StepRecord, over: bool, ended: bool, error: str | None) -> str:
    """What a step did. ended: the item has, so it waits no longer."""
    name, signal = plain(step.name), plain(step.signal)
    waits = "waited for" if over or ended else "waits for"
    match step.kind:
        case "failure":
            return f"step {name} failed after {duration(step.took)}, and that is its outcome: {error}"
        case "sleep":
            length = "" if step.until is None else f" for {duration(step.until - step.at)}"
            return f"{'slept' if over else 'was to sleep' if ended else 'sleeps'}{length} (step {name})"
        case "signal":
            own = "" if step.name == step.signal else f" (step {name})"
            came = ", which did not come in time" if step.value is None else ", which came"
            return f"{waits} the signal {signal}{own}{came if over else ''}"
        case "children":
            return f"{waits} its children (step {name})"
        case _:
            return f"step {name} took {duration(step.took)}"


def _chunk(visit: Visit, state: ItemState, chunk: Chunk) -> dict[str, Any]:
    is_large = len(chunk.value) > LARGEST
    fields = visit.values.chunk(state, msgspec.structs.replace(chunk, value=None) if is_large else chunk)
    return {**fields, "value": visit.site.secrets.masked(fields["value"])}


def _chunk_text(chunk: Chunk, shown: object) -> str:
    if len(chunk.value) > LARGEST:
        return f"{len(chunk.value):,} bytes: too large to be shown here"
    return _cut(shown if isinstance(shown, str) else json_text(shown))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} …"
