"""Item: why it is where it is, its life, what went in and came out, and what it has to do with."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

import msgspec

from treadle.base.headers import trace_id_of
from treadle.base.ids import check_id
from treadle.base.wording import error_line, plural
from treadle.bulk_action import BULK_TYPE
from treadle.dashboard.access import Action, not_there
from treadle.dashboard.addresses import segment
from treadle.dashboard.payloads import Payload, shown_headers, shown_item_json, shown_payload, shown_reasons
from treadle.dashboard.steps import RECORDED, ItemSteps, read_steps
from treadle.dashboard.timeline import Timeline, timeline_of
from treadle.dashboard.views import Elsewhere, View
from treadle.dashboard.views.items import verbs_for
from treadle.dashboard.visit import Visit
from treadle.define.condition import GroupRef, shown_name
from treadle.define.dependency import BUILT_IN
from treadle.define.secret_values import SecretMask
from treadle.item import OPEN, ItemState
from treadle.item_facts import PrerequisiteStatus
from treadle.logs.tracebacks import is_users, package_of
from treadle.operate.filters import attempt_words
from treadle.operate.fleet_json import reason_json
from treadle.operate.item_json import log_json
from treadle.records import AttemptLog, Related
from treadle.store.rules.watching import died_unrun
from treadle.why import Reason

MOST_PREREQUISITES: Final = 100


class Prior(msgspec.Struct, frozen=True):
    """An item or a group that this one waits for, or waited for."""

    id: str
    status: PrerequisiteStatus | None
    """None: it is a whole group, which is not looked at here."""
    type: str = ""


class FailedAttempt(msgspec.Struct, frozen=True):
    """One failed attempt, or the note of a death without one."""

    title: str
    error: str
    message: str
    """Empty if the error line or the traceback says all."""
    at: float
    worker: str
    release: str
    parts: list[TracebackPart]
    same_as: int | None = None
    """The attempt that has the same traceback."""


class ItemPage(msgspec.Struct, frozen=True, kw_only=True):
    state: ItemState
    reasons: list[Reason] | None
    """Why it is where it is. None: not in time."""
    timeline: Timeline
    attempts: str
    unrun: bool
    """It died without an attempt."""
    input: Payload | None
    result: Payload | None
    headers: dict[str, str] | None
    history: list[FailedAttempt]
    parent: Prior | None
    after: list[Prior]
    more_after: int
    related: Related | None
    """None: not in time."""
    recorded: ItemSteps | None
    """None: not in time."""
    logs: list[AttemptLog] | None
    """What its last attempts have logged, the newest first. None: not in time, or hidden."""
    trace_id: str | None
    trace_url: str | None
    verbs: list[Action]


async def read(visit: Visit) -> ItemPage | Elsewhere:
    id = check_id(visit.part("id"))
    client = visit.item_client
    (state,), why, related = await asyncio.gather(
        client.get(id), visit.in_time(client.why(id)), visit.in_time(client.related(id))
    )
    if state is None:
        raise not_there(f"there is no item {id!r}", "it never was, or it is not kept any more")
    if state.type == BULK_TYPE:
        return Elsewhere(visit.url(f"/bulk/{segment(state.group_id)}"))
    found, recorded, logs = await asyncio.gather(
        _around(visit, state), read_steps(visit, state), _read_logs(visit, state)
    )
    steps = () if recorded is None else recorded.steps
    trace_id = trace_id_of(state.options)
    return ItemPage(
        state=state,
        reasons=None if why is None else shown_reasons(visit, why),
        timeline=timeline_of(state, visit.site.now(), messages=visit.access.payloads, steps=steps),
        attempts=attempt_words(state),
        unrun=died_unrun(state),
        input=shown_payload(visit, state, "input"),
        result=shown_payload(visit, state, "result") if state.status == "success" else None,
        headers=shown_headers(visit, state),
        history=failed_attempts(visit, state),
        parent=None if state.parent is None else _prior(state.parent, found),
        after=[_prior(name, found) for name in map(shown_name, state.after[:MOST_PREREQUISITES])],
        more_after=max(0, len(state.after) - MOST_PREREQUISITES),
        related=related,
        recorded=recorded,
        logs=logs,
        trace_id=trace_id,
        trace_url=trace_url(visit, trace_id),
        verbs=item_verbs(state, recorded),
    )


async def _read_logs(visit: Visit, state: ItemState) -> list[AttemptLog] | None:
    if "steps" not in visit.client.backend.capabilities:
        return []
    if not visit.access.payloads:
        return None
    found = await visit.in_time(visit.client_of(state.tenant).logs(state.id))
    return None if found is None else [_masked(visit.site.secrets, log) for log in reversed(found)]


def _masked(mask: SecretMask, log: AttemptLog) -> AttemptLog:
    """Without what only this dashboard hides."""
    lines = tuple(msgspec.structs.replace(line, text=mask.masked_text(line.text)) for line in log.lines)
    return msgspec.structs.replace(log, lines=lines)


async def _around(visit: Visit, state: ItemState) -> dict[str, ItemState | None]:
    """Its parent and the items that it waits for."""
    names = [
        name for name in map(shown_name, state.after[:MOST_PREREQUISITES]) if not isinstance(name, GroupRef)
    ]
    wanted: list[str] = [*([state.parent] if state.parent else []), *names]
    if not wanted:
        return {}
    found = await visit.in_time(visit.client_of(state.tenant).get(wanted))
    return {} if found is None else dict(zip(wanted, found, strict=True))


def _prior(name: str, found: dict[str, ItemState | None]) -> Prior:
    if isinstance(name, GroupRef) or name not in found:
        return Prior(str(name), None)
    state = found[name]
    return Prior(name, "missing") if state is None else Prior(name, state.status, state.type)


def failed_attempts(visit: Visit, state: ItemState) -> list[FailedAttempt]:
    """The history of an item, newest first. A traceback that several have is shown once."""
    newest: dict[str, int] = {}
    shown: list[FailedAttempt] = []
    for attempt in reversed(state.history):
        noted = attempt is state.history[-1] and died_unrun(state)
        error = error_line(attempt.error_type, attempt.message if visit.access.payloads else "")
        first = newest.setdefault(attempt.traceback, attempt.attempt)
        same = bool(attempt.traceback) and first != attempt.attempt
        message = attempt.message.strip() if visit.access.payloads and not attempt.traceback else ""
        shown.append(
            FailedAttempt(
                title="death" if noted else f"attempt {attempt.attempt}",
                error=error,
                message=message if "\n" in message or len(message) > 250 else "",
                at=attempt.at,
                worker=attempt.worker,
                release=attempt.release,
                parts=traceback_parts(attempt.traceback) if visit.access.payloads and not same else [],
                same_as=first if same else None,
            )
        )
    return shown


def trace_url(visit: Visit, trace_id: str | None) -> str | None:
    """Where the trace of an item is shown, if the dashboard was told."""
    pattern = visit.site.links.get("trace")
    return None if not pattern or not trace_id else pattern.replace("{trace_id}", quote(trace_id, safe=""))


def item_verbs(state: ItemState, recorded: ItemSteps | None = None) -> list[Action]:
    """What can be done with an item in its status. One that waits for a signal, or is held, is not
    triggered."""
    own: list[Action] = ["complete"] if state.status in OPEN else [] if state.type in BUILT_IN else ["edit"]
    started = state.suspended or state.has_steps
    if state.status in OPEN and state.status != "running" and not started:
        own = ["update", *own]
    if state.status in OPEN and started:
        own = ["signal", *own]
    waits = [] if recorded is None else recorded.waits
    sleeps = not waits or any(step.kind == "sleep" for step in waits)
    left_out = {"update", "hold" if state.held else "unhold"}
    if state.held or not sleeps:
        left_out.add("trigger")
    return [*(verb for verb in verbs_for([state.status]) if verb not in left_out), *own]


def to_json(visit: Visit, page: ItemPage) -> dict[str, Any]:
    """The item as `treadle show --json` has it, with why it is there and what it has to do with."""
    return {
        **shown_item_json(visit, page.state, history=True),
        "reasons": None if page.reasons is None else [reason_json(reason) for reason in page.reasons],
        "prerequisites": page.after,
        "children": None if page.related is None else page.related.children,
        "dependents": None if page.related is None else page.related.dependents,
        "trace_id": page.trace_id,
        "logs": None if page.logs is None else [log_json(log) for log in reversed(page.logs)],
        **(dict.fromkeys(RECORDED) if page.recorded is None else page.recorded.fields),
    }


VIEW = View("/items/{id}", "item.html", read, "items", to_json=to_json)


_FRAME: Final = re.compile(r'[\s|]*+File "(.+)", line \d+')
_PYTHON: Final = re.compile(r"[\\/]lib(?:64)?[\\/]python3[^\\/]*[\\/]|^<frozen ")
"""Where Python's own modules are, on the machine of any worker."""
_CODE: Final = re.compile(r"[\\/]src[\\/]treadle[\\/]")


