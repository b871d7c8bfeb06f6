"""Bugs of steps: one for each rule of what is recorded, waited for, signalled and undone."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.mutants.kit import Patch, mutant
from tests.mutants.store import plant
from treadle.backends.memory import operate, settle, steps
from treadle.backends.postgres import schema
from treadle.engine.open_transaction import OpenTransaction
from treadle.engine.run.step_calls import StepCalls
from treadle.engine.run.step_records import StepOutput, StepRecorder
from treadle.engine.run.steps import RunSteps
from treadle.engine.submit.build_children import CompensationBuilder
from treadle.item import Recorded
from treadle.store.rules.steps import requeued_steps

# ------------------------------------------------------------------------------------------------- recording


@mutant("record does not check the token")
def record_without_token(patch: Patch) -> None:
    plant(patch, steps, steps.owns, lambda lease, row: bool(row.token))


@mutant("a recorded step gives no attempt back")
def no_progress(patch: Patch) -> None:
    real = steps.record

    def record(store: Any, records: Any, now: float) -> Any:
        rows = [store.find(one.lease.tenant, one.lease.id) for one in records]
        before = [None if row is None else (row.attempt, row.failures) for row in rows]
        answers = real(store, records, now)
        for row, counted in zip(rows, before, strict=True):
            if row is not None and counted is not None:
                row.attempt, row.failures = counted
        return answers

    plant(patch, steps, real, record)


@mutant("an attempt does not read what was recorded")
def recorded_not_read(patch: Patch) -> None:
    async def read(self: Any, lease: Any) -> Recorded:
        return Recorded()

    patch(StepRecorder, "read", read)


@mutant("what a step has said is written after it")
def said_after_step(patch: Patch) -> None:
    patch(StepOutput, "has_news", False)


@mutant("a step is recorded after its transaction")
def recorded_after_commit(patch: Patch) -> None:
    async def once_within(self: Any, step: Any, fn: Any, call: Any, this: Any) -> Any:
        transaction = OpenTransaction(self._core.backend, self._held.lease.tenant)
        async with transaction.stack:
            value = await this.call(partial(call, await transaction.open()))
        await self._book.record(self._made(step, fn, value, this.began))
        return value

    patch(StepCalls, "_once_within", once_within)


@mutant("steps go on when their attempt has ended", tests="tests/engine/test_steps.py")
def steps_not_ended(patch: Patch) -> None:
    async def end(self: Any) -> None:
        return None

    patch(RunSteps, "end", end)


# ----------------------------------------------------------------------------------------------- suspending


@mutant("a suspend keeps the attempt")
def suspend_keeps_attempt(patch: Patch) -> None:
    real = settle.suspend

    def suspend(store: Any, row: Any, settlement: Any, now: float) -> None:
        attempt = row.attempt
        real(store, row, settlement, now)
        row.attempt = attempt

    plant(patch, settle, real, suspend)


@mutant("waits of earlier suspends are not forgotten")
def old_waits_kept(patch: Patch) -> None:
    plant(patch, steps, steps.asked_for, lambda step, waits: True)


@mutant("trigger does not end a sleep")
def trigger_keeps_sleep(patch: Patch) -> None:
    plant(patch, operate, operate.wake, lambda row: None)


@mutant("an update, or a submit with its key, lets a held item go")
def update_lets_go(patch: Patch) -> None:
    plant(patch, operate, operate.keep_hold, lambda before, due: due)


@mutant("a held item is due at once when it is let go")
def due_forgotten(patch: Patch) -> None:
    plant(patch, operate, operate.unheld_due, lambda due: 1.0)


# -------------------------------------------------------------------------------------------------- signals


@mutant("a signal lets a held item go")
def signal_lets_go(patch: Patch) -> None:
    plant(patch, steps, steps.keep_hold, lambda before, due: due)


@mutant("two waits take the same signal")
def mail_taken_twice(patch: Patch) -> None:
    real = settle.suspend

    def suspend(store: Any, row: Any, settlement: Any, now: float) -> None:
        real(store, row, settlement, now)
        for mail in row.steps.mail:
            mail.taken = False

    plant(patch, settle, real, suspend)


@mutant("the key of a signal is forgotten when the signal is taken")
def signal_keys_forgotten(patch: Patch) -> None:
    real = steps.signal

    def signal(store: Any, signals: Any, tenant: Any, now: float) -> Any:
        for one in signals:
            row = store.find(tenant, one.id)
            if row is not None and row.steps is not None:
                row.steps.mail = [mail for mail in row.steps.mail if not mail.taken]
        return real(store, signals, tenant, now)

    plant(patch, steps, real, signal)


@mutant("a wait whose time has passed takes a signal")
def late_signal_taken(patch: Patch) -> None:
    plant(patch, steps, steps.takes_signal, lambda step, name, now: step.signal == name and not step.over)


@mutant("a signal that comes while its item runs is lost")
def signal_lost(patch: Patch) -> None:
    real = steps.signal

    def signal(store: Any, signals: Any, tenant: Any, now: float) -> Any:
        answers = real(store, signals, tenant, now)
        for one in signals:
            row = store.find(tenant, one.id)
            if row is not None and row.token and row.steps is not None:
                row.steps.mail.clear()
        return answers

    plant(patch, steps, real, signal)


@mutant(
    "a suspend does not lock the row that signals lock",
    tests="tests/backends/test_postgres_steps.py",
)
def wake_without_lock(patch: Patch) -> None:
    locked = "order by o.no for update of o) x;"
    real = schema.functions()
    assert sum(locked in text for text in real) == 1
    found = tuple(text.replace(locked, "order by o.no) x;") for text in real)
    patch(schema, "functions", lambda: found)


# ---------------------------------------------------------------------------------------------------- sagas


@mutant("undos run in the order of their steps")
def undos_first_first(patch: Patch) -> None:
    real = CompensationBuilder.items

    def items(
        self: Any, lease: Any, reason: Any, error: str, attempts: int, undoable: Any, report: Any
    ) -> Any:
        return real(self, lease, reason, error, attempts, tuple(reversed(undoable)), report)

    patch(CompensationBuilder, "items", items)


@mutant("a requeue keeps steps that were undone")
def undone_kept(patch: Patch) -> None:
    plant(
        patch,
        operate,
        requeued_steps,
        lambda steps, *, dead, from_step: requeued_steps(steps, dead=False, from_step=from_step),
    )
