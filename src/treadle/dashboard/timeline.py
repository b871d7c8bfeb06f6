"""The life of an item as a picture to scale, and moment by moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

import msgspec
from markupsafe import Markup

from treadle.base.wording import duration, error_line, plain, plural
from treadle.item import NEVER, Attempt, ItemState, Status
from treadle.store.rules.watching import died_unrun

from .addresses import short_id
from .steps import ShownStep

WIDTH: Final = 1000
HEIGHT: Final = 24
SHORT: Final = 0.01
"""Seconds. A shorter life is shown with tenths of milliseconds."""
LEAST: Final = 2.5
"""Units of width: what is shorter is still seen."""
MARGIN: Final = 0.25
"""A deadline is drawn if it is at most this share of the whole later than the rest."""

MomentKind: TypeAlias = (
    Status | Literal["queued", "started", "failed", "due", "deadline", "now", "step", "wait"]
)


class Stretch(msgspec.Struct, frozen=True):
    """A stretch of time in which one thing went on."""

    kind: Literal["waited", "claimed", "tried", "ran", "failed", "future"]
    """`tried`: it waited, and then an attempt failed: when that began is not kept."""
    since: float
    until: float
    text: str


class Moment(msgspec.Struct, frozen=True):
    """Something that happened, or is to happen."""

    kind: MomentKind
    at: float
    text: str
    step: ShownStep | None = None
    """What the item has recorded then."""


class Timeline(msgspec.Struct, frozen=True):
    since: float
    until: float
    stretches: list[Stretch]
    moments: list[Moment]


def timeline_of(
    state: ItemState, now: float, *, messages: bool = True, steps: Sequence[ShownStep] = ()
) -> Timeline:
    """The life of an item so far. messages: with the messages of errors. steps: what it has recorded."""
    # The store's clock may have been set back.
    stretches = [each for each in _stretches(state, now) if each.since <= each.until]
    found = [*_moments(state, now, messages), *map(_recorded, steps)]
    moments = sorted(found, key=lambda moment: moment.at)
    instants = [state.queued_at, *(each.until for each in stretches), *(each.at for each in moments)]
    since, until = min(instants), max(instants)
    if state.deadline is not None and state.status not in ("success", "dead", "cancelled"):
        if state.deadline <= until + (until - since) * MARGIN:
            until = max(until, state.deadline)
        moments.append(Moment("deadline", state.deadline, "deadline"))
    return Timeline(since, max(until, since + 0.001), stretches, moments)


def _failures(state: ItemState) -> list[Attempt]:
    """The failed attempts. The note of a death without an attempt is none."""
    kept = state.history[:-1] if died_unrun(state) else state.history
    return sorted(kept, key=lambda attempt: attempt.at)


def _last_run(state: ItemState, now: float) -> tuple[float, float, bool] | None:
    """When the last attempt began and ended, and whether it failed. None: there was none, or it is not known
    when it began."""
    began, failures = state.started_at, _failures(state)
    if began is None or state.attempt == 0 or died_unrun(state) or _waits_to_begin(state, failures):
        return None
    failed = bool(failures) and failures[-1].attempt == state.attempt and began <= failures[-1].at
    if state.status == "running" and not failed:
        return began, max(now, began), False
    if failed:
        return began, failures[-1].at, True
    return (began, state.ended_at, state.status == "dead") if state.ended_at is not None else None


def _waits_to_begin(state: ItemState, failures: Sequence[Attempt]) -> bool:
    """Whether a worker has claimed it and not begun. Of an item whose workers died, an attempt counts when it
    begins: until then it has the number of the one that was lost. (A requeue forgets the losses.)"""
    if state.status != "running" or not state.losses or not failures:
        return False
    return failures[-1].attempt == state.attempt


def _stretches(state: ItemState, now: float) -> Iterator[Stretch]:
    at, run = state.queued_at, _last_run(state, now)
    for failure in _failures(state):
        if run is not None and failure.at >= run[1] and run[2]:
            break  # the last run
        if failure.at > at:
            yield Stretch(
                "tried",
                at,
                failure.at,
                f"waited, and attempt {failure.attempt} failed: {_long(at, failure.at)}",
            )
            at = failure.at
    if run is not None:
        began, ended, failed = run
        claimed = (
            state.claimed_at if state.claimed_at is not None and at < state.claimed_at <= began else began
        )
        if claimed > at:
            yield Stretch("waited", at, claimed, f"waited {_long(at, claimed)}")
        if began > claimed:
            yield Stretch("claimed", claimed, began, f"claimed, not begun {_long(claimed, began)}")
        word = "runs" if state.status == "running" and not failed else "ran"
        yield Stretch("failed" if failed else "ran", began, ended, f"{word} {_long(began, ended)}")
        at = ended
    end = state.ended_at if state.ended_at is not None else now
    if end > at and state.status != "running":
        yield Stretch("waited", at, end, f"waited {_long(at, end)}")
    if state.status == "scheduled" and now < state.due_at < NEVER:
        waits = "waits, and goes on in" if state.suspended else "waits until it is due:"
        yield Stretch("future", max(now, at), state.due_at, f"{waits} {_long(now, state.due_at)}")


def _moments(state: ItemState, now: float, messages: bool) -> Iterator[Moment]:
    yield Moment("queued", state.queued_at, "queued")
    failures = _failures(state)
    unkept = failures[0].attempt - 1 if failures else 0
    for before, failure in zip([None, *failures], failures, strict=False):
        if before is not None and failure.attempt <= before.attempt:
            yield _requeued(before.at)
        error = error_line(failure.error_type, failure.message if messages else "")
        kept = f" ({plural(unkept, 'earlier one')} not kept)" if unkept and before is None else ""
        yield Moment("failed", failure.at, f"attempt {failure.attempt} failed{kept}: {error}")
    run = _last_run(state, now)
    if failures and state.attempt <= failures[-1].attempt - (run is None or run[2]):
        yield _requeued(failures[-1].at)
    if run is not None:
        yield Moment("started", run[0], f"attempt {state.attempt} began{_by(state)}")
    match state.status:
        case "success":
            took = "" if run is None else f" after {_long(run[0], run[1])}"
            yield Moment("success", state.ended_at or now, f"succeeded{took}")
        case "dead":
            yield Moment("dead", state.ended_at or now, f"died: {state.reason or 'unknown'}")
        case "cancelled":
            yield Moment("cancelled", state.ended_at or now, "cancelled")
        case "scheduled" if state.held:
            yield Moment("now", now, "now: held")
        case "scheduled" if state.suspended:
            yield Moment("now", now, "now: suspended")
            if state.due_at < NEVER:
                yield Moment("due", state.due_at, "goes on")
        case "scheduled":
            yield Moment("now", now, "now: scheduled")
            yield Moment("due", state.due_at, "due")
        case "running":
            waits = f"now: claimed{_by(state)}, not begun"
            yield Moment("now", now, waits if _waits_to_begin(state, failures) else "now: runs")
        case _:
            yield Moment("now", now, f"now: {state.status}")


def _recorded(step: ShownStep) -> Moment:
    kind: MomentKind = "step" if step.over else "wait"
    return Moment("failed" if step.kind == "failure" else kind, step.at, step.text, step)


def _requeued(after: float) -> Moment:
    """When it was requeued is not kept: after this failure, whose attempt has a higher number."""
    return Moment("queued", after, "requeued later: its attempts are counted anew")


def _by(state: ItemState) -> str:
    return f" on {plain(short_id(state.worker))}" if state.worker else ""


def _long(since: float, until: float) -> str:
    return duration(until - since)


# -------------------------------------------------------------------------------------------------- picture


def timeline_svg(timeline: Timeline) -> Markup:
    """The picture: stretches as bars, moments as lines. It is stretched to the room that there is, so it has
    no texts: the moments are told beside it."""
    scale = WIDTH / (timeline.until - timeline.since)

    def x(at: float) -> float:
        return min(max((at - timeline.since) * scale, 0.0), float(WIDTH))

    bars: list[Markup] = []
    for each in timeline.stretches:
        left, right = x(each.since), x(each.until)
        left = min(left, WIDTH - LEAST)
        bars.append(
            Markup(
                '<rect class="{}" x="{:.2f}" y="5" width="{:.2f}" height="14"><title>{}</title></rect>'
            ).format(each.kind, left, max(LEAST, right - left), each.text)
        )
    lines = [
        Markup('<line class="{}" x1="{:.2f}" x2="{:.2f}" y1="1" y2="23"><title>{}</title></line>').format(
            each.kind, x(each.at), x(each.at), each.text
        )
        for each in timeline.moments
        if timeline.since <= each.at <= timeline.until
    ]
    label = "; ".join(each.text for each in timeline.moments if each.step is None)
    return Markup(
        '<svg class="timeline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}{}</svg>"
    ).format(WIDTH, HEIGHT, label, Markup().join(bars), Markup().join(lines))


def timeline_ticks(timeline: Timeline) -> list[str]:
    """What stands under the picture: how long after the beginning, at five places."""
    whole = timeline.until - timeline.since
    places = [whole * part / 4 for part in range(1, 5)]
    if whole < SHORT:
        return ["0", *(f"+{1000 * place:.1f} ms" for place in places)]
    return ["0", *(f"+{duration(place)}" for place in places)]
