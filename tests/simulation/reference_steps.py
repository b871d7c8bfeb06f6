"""The reference for steps: what an item has recorded, its mailbox and its stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from treadle.item import NEVER, Record, Signal, StepRecord

WAITS = ("sleep", "signal", "children")


class ReferenceMail:
    """A signal that was stored."""

    def __init__(self, signal: Signal) -> None:
        self.name = signal.name
        self.value = signal.value
        self.key = signal.key
        self.taken = False


class ReferenceSteps:
    """What an item must have recorded."""

    def __init__(self) -> None:
        self.steps: dict[str, StepRecord] = {}
        self.mail: list[ReferenceMail] = []
        self.chunks: list[bytes] = []
        self.effects: Counter[str] = Counter()
        """How often each step has written in a transaction that was committed."""
        self.suspended = False

    def add(self, steps: Sequence[StepRecord], now: float) -> None:
        for step in steps:
            before = self.steps.get(step.name)
            if before is not None and before.kind == "forgotten":
                del self.steps[step.name]  # it is recorded first now
            self.steps[step.name] = replace(
                step,
                delay=None,
                until=step.until if step.delay is None else now + step.delay,
                times=0 if before is None else before.times,
            )

    def say(self, record: Record) -> None:
        for number, value in enumerate(record.chunks, record.first_chunk):
            if number == len(self.chunks) + 1:
                self.chunks.append(value)

    def suspend(self, waits: Sequence[StepRecord], now: float) -> float:
        """Wait for these. Returns when the item is due."""
        self.add(waits, now)
        named = [step.name for step in waits]
        for step in [*self.steps.values()]:
            if step.signal and not step.over and step.name not in named:
                del self.steps[step.name]
        for name in named:
            if self.waits_for(name, self.steps[name].signal, now):
                first = next(
                    (m for m in self.mail if m.name == self.steps[name].signal and not m.taken), None
                )
                if first is not None:
                    self.deliver(name, first)
        self.suspended = True
        found = [self.steps[name] for name in named if self.steps[name].kind in WAITS]
        return min((now if step.over else max(now, step.until or NEVER) for step in found), default=NEVER)

    def waits_for(self, name: str, signal: str, now: float) -> bool:
        step = self.steps[name]
        in_time = step.until is None or now < step.until
        return bool(signal) and step.signal == signal and not step.over and in_time

    def deliver(self, name: str, mail: ReferenceMail) -> None:
        mail.taken = True
        self.steps[name] = replace(self.steps[name], value=mail.value, over=True)

    def wake(self) -> None:
        for name, step in self.steps.items():
            if step.kind == "sleep" and not step.over:
                self.steps[name] = replace(step, over=True, value=None)

    def sleeps(self) -> bool:
        return any(step.kind == "sleep" and not step.over for step in self.steps.values())

    def forget(self, *, dead: bool, from_step: str | None) -> None:
        """A requeue opens the item again."""
        kept: dict[str, StepRecord] = {}
        behind = False
        for name, step in self.steps.items():
            behind = behind or (name == from_step and step.kind != "forgotten")
            if not step.over:
                continue
            undone = dead and step.undo is not None
            if (behind and step.kind != "forgotten") or undone:
                kept[name] = StepRecord(name=name, kind="forgotten", times=step.times + 1)
            else:
                kept[name] = step
        self.steps = kept
        self.suspended = False

    def has(self, name: str) -> bool:
        return name in self.steps and self.steps[name].kind != "forgotten"

    def shown(self) -> Any:
        return (
            [_facts(step) for step in self.steps.values()],
            [(mail.name, mail.value, mail.key, mail.taken) for mail in self.mail],
            self.chunks,
        )


def _facts(step: StepRecord) -> tuple[Any, ...]:
    until = None if step.until is None else round(step.until, 6)
    return (step.name, step.kind, step.value, step.undo, step.signal, step.over, until, step.times)


def stored(found: Any) -> Any:
    """The same of a row of the store."""
    if found is None:
        return [], [], []
    return (
        [_facts(step) for step in found.steps.values()],
        [(mail.name, mail.value, mail.key, mail.taken) for mail in found.mail],
        [chunk.value for chunk in found.chunks],
    )
