"""What must be true: after every step of the store, and at the end.

Tokens are never used twice (I2); attempts stay within the budget (I3, invariant 6);
an item is never leased twice at once (I4); it ends once per opening (I8); a group ends once per opening (I9);
recounting equals the counters (I9, I12, I13: the backend's own audit); nothing acknowledged is lost (I7).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from treadle.backends.memory import MemoryBackend
from treadle.backends.memory.audit import audit
from treadle.item import Claim, Settled, Settlement

AUDIT_EVERY = 25


class Violation(AssertionError):
    """Something that must never happen did."""


class Watch:
    def __init__(self, store: MemoryBackend) -> None:
        self._store = store
        self.steps = 0
        self.coverage: Counter[str] = Counter()
        self.timeline: list[str] = []
        self.clock: Any = None
        self._tokens: set[int] = set()
        self._terminal: Counter[tuple[str, str]] = Counter()
        self._closed: Counter[tuple[str, str]] = Counter()
        self._reopened: Counter[tuple[str, str]] = Counter()
        self._groups_reopened: Counter[tuple[str, str]] = Counter()

    def sometimes(self, what: str) -> None:
        """Something interesting happened. Whatever is worth simulating must happen now and then."""
        self.coverage[what] += 1

    def note(self, what: str) -> None:
        self.timeline.append(f"{self.clock():10.4f}  {what}")

    # -- after every step ------------------------------------------------------------------------------

    def stepped(self, verb: str, args: tuple[Any, ...], answer: Any) -> None:
        self.steps += 1
        if verb == "claim":
            self._claimed(answer)
        elif verb == "settle":
            self._settled(args[0], answer)
        elif verb == "requeue":
            self._requeued(answer)
        elif verb in ("cancel", "complete", "delete"):
            self._effects(answer)
        elif verb == "orphans" and answer:
            self.sometimes("orphan found")
        if self.steps % AUDIT_EVERY == 0:
            self.audit()

    def audit(self) -> None:
        problems = audit(self._store)
        if problems:
            raise Violation("; ".join(problems[:5]))

    def _claimed(self, claim: Claim) -> None:
        for lease in claim.leases:
            self.note(f"claimed {lease.id[-6:]} {lease.type} attempt {lease.attempt} {lease.verdict or ''}")
            if lease.token in self._tokens:
                raise Violation(f"token {lease.token} was used twice")
            self._tokens.add(lease.token)
            if lease.attempts is not None and lease.attempt > lease.attempts:
                raise Violation(f"{lease.id} is at attempt {lease.attempt} of {lease.attempts}")
            if lease.verdict is not None:
                self.sometimes(f"verdict {lease.verdict}")

    def _settled(self, settlements: list[Settlement], answer: Settled) -> None:
        for settlement, outcome in zip(settlements, answer.outcomes, strict=True):
            lease = settlement.lease
            self.note(
                f"settle  {lease.id[-6:]} {settlement.kind} {settlement.reason or ''} -> {outcome.verb}"
                f"{' again' if outcome.again else ''}"
            )
            if outcome.verb == "stale":
                self.sometimes("stale settle refused")
            elif outcome.verb == "moved":
                self.sometimes("fold moved")
            elif outcome.again:
                self.sometimes("settled again")
            elif outcome.verb == "applied" and settlement.kind in ("success", "dead", "cancelled"):
                self._ended((lease.tenant, lease.id))
                if settlement.kind == "dead":
                    self.sometimes(f"dead {settlement.reason}")
        self._effects(answer)

    def _ended(self, ref: tuple[str, str]) -> None:
        self._terminal[ref] += 1
        if self._terminal[ref] > 1 + self._reopened[ref]:
            raise Violation(f"{ref} ended twice")

    def _effects(self, answer: Any) -> None:
        for closed in answer.effects.closed:
            ref = (closed.tenant, closed.id)
            self._closed[ref] += 1
            if self._closed[ref] > 1 + self._groups_reopened[ref]:
                raise Violation(f"group {ref} ended twice")
        if answer.effects.released:
            self.sometimes("dependent released")
        if answer.effects.doomed:
            self.sometimes("gate doomed")

    def _requeued(self, answer: Any) -> None:
        for item in answer.items:
            self._reopened[item.tenant, item.id] += 1
            self._groups_reopened[item.tenant, item.group_id] += 1
            self.sometimes("requeued")
