"""The checks of steps: recording, suspending, signals, undos and streams. The rules:

| S1 | a record is written iff its token owns the item; what a step has come to never changes |
| S2 | the function of a step is called once per lease, and not if the step is recorded |
| S3 | what a step gives to its handler is what is recorded of it |
| S4 | each signal is taken by one wait, in the order of arrival, and is never lost |
| S5 | a suspended item has no lease; it is due at its first wait, or when a signal comes |
| S6 | the settlement of a death undoes each step that can be undone, once, the last step first |
| S7 | a stream has no gaps, and all that the recorded call of a step has said |
| S8 | what a step writes in its transaction is there iff the step is recorded, once |
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.reference import ReferenceItem, ReferenceStore, must
from tests.simulation.reference_steps import ReferenceMail, stored
from treadle.item import GROUP_MARK, Loss, Outcome, Record, Ref, Settlement, Signal, Signalled, StepRecord

MOST_UNREAD = 1000
WITHIN = "within"
"""Begin of the names of steps that write in a transaction."""


class StepChecks:
    def __init__(self, reference: ReferenceStore, cover: Callable[[str], None]) -> None:
        self._reference = reference
        self._cover = cover
        self._calls: Counter[str] = Counter()
        self._called: dict[tuple[Ref, str], set[int]] = {}
        """The tokens under which the function of a step was called."""
        self._said: dict[str, list[str]] = {}
        """What each call of a function has emitted."""

    def of(self, reference: ReferenceStore) -> StepChecks:
        """The same checks, of one of several stores."""
        checks = copy.copy(self)
        checks._reference = reference
        return checks

    # -- what handlers see ---------------------------------------------------------------------------------

    def called(self, ref: Ref, name: str, token: int | None) -> str:
        """The function of a step is called. Returns the value of this call."""
        self._calls[name] += 1
        value = f"{name}#{self._calls[name]}"
        expected = self._reference.items.get(ref)
        if expected is not None and token is not None and expected.token == token:
            tokens = self._called.setdefault((ref, name), set())
            must(token not in tokens, f"{expected}: the step {name} was called twice in one attempt")
            must(not expected.recorded.has(name), f"{expected}: the step {name} was called, and is recorded")
            self._cover("a step ran again") if tokens else None
            tokens.add(token)
        return value

    def said(self, call: str, number: int) -> str:
        chunk = f"{call}:{number}"
        self._said.setdefault(call, []).append(chunk)
        return chunk

    def saw(self, ref: Ref, name: str, value: Any, token: int | None) -> None:
        """A step has given this value to its handler."""
        expected = self._reference.items.get(ref)
        if expected is None or token is None or expected.token != token:
            return
        step = expected.recorded.steps.get(name)
        must(step is not None, f"{expected} saw the step {name}, which is not recorded")
        assert step is not None
        found = _value(step)
        must(found == value, f"{expected}: the step {name} gave {value!r}, and {found!r} is recorded")
        over = step.over or (step.until is not None)
        must(over, f"{expected} went on behind {name}, which is not over")
        if name.startswith(WITHIN):
            self._check_effect(expected, name)

    def committed(self, effects: Sequence[tuple[Ref, str]]) -> None:
        """A transaction with these writes was committed (S8)."""
        for ref, name in effects:
            expected = self._reference.items.get(ref)
            must(expected is not None, f"a step of {ref} wrote, and the item is gone")
            assert expected is not None
            expected.recorded.effects[name] += 1
            self._check_effect(expected, name)
            self._cover("a step was committed")

    def _check_effect(self, expected: ReferenceItem, name: str) -> None:
        step, times = expected.recorded.steps.get(name), expected.recorded.effects[name]
        wanted = 0 if step is None else step.times + 1
        must(times == wanted, f"{expected}: the step {name} wrote {times} times, not {wanted}")

    # -- recording -----------------------------------------------------------------------------------------

    def record(self, now: float, records: Sequence[Record], answers: Sequence[Loss | None]) -> None:
        for record, loss in zip(records, answers, strict=True):
            lease = record.lease
            expected = self._reference.items.get((lease.tenant, lease.id))
            owned = expected is not None and expected.token == lease.token
            must((loss is None) == owned, f"{expected}: a record of {lease.token} got {loss}")
            if expected is None or not owned:
                self._cover(f"a record was refused: {loss}")
                continue
            self._say(expected, record)
            if record.steps:
                self._check_values(expected, record.steps)
                expected.recorded.add(record.steps, now)
                expected.attempt, expected.failures, expected.losses = 1, 0, 0
                self._cover("a step was recorded")

    def _check_values(self, expected: ReferenceItem, steps: Sequence[StepRecord]) -> None:
        for step in steps:
            before = expected.recorded.steps.get(step.name)
            if before is not None and before.kind != "forgotten" and before.over:
                same = (before.kind, before.value) == (step.kind, step.value)
                must(same, f"{expected}: the step {step.name} was {before.value!r}, and is {step.value!r}")
            if step.kind == "value":
                self._check_said(expected, str(_value(step)))

    def _say(self, expected: ReferenceItem, record: Record) -> None:
        if record.chunks:
            known = len(expected.recorded.chunks)
            must(record.first_chunk <= known + 1, f"{expected}: chunk {record.first_chunk} after {known}")
            self._cover("chunks were written")
        expected.recorded.say(record)

    def _check_said(self, expected: ReferenceItem, call: str) -> None:
        said = self._said.get(call, [])
        found = [json.loads(chunk) for chunk in expected.recorded.chunks]
        there = [chunk for chunk in found if chunk.startswith(f"{call}:")]
        must(there == said, f"{expected}: the call {call} said {said}, and {there} is in the stream")

    # -- suspending ----------------------------------------------------------------------------------------

    def suspend(self, now: float, expected: ReferenceItem, settlement: Settlement, outcome: Outcome) -> None:
        unread = sum(not mail.taken for mail in expected.recorded.mail)
        due = expected.recorded.suspend(settlement.steps, now)
        if unread > sum(not mail.taken for mail in expected.recorded.mail):
            self._cover("a wait took a signal that was there")
        self._reference.drop_lease(expected)
        expected.attempt = expected.failures = expected.losses = 0
        expected.status = "waiting"
        expected.ready_at = None
        expected.woken = False
        expected.due_at = due
        if expected.overdue:
            self._reference.doom(expected, "expired")
        ready = due <= now and expected.doom is None
        must(outcome.ready == ready, f"{expected} is suspended until {due}: ready is {outcome.ready}")
        self._cover("suspended")
        for step in settlement.steps:
            self._cover(f"suspended for {step.kind}") if not step.over else None

    def leased(self, expected: ReferenceItem, has_steps: bool, resumes: bool) -> None:
        found = expected.recorded
        wanted = (bool(found.steps), found.suspended)
        must((has_steps, resumes) == wanted, f"{expected}: has steps, resumes: {(has_steps, resumes)}")
        found.suspended = False
        self._cover("resumed") if resumes else None

    def undone(self, expected: ReferenceItem, settlement: Settlement) -> list[tuple[str, bool]]:
        """The undos that the death of an item must queue (S6)."""
        steps = [step for step in expected.recorded.steps.values() if step.undo is not None]
        wanted = [str(_value(step)) for step in reversed(steps)]
        found = [json.loads(child.input)["value"] for child in settlement.children if child.type == "undone"]
        must(found == wanted, f"{expected} died, and undoes {found}, not {wanted}")
        for before, after in zip(settlement.children, settlement.children[1:], strict=False):
            must(after.after == (before.id,), f"{expected}: its undos do not wait for each other")
        if len(wanted) > 1:
            self._cover("several steps were undone")
        return [("undone", False)] * len(wanted)

    # -- signals -------------------------------------------------------------------------------------------

    def signal(
        self, now: float, signals: Sequence[Signal], tenant: str | None, answers: Sequence[Signalled]
    ) -> None:
        for signal, answer in zip(signals, answers, strict=True):
            expected = self._reference.find(tenant, signal.id)
            verb = self._verb(expected, signal, now)
            must(answer.verb == verb, f"{signal} to {expected}: {answer.verb}, not {verb}")
            if verb == "stored" and expected is not None:
                self._store(now, expected, signal, answer)
            else:
                self._cover(f"a signal was refused: {verb}")

    def _verb(self, expected: ReferenceItem | None, signal: Signal, now: float) -> str:
        if expected is None:
            return "not_found"
        if expected.ended:
            return "ended"
        found = expected.recorded
        if signal.key is not None and any((m.name, m.key) == (signal.name, signal.key) for m in found.mail):
            return "existing"
        unread = sum(not mail.taken for mail in found.mail)
        return "full" if unread >= MOST_UNREAD and self._wait(expected, signal, now) is None else "stored"

    def _wait(self, expected: ReferenceItem, signal: Signal, now: float) -> str | None:
        """The wait that takes this signal now."""
        found = expected.recorded
        if not found.suspended:
            return None
        return next((name for name in found.steps if found.waits_for(name, signal.name, now)), None)

    def _store(self, now: float, expected: ReferenceItem, signal: Signal, answer: Signalled) -> None:
        found, name = expected.recorded, self._wait(expected, signal, now)
        mail = ReferenceMail(signal)
        found.mail.append(mail)
        if name is None:
            when = "while it ran" if expected.token else "after the wait" if found.steps else "before"
            self._cover(f"a signal came {when}")
            must(answer.woken is None, f"{expected} was woken by {signal}, which it does not wait for")
            return
        found.deliver(name, mail)
        self._cover("a signal came while it was waited for")
        asleep = expected.doom is None and expected.due_at > now
        must(answer.woken is not None or not asleep, f"{expected} was not woken by {signal}")
        must(answer.woken is None or expected.doom is None, f"{expected} was woken, and is doomed")
        if answer.woken is not None:
            expected.due_at = now
            expected.woken = not signal.name.startswith(GROUP_MARK)
            expected.ready_at = now if expected.woken else None

    # -- comparing -----------------------------------------------------------------------------------------

    def compare(self, row: Any, expected: ReferenceItem) -> None:
        found = expected.recorded
        if row.suspended != found.suspended:
            must(False, f"{expected} is suspended: {row.suspended}, not {found.suspended}")
        if row.suspended and row.token:
            must(False, f"{expected} is suspended, and has a lease")
        if row.steps is None and not (found.steps or found.mail or found.chunks):
            return
        shown, wanted = stored(row.steps), found.shown()
        if shown != wanted:
            must(False, f"{expected} has recorded {shown}; must be {wanted}")


def _value(step: StepRecord) -> Any:
    return None if step.value is None else json.loads(step.value.rpartition(b"\x00")[2])
