"""Steps: what is recorded, when waits are over, what a requeue forgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from treadle.item import GROUP_MARK, NEVER, ItemState, Lease, Signal, StepRecord


def stored_step(step: StepRecord, before: StepRecord | None, now: float, attempt: int) -> StepRecord:
    """A step as it is stored now, in this attempt of its item. before: the one of its name."""
    until = step.until if step.delay is None else now + step.delay
    times = 0 if before is None else before.times
    return replace(step, at=now, attempt=attempt, until=until, delay=None, times=times)


def is_over(step: StepRecord, now: float) -> bool:
    """Whether nothing more can come of a step. Of a wait: it was answered, or its time has passed."""
    return step.over or (step.until is not None and step.until <= now)


def takes_signal(step: StepRecord, name: str, now: float) -> bool:
    """Whether a wait takes a signal of this name now."""
    return step.signal == name and not is_over(step, now)


def answered(step: StepRecord, value: bytes | None) -> StepRecord:
    """A wait that was answered."""
    return replace(step, value=value, over=True)


def suspended_until(waits: Iterable[StepRecord], now: float) -> float:
    """When a suspended item is due. `waits`: what its settlement names, as stored. One that is over makes it
    due at once."""
    due = NEVER
    for wait in waits:
        if wait.kind not in ("value", "failure"):
            due = min(due, now if is_over(wait, now) else wait.until or NEVER)
    return due


def asked_for(step: StepRecord, waits: Sequence[StepRecord]) -> bool:
    """Whether a suspended item still has this step, with these waits. Those for signals are forgotten that it
    does not ask for any more: they would take signals from the others."""
    return step.over or not step.signal or any(wait.name == step.name for wait in waits)


def unreadable_step(name: str, problem: object) -> str:
    """What is said of a step whose value cannot be read or written."""
    return f"the step {name!r}: {problem}"


def children_signal(join: str) -> str:
    """The signal that a wait for children waits for. `join`: the id of the item (`JOIN_TYPE`) that sends it
    when they have ended."""
    return GROUP_MARK + join


def join_of(signal: str) -> str:
    """The id of the item that sends this signal when children have ended."""
    return signal.removeprefix(GROUP_MARK)


def children_ended(join: Lease | ItemState) -> Signal:
    """What that item sends to its parent. It may be repeated."""
    return Signal(id=join.parent or "", name=children_signal(join.id), key=join.id)


def forgotten(step: StepRecord) -> StepRecord:
    """What is left of a step that a requeue forgets."""
    return StepRecord(name=step.name, kind="forgotten", times=step.times + 1, at=step.at)


def requeued_steps(
    steps: Sequence[StepRecord], *, dead: bool, from_step: str | None
) -> Sequence[StepRecord] | None:
    """The steps of an item that is requeued. `steps`: in the order in which they were recorded first.
    None: it has no step of the name `from_step`."""
    names = [step.name for step in steps if step.kind != "forgotten"]
    if from_step is not None and from_step not in names:
        return None
    after: set[str] = set() if from_step is None else {*names[names.index(from_step) :]}
    return [
        forgotten(step) if step.name in after or (dead and step.undo is not None) else step
        for step in steps
        if step.over
    ]
