"""Checks after every step of the store, and of every event.

The answer of each verb must be what the reference says:

| I1 | a settlement is applied iff its token is that of the latest claim and was not freed |
| I2 I3 | tokens are new; the attempt is counted once per claim and stays within `attempts` |
| I4 I5 | no item is leased twice at once; no item is freed before the lease of its worker is over |
| I8 | an item ends once per opening; a settlement is applied completely or not at all |
| I9 | a group ends with its last open member, once per opening, with the value contributed last |
| I10 | a dependent is released once, when its condition is first met, and doomed when it cannot be met |
| I11 | a call that is bound to a tenant shows and changes nothing of another tenant |
| I12 I13 | the store's own tables agree with a recount (its audit) and with the reference |
| I14 | each occurrence of a schedule fires once | I17 | tenants take turns | I19 | no lease runs twice |
| I20 | an item that lost its worker keeps its place; losses and failures have budgets of their own |

`handler_checks` has the rules for what really runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.handler_checks import SimWorker
from tests.simulation.operator_checks import OperatorChecks
from tests.simulation.reference import Violation, must
from treadle.backends.memory.audit import audit
from treadle.events import Dead, GroupDone, Started, Succeeded
from treadle.item import Item

AUDIT_EVERY = 60
COMPARE_EVERY = 20

__all__ = ["Checker", "Violation"]


class Checker(OperatorChecks):
    def check_step(self, verb: str, now: float, *args: Any) -> None:
        self.steps += 1
        self.calls[verb] += 1
        self.guard(getattr(self, verb), now, *args)
        if self.steps % COMPARE_EVERY == 0:
            self.guard(self.compare)
        if self.steps % AUDIT_EVERY == 0:
            self.guard(self.audit)

    def guard(self, check: Callable[..., None], *args: Any) -> None:
        if self.violation is not None:
            return
        try:
            check(*args)
        except Violation as violation:
            self.violation = violation
        except Exception as error:  # noqa: BLE001  a wrong store may confuse the reference too
            self.violation = Violation(f"{check.__name__}: {type(error).__name__}: {error}")
        if self.violation is not None:
            self.note(f"VIOLATION: {self.violation}")

    def on_event(self, event: Any, worker: SimWorker) -> None:
        self.guard(self.event, event)
        if isinstance(event, Started):
            self.guard(self.handlers.started, worker, event)

    def audit(self) -> None:
        problems = audit(self._store)
        must(not problems, "; ".join(problems[:5]))

    def compare(self) -> None:
        """The store contains the same items as the reference, in the same states."""
        rows = [row for row in self._store.store.log if not row.gone]
        must(len(rows) == len(self.reference.items), f"{len(rows)} items, not {len(self.reference.items)}")
        for row in rows:
            expected = self.reference.items.get(row.ref)
            must(expected is not None, f"{row.ref} is in the store and should not be")
            assert expected is not None
            status = "waiting" if row.status in ("scheduled", "ready") else row.status
            wanted = "running" if expected.token and not expected.doom else expected.status
            kept = expected.losses and wanted == "waiting"
            must(
                not kept or expected.doom or row.place == expected.place, f"{expected} lost its place in line"
            )
            must(
                (status, row.attempt, row.token, row.verdict)
                == (wanted, expected.attempt, expected.token, expected.doom),
                f"{expected}: {row.status}, attempt {row.attempt}, token {row.token}, {row.verdict}; must be "
                f"{wanted}, {expected.attempt}, {expected.token}, {expected.doom}",
            )

            must(
                _data(row.item, row.due_at, row.deadline)
                == _data(expected.item, expected.due_at, expected.deadline),
                f"{expected}: {_data(row.item, row.due_at, row.deadline)}; must be "
                f"{_data(expected.item, expected.due_at, expected.deadline)}",
            )

    def event(self, event: Any) -> None:
        """No event is sent before what it reports has happened."""
        expected = self.reference.items.get((getattr(event, "tenant", ""), getattr(event, "id", "")))
        if expected is None:
            return
        if isinstance(event, Started):
            expected.starts += 1
            must(expected.starts <= expected.leases, f"{expected} was started more often than leased")
        elif isinstance(event, Succeeded | Dead):
            must(expected.ends, f"{type(event).__name__} of {expected}, which has not ended")
        elif isinstance(event, GroupDone):
            self._done[expected.ref] += 1
            must(
                self._done[expected.ref] <= expected.group.times_ended,
                f"GroupDone of {expected} too often or too early",
            )


def _data(item: Item, due_at: float, deadline: float | None) -> tuple[Any, ...]:
    """What a submit with the same key, or an update, may change."""
    fields = (item.input, item.options, item.attempts, item.priority, item.lane, item.queue, item.keep)
    return (*fields, round(due_at, 6), None if deadline is None else round(deadline, 6))
