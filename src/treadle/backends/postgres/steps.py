"""Steps: what running items record, their streams, and signals to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from treadle.item import (
    MOST_UNREAD,
    STEP_KINDS,
    AuditNote,
    Chunk,
    Lease,
    Loss,
    Record,
    Recorded,
    Signal,
    Signalled,
    StepRecord,
)
from treadle.retry import Retry
from treadle.store.rules.records import noted_change

from .columns import LOSSES, names, numbers, status_of
from .connection import AnswerRow, PostgresVerbs
from .item_columns import portions
from .records import note_values
from .statements import statement, statements, text
from .user_transaction import row_in_transaction

_sql = statements("steps")
RECORD: Final = statement("steps", "record")
IDENTITY: Final = text("submit", "store_identity")
NOTED: Final = text("audits", "noted_if_any")
SIGNAL_NOTED: Final = statement("steps", "noted_signal", noted=NOTED)
SIGNAL_IN_TRANSACTION: Final = statement("steps", "signal_in_transaction", store_identity=IDENTITY)
SIGNAL_IN_TRANSACTION_NOTED: Final = statement(
    "steps",
    "noted_signal",
    signal=text("steps", "signal_in_transaction", store_identity=IDENTITY),
    noted=NOTED,
)

KIND_CODES: Final = {kind: code for code, kind in enumerate(STEP_KINDS)}
STEP_COLUMNS: Final = (
    "name", "kind", "value", "took", "undo", "signal", "over", "until", "at", "attempt", "times",
)  # fmt: skip
NO_STEPS: Final = (None,) * 10
"""Instead of `step_columns`."""
IS_LOCKED: Final = 5
"""Instead of a loss: another transaction has locked the item."""
LOCKED: Final = Retry(attempts=100, base=0.005, factor=3.0, max=0.1, jitter=1.0)
"""For items that another transaction holds (about 0.2 s each)."""


class PostgresSteps(PostgresVerbs):
    async def record(self, records: Sequence[Record]) -> Sequence[Loss | None]:
        written: dict[int, list[Record]] = {}
        for one in records:
            written.setdefault(one.lease.token, []).append(one)
        lost: dict[int, Loss] = {}
        sizes = [sum(map(_bytes_of, of_lease)) for of_lease in written.values()]
        tokens = list(written)
        for portion in portions(list(range(len(tokens))), sizes.__getitem__):
            await self._record([written[tokens[n]] for n in portion], lost, wait=False)
        return [lost.get(one.lease.token) for one in records]

    async def _record(
        self, written: Sequence[Sequence[Record]], lost: dict[int, Loss], *, wait: bool
    ) -> None:
        """Write the records of each lease. If another transaction has locked its item: after the others."""
        rows = ((row, one) for row, of_lease in enumerate(written, 1) for one in of_lease)
        logs = {row: (one.lease, one.log) for row, one in rows if one.log is not None}
        arguments = (*_record_columns(written), wait, *log_columns(logs))
        (answer,) = await self._calls.rows(RECORD, *arguments, vital=True, conflict=LOCKED)
        for row, code in zip(answer["lost_row"] or (), answer["lost_code"] or (), strict=True):
            of_lease = written[row - 1]
            if code == IS_LOCKED:
                await self._record([of_lease], lost, wait=True)
            else:
                lost[of_lease[0].lease.token] = LOSSES[code]

    async def steps(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[Recorded | None]:
        rows = await self._calls.rows(_sql("steps"), list(ids), tenant)
        found = {row["id"]: _recorded(row) for row in rows}
        return [found.get(id) for id in ids]

    async def stream(
        self, id: str, *, since: int = 0, limit: int = 1000, tenant: str | None = None
    ) -> Sequence[Chunk]:
        rows = await self._calls.rows(_sql("stream"), id, tenant, since, max(0, limit))
        return [Chunk(number, value, at) for number, value, at in rows]

    async def logs(self, id: str, *, tenant: str | None = None) -> Sequence[bytes]:
        return [value for (value,) in await self._calls.rows(_sql("logs"), id, tenant)]

    async def signal(
        self,
        signals: Sequence[Signal],
        *,
        tenant: str | None = None,
        tx: object = None,
        note: AuditNote | None = None,
    ) -> Sequence[Signalled]:
        if not signals:
            return []
        change = noted_change(note, "signal", tenant, [one.id for one in signals])
        noted = () if change is None else tuple(note_values(change).values())
        arguments = (
            [one.id for one in signals],
            tenant,
            [one.name for one in signals],
            [one.value for one in signals],
            [one.key for one in signals],
            MOST_UNREAD,
        )
        if tx is not None:
            sql = self._calls.sql(SIGNAL_IN_TRANSACTION_NOTED if noted else SIGNAL_IN_TRANSACTION)
            where = (self._calls.wake_channel, self._calls.store_identity)
            return _signalled(await row_in_transaction(tx, sql, (*arguments, *where, *noted)))
        # One without a key would be stored twice, and so would the entry.
        repeatable = not noted and all(one.key is not None for one in signals)
        sql = SIGNAL_NOTED if noted else _sql("signal")
        return _signalled(await self._calls.row(sql, *arguments, *noted, repeatable=repeatable))


def step_columns(steps: Iterable[tuple[int, StepRecord]]) -> tuple[object, ...]:
    """Steps and the rows that they belong to, as the type `treadle.new_steps` has them. Of several with one
    name in a row the last counts, in the place of the first."""
    last = {(row, step.name): step for row, step in steps}
    rows, found = [row for row, _ in last], list(last.values())
    return (
        numbers(rows, whole=True),
        [step.name for step in found],
        numbers([KIND_CODES[step.kind] for step in found], whole=True),
        [step.value for step in found],
        numbers([step.took for step in found], whole=True),
        [step.undo for step in found],
        [step.signal or None for step in found],
        numbers([step.over for step in found], whole=True),
        numbers([step.delay for step in found], whole=True),
        numbers([step.until for step in found], whole=True),
    )


def log_columns(logs: Mapping[int, tuple[Lease, bytes]]) -> tuple[object, ...]:
    """Logs by the rows that they belong to, as the type `treadle.new_logs` has them."""
    if not logs:
        return None, None, None
    trim = any(lease.attempt > 1 or lease.deferrals or lease.has_steps for lease, _ in logs.values())
    return numbers(list(logs), whole=True), [log for _, log in logs.values()], trim


def bytes_of_steps(steps: Sequence[StepRecord]) -> int:
    return sum(len(step.value or b"") + len(step.undo or b"") for step in steps)


def _bytes_of(record: Record) -> int:
    others = (record.progress or b"", record.log or b"", *record.chunks)
    return bytes_of_steps(record.steps) + sum(map(len, others))


def _record_columns(written: Sequence[Sequence[Record]]) -> tuple[object, ...]:
    """The records of each lease, in a row. Of what it said about its progress the last counts."""
    leases = [of_lease[0].lease for of_lease in written]
    rows = [(row, one) for row, of_lease in enumerate(written, 1) for one in of_lease]
    progress = {row: one.progress for row, one in rows if one.progress is not None}
    chunks = [(row, n, value) for row, one in rows for n, value in enumerate(one.chunks, one.first_chunk)]
    return (
        numbers([lease.ref for lease in leases], whole=True),
        numbers([lease.token for lease in leases], whole=True),
        names([lease.tenant for lease in leases]),
        *step_columns((row, step) for row, one in rows for step in one.steps),
        numbers(list(progress), whole=True),
        list(progress.values()),
        numbers([row for row, _, _ in chunks], whole=True),
        numbers([number for _, number, _ in chunks], whole=True),
        [value for _, _, value in chunks],
    )


def _recorded(row: AnswerRow) -> Recorded:
    columns = [row[name] or () for name in STEP_COLUMNS]
    return Recorded(
        steps=tuple([_step(values) for values in zip(*columns, strict=True)]),
        mailbox=Counter(row["unread"] or ()),
        progress=row["progress"],
        progress_at=row["progress_at"],
        chunks=row["chunks"],
    )


def _step(values: tuple[Any, ...]) -> StepRecord:
    name, kind, value, took, undo, signal, over, until, at, attempt, times = values
    return StepRecord(
        name=name,
        kind=STEP_KINDS[int(kind)],
        value=value,
        took=took,
        undo=undo,
        signal=signal or "",
        over=over,
        until=until,
        at=at,
        attempt=attempt,
        times=times,
    )


def _signalled(row: AnswerRow) -> list[Signalled]:
    columns = (row["verbs"], row["states"], row["types"], row["queues"])
    return [
        Signalled(
            verb,
            "ready" if state is None else status_of(state),
            None if type is None else (type, queue),
        )
        for verb, state, type, queue in zip(*columns, strict=True)
    ]