_REPEATED: Final = re.compile(r"\s*\[Previous line repeated (\d{1,4}) more times?\]")
_BEGINS: Final = "Traceback (most recent call last):"
_GROUP: Final = re.compile(r"^ *\+ Exception Group Traceback", re.MULTILINE)
LAST_FRAMES: Final = 5
LONGEST_CYCLE: Final = 4
"""Frames of functions that call each other in turn, and are shown once."""


class TracebackPart(msgspec.Struct, frozen=True):
    """Lines that belong together."""

    text: str
    fold: str = ""
    """What they are, if they are folded. Empty: they are shown at once."""
    error: bool = False
    """They say what was raised."""


class Frame(msgspec.Struct, frozen=True):
    """A frame, or a cycle of frames that was repeated."""

    own: bool
    text: str
    count: int = 1


def traceback_parts(text: str) -> list[TracebackPart]:
    """A stored traceback in parts: of each error, the cause first, what was raised, and the last frames of
    the user's own code. Earlier frames and those of libraries are folded."""
    if _GROUP.search(text):  # its lines are a picture of the errors in it: they stay in their order
        return _parts_in_order(list(_blocks(text)))
    sections: list[list[tuple[bool, bool, str]]] = [[]]
    for block in _blocks(text):
        if block[2] == _BEGINS:
            sections.append([])
        sections[-1].append(block)
    return [part for section in sections for part in _section_parts(section)]


