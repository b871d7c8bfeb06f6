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
| I21 | what was handed out of a strict lane holds it until it has ended |

`step_checks` has the rules for steps. `handler_checks` has the rules for what really runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.backends.memory_audit import audit
from tests.simulation.handler_checks import SimWorker
from tests.simulation.operator_checks import OperatorChecks
from tests.simulation.reference import ReferenceItem, Violation, must
from treadle.events import Dead, GroupDone, Started, Succeeded
from treadle.item import Item


def run(reading: Any) -> Any:
    """The answer of a memory backend, which never waits."""
    try:
        reading.send(None)
    except StopIteration as answer:
        return answer.value
    raise AssertionError("a memory backend waited")


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

    def record(self, now: float, records: Any, answers: Any) -> None:
        self.recorded.record(now, records, answers)

    def signal(self, now: float, signals: Any, tenant: str | None, answers: Any) -> None:
        self.recorded.signal(now, signals, tenant, answers)

    def committed(self, now: float, effects: Any) -> None:
        self.recorded.committed(effects)

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
            if expected is None:
                raise Violation(f"{row.ref} is in the store and should not be")
            self._compare_item(row, expected)
        self._compare_groups()

    def _compare_item(self, row: Any, expected: ReferenceItem) -> None:
        # Called for every item, so a message is written only if it is needed.
        status = "waiting" if row.status in ("scheduled", "ready") else row.status
        wanted = "running" if expected.token and not expected.doom else expected.status
        kept = expected.losses and wanted == "waiting" and not expected.doom
        if kept and row.place != expected.place:
            raise Violation(f"{expected} lost its place in line")
        if row.failed_group != expected.failed_group:
            raise Violation(f"{expected} failed its group: {row.failed_group}")
        if (status, row.attempt, row.token, row.verdict) != (
            wanted,
            expected.attempt,
            expected.token,
            expected.doom,
        ):
            raise Violation(
                f"{expected}: {row.status}, attempt {row.attempt}, token {row.token}, {row.verdict}; must be "
                f"{wanted}, {expected.attempt}, {expected.token}, {expected.doom}"
            )
        self.recorded.compare(row, expected)
        stored = _data(row.item, row.due_at, row.deadline)
        data = _data(expected.item, expected.due_at, expected.deadline)
        if stored != data:
            raise Violation(f"{expected}: {stored}; must be {data}")

    def _compare_groups(self) -> None:
        """Groups are open, failed and nested as the reference says, and as a recount of its items says."""
        members: dict[Any, list[Any]] = {group: [] for group in self.reference.groups.values()}
        for expected in self.reference.items.values():
            members.setdefault(expected.group, []).append(expected)
        for group, items in members.items():
            open = sum(not expected.ended for expected in items)
            if group.open != open:
                raise Violation(f"group {group.ref}: {group.open} open, counted {open}")
            failed = sum(expected.failed_group for expected in items)
            if group.failed < failed:
                raise Violation(f"group {group.ref}: {group.failed} failed, counted {failed}")
        self._compare_stored_groups()

    def _compare_stored_groups(self) -> None:
        groups = self.reference.groups
        by_tenant: dict[str, list[str]] = {}
        for tenant, id in groups:
            by_tenant.setdefault(tenant, []).append(id)
        for tenant, ids in by_tenant.items():
            for id, found in zip(ids, run(self._store.group(ids, tenant=tenant)), strict=True):
                group = groups[tenant, id]
                if found is None:
                    raise Violation(f"group {group.ref} is missing")
                outer = None if group.outer is None else group.outer.ref[1]
                wanted = (group.open, group.failed, group.version, group.value, outer, group.ended_at)
                shown = (found.open, found.failed, found.version, found.value, found.outer, found.ended_at)
                if shown != wanted:
                    raise Violation(f"group {group.ref}: {shown}, not {wanted}")
                self._check_held_open(group)

    def _check_held_open(self, group: Any) -> None:
        """An open nested group keeps the groups around it open, as long as the item that closes it waits."""
        closing = self.reference.items.get(group.ref) if group.outer is not None else None
        if closing is not None and group.open and not closing.ended:
            must(closing.status == "blocked" and group.outer.open, f"{closing} does not wait for its group")

    def event(self, event: Any) -> None:
        """No event is sent before what it reports has happened."""
        expected = self.reference.items.get((getattr(event, "tenant", ""), getattr(event, "id", "")))
        if expected is None or expected.ref in self.reused:
            return  # it may be an event of an earlier item with this id
        if isinstance(event, Started):
            expected.starts += 1
            must(expected.starts <= expected.leases, f"{expected} was started more often than leased")
        elif isinstance(event, Succeeded | Dead):
            must(expected.ends, f"{type(event).__name__} of {expected}, which has not ended")
        elif isinstance(event, GroupDone):
            group = self.reference.groups.get(expected.ref, expected.group)
            self._done[group.ref] += 1
            must(
                self._done[group.ref] <= group.times_ended,
                f"GroupDone of {expected} too often or too early",
            )


def _data(item: Item, due_at: float, deadline: float | None) -> tuple[Any, ...]:
    """What a submit with the same key, or an update, may change."""
    fields = (item.input, item.options, item.attempts, item.priority, item.lane, item.queue, item.keep)
    return (*fields, round(due_at, 6), None if deadline is None else round(deadline, 6))