def _parts_in_order(blocks: list[tuple[bool, bool, str]]) -> list[TracebackPart]:
    parts: list[TracebackPart] = []
    for own, group in groupby(blocks, key=lambda block: block[1]):
        found = [lines for _, _, lines in group]
        fold = "" if own else f"{plural(len(found), 'frame')} of libraries"
        parts.append(TracebackPart("\n".join(found), fold))
    return parts


def _section_parts(blocks: list[tuple[bool, bool, str]]) -> Iterator[TracebackPart]:
    frames: list[Frame] = []
    at = 1 if blocks and blocks[0][2] == _BEGINS else 0
    for is_frame, own, lines in blocks[at:]:
        again = _REPEATED.fullmatch(lines)
        if is_frame:
            frames.append(Frame(own, lines))
        elif again and frames:
            frames += [frames[-1]] * int(again[1])
        else:
            break
        at += 1
    if said := "\n".join(lines for _, _, lines in blocks[at:]).strip("\n"):
        said, *rest = re.split(r"\n\n(?=(?:The above exception|During handling)[^\n]*:$)", said)
        yield TracebackPart(said, error=True)
    else:
        rest = []
    yield from _frame_parts(list(_cycles(frames)))
    for each in rest:
        yield TracebackPart(each)


def _cycles(frames: list[Frame]) -> Iterator[Frame]:
    """Frames that are repeated, alone or in a cycle, as one."""
    at = 0
    while at < len(frames):
        for length in range(1, LONGEST_CYCLE + 1):
            cycle, times = frames[at : at + length], 1
            while frames[at + times * length : at + (times + 1) * length] == cycle:
                times += 1
            if times > 1:
                lines = "\n".join(each.text for each in cycle)
                what = "this frame" if length == 1 else f"these {length} frames"
                own = any(each.own for each in cycle)
                yield Frame(own, f"{lines}\n  [{what} {times:,} times]", times * length)
                at += times * length
                break
        else:
            yield frames[at]
            at += 1


def _frame_parts(frames: list[Frame]) -> Iterator[TracebackPart]:
    own = [at for at, frame in enumerate(frames) if frame.own] or range(len(frames))
    shown = set(own[-LAST_FRAMES:])
    for is_shown, group in groupby(range(len(frames)), key=shown.__contains__):
        found = [frames[at] for at in group]
        what = "earlier frame" if any(frame.own for frame in found) else "frame"
        count = plural(sum(frame.count for frame in found), what)
        fold = count if what != "frame" or not isinstance(own, list) else f"{count} of libraries"
        yield TracebackPart("\n".join(frame.text for frame in found), "" if is_shown else fold)


def _blocks(text: str) -> Iterator[tuple[bool, bool, str]]:
    """Whether it is a frame, whether it is the user's own or no frame, and its lines."""
    block: list[str] = []
    is_frame, own, indent = False, True, 0
    for line in text.rstrip("\n").split("\n"):
        found = _FRAME.match(line)
        inside = is_frame and not found and len(line) - len(line.lstrip(" |")) > indent
        if not inside:
            if block:
                yield is_frame, own, "\n".join(block)
            block = []
            is_frame = found is not None
            own = found is None or is_own(found[1])
            indent = len(line) - len(line.lstrip(" |"))
        block.append(line)
    if block:
        yield is_frame, own, "\n".join(block)


def is_own(file: str) -> bool:
    """Whether a file is neither treadle's, nor Python's, nor of an installed package, also on another
    machine."""
    if _PYTHON.search(file) or _CODE.search(file):
        return False
    return is_users(file) and not package_of(file)
