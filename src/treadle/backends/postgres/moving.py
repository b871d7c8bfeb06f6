"""Moving: all that a schema holds, as records, and a schema that is filled from records.

A mark takes the schema out of sight: in one transaction with the mark it gets another name,
`treadle_parked`. So every statement of every session fails that knows the schema by its name, and nothing has
to look for a mark before it writes. `PostgresCalls` then reads the mark, which is in a small schema of the
old name. What reads a parked store gives it its name back in a transaction that is rolled back.

Each of these has a connection of its own, and one transaction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, assert_never

import asyncpg
from asyncpg.transaction import Transaction
from msgspec.structs import asdict

from treadle.backend import Export, Import, unknown_move
from treadle.errors import BackendError, InputError, StoreNotEmpty, StoreUnavailable, TreadleError
from treadle.item import STEP_KINDS, Algorithm, StepRecord
from treadle.records import StoreMark
from treadle.store import portable
from treadle.store.portable import (
    AnyRecord,
    Head,
    LostLease,
    PortableAudit,
    PortableGroup,
    PortableItem,
    PortableKey,
    PortableLimit,
    PortableOrder,
    PortableRelease,
    PortableRemoval,
    PortableRun,
    PortableSample,
    PortableSchedule,
    PortableStat,
    unleased,
)
from treadle.store.rules.limits import LimitState, idle_at
from treadle.store.rules.orders import read_order

from .columns import ALGORITHM_CODES, REASON_CODES, RUNNING, STATUS_CODES, VERDICTS
from .connection import Record
from .errors import CONNECTION_ERRORS, NothingSent, cause_of, translated
from .read import state_of
from .records import decoded as decoded_counts
from .records import encoded as encoded_counts
from .schema import IMPORTING, MOVED, Connection, PostgresSchema, refusal
from .statements import statement, statements, text

_sql = statements("moving")

PORTION: Final = 1000
LOCK_SECONDS: Final = 60
"""Seconds to wait for transactions of others that have written, and are open."""
_TOKEN_BITS: Final = 24
"""A token is a number of the sequence, and this many random bits."""
_PARKED: Final = "_parked"
_ALGORITHMS: Final[dict[str, Algorithm]] = {str(code): name for name, code in ALGORITHM_CODES.items()}
_CONTRIBUTED, _FINAL, _LIFTED, _TOLERATED, _UNRELEASED = 1, 2, 4, 8, 16


class MovingSchema:
    """What the verbs of a move need to know about a store."""

    def __init__(
        self, schema: PostgresSchema, connect: Callable[[], Awaitable[Connection]], address: str
    ) -> None:
        self.schema = schema
        self._connect = connect
        self.address = address
        self.parked = f"{schema.name}{_PARKED}"

    def sql(self, name: str) -> str:
        return self.schema.sql(_sql(name))

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """A connection without timeouts; errors as treadle's. Its commits are on the disk: a mark that a
        crash undoes would leave two owners, or none."""
        try:
            connection = await self._connect()
            try:
                await connection.execute(_sql("no_timeouts"))
                await connection.execute(_sql("durable"))
                yield connection
            finally:
                if not connection.is_closed():
                    await connection.close(timeout=10)
        except TreadleError:
            raise
        except (*CONNECTION_ERRORS, NothingSent, asyncpg.PostgresError) as error:
            cause = cause_of(error)
            raise translated(cause) from cause

    async def begin(
        self,
        connection: Connection,
        isolation: Literal["read_committed", "repeatable_read"] = "read_committed",
    ) -> Transaction:
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.execute(statement("connection", "pin_search_path"))
        return transaction

    async def freeze(self, connection: Connection) -> None:
        """Take the locks. No statement before this in the transaction may take a snapshot: what commits until
        the locks are there would be missing in it."""
        await connection.execute(text("moving", "lock_wait", seconds=str(LOCK_SECONDS)))
        try:
            await connection.execute(self.sql("freeze"))
        except asyncpg.UndefinedTableError as error:
            # Another move that had the locks has taken the schema out of sight.
            mark = await self.mark()
            if mark is None:
                raise
            raise refusal(mark) from error

    async def park(self, connection: Connection, state: int, move: str, to: str) -> None:
        """Take the schema out of sight, and say why, in the open transaction."""
        name = self.schema.name
        await connection.execute(text("moving", "rename", before=name, after=self.parked))
        await connection.execute(text("moving", "create_stub", schema=name, parked=self.parked))
        await connection.execute(self.sql("set_mark"), state, move, to)
        for (role,) in await connection.fetch(_sql("users"), self.parked):
            await connection.execute(text("moving", "let_read", schema=name, role=role))

    async def unpark(self, connection: Connection) -> None:
        await connection.execute(text("moving", "drop_schema", schema=self.schema.name))
        await connection.execute(text("moving", "rename", before=self.parked, after=self.schema.name))

    # -- the verbs -------------------------------------------------------------------------------------

    async def mark(self) -> StoreMark | None:
        async with self.connection() as connection:
            return await self.schema.mark(connection)

    @asynccontextmanager
    async def export(self, *, freeze: bool, move: str | None) -> AsyncGenerator[PostgresExport]:
        async with self.connection() as connection:
            mark = await self.schema.mark(connection)
            if mark is not None and (move is None or not mark.is_of(move)):
                raise refusal(mark)
            if mark is None:
                await self.schema.check(connection)
            # The snapshot is taken after the lock.
            transaction = await self.begin(connection, "repeatable_read")
            if mark is not None:
                await self.unpark(connection)
            elif freeze:
                await self.freeze(connection)
            yield PostgresExport(self, connection, transaction, frozen=freeze and mark is None)

    @asynccontextmanager
    async def import_(self, move: str, source: str = "") -> AsyncGenerator[PostgresImport]:
        async with self.connection() as connection:
            mark = await self.schema.mark(connection)
            if mark is not None and not mark.gives_way(source):
                raise refusal(mark)
            transaction = await self.begin(connection)
            if mark is not None:
                await self._empty(connection)
            await self.schema.apply(connection)
            await self.freeze(connection)
            found = await connection.fetchval(self.sql("in_the_way"))
            if found is not None:
                raise StoreNotEmpty(self.address, found)
            await connection.execute(self.sql("clear"))
            await connection.execute(_sql("create_waiting"))
            yield PostgresImport(self, connection, transaction, move, source)

    async def own(self, move: str) -> None:
        async with self.connection() as connection:
            transaction = await self.begin(connection)
            mark = await self.schema.mark(connection)
            if mark is None:
                if await self.schema.owned(connection) != move:
                    raise unknown_move(self.address, move)
            elif not mark.is_of(move):
                raise refusal(mark)
            else:
                await self.unpark(connection)
                await self.schema.set_owned(connection, move)
                await transaction.commit()

    async def discard(self, move: str) -> None:
        async with self.connection() as connection:
            transaction = await self.begin(connection)
            mark = await self.schema.mark(connection)
            if mark is not None and mark.is_of(move):
                await self._empty(connection)
                await transaction.commit()

    async def _empty(self, connection: Connection) -> None:
        """Remove what an import has stored, and bring the schema back."""
        await self.unpark(connection)
        await connection.execute(self.sql("empty"))


# ---------------------------------------------------------------------------------------------------- reading


class PostgresExport(Export):
    """Reads one snapshot. If it is frozen, others wait to write. The end of the session lets them go on."""

    def __init__(
        self, store: MovingSchema, connection: Connection, transaction: Transaction, *, frozen: bool
    ) -> None:
        self._store = store
        self._connection = connection
        self._transaction = transaction
        self._frozen = frozen
        self._records = self._all()

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        found: list[bytes] = []
        if not limit:
            return found
        async for record in self._records:
            found.append(portable.encode(record))
            if len(found) == limit:
                break
        return found

    async def move(self, move: str, to: str) -> None:
        if not self._frozen:
            raise StoreUnavailable("the export is not frozen")
        await self._store.park(self._connection, MOVED, move, to)
        await self._transaction.commit()
        self._frozen = False

    async def _rows(self, name: str, *arguments: object) -> list[Record]:
        return await self._connection.fetch(self._store.sql(name), *arguments)

    async def _all(self) -> AsyncIterator[AnyRecord]:
        (head,) = await self._rows("head")
        now: float = head["now"]
        yield Head(
            store="postgresql",
            at=now,
            number=head["number"],
            place=head["number"],
            token=(head["token"] + 1) << _TOKEN_BITS,
            orders=head["orders"] or 0,
            workers=tuple(head["workers"]),
        )
        last = -1
        while nos := (await self._rows("next_items", last, PORTION))[0]["nos"]:
            last = nos[-1]
            for item in await self._items(nos, now):
                yield item
        last = -1
        while rows := await self._rows("groups", last, PORTION):
            last = rows[-1][0]
            for row in rows:
                yield _group(row)
        async for record in self._rest(now):
            yield record

    async def _items(self, nos: Sequence[int], now: float) -> list[PortableItem]:
        states = {row["no"]: state_of(row) for row in await self._rows("items", nos)}
        pending: defaultdict[int, set[str]] = defaultdict(set)
        for no, name in await self._rows("pending", nos):
            pending[no].add(name)
        found = [_PostgresFields(*row) for row in await self._rows("more", nos)]
        recorded = await self._recorded([more.no for more in found if more.recorded])
        mail = await self._mail(nos)
        logs: defaultdict[int, list[bytes]] = defaultdict(list)
        for no, value in await self._rows("logs", nos):
            logs[no].append(value)
        items: list[PortableItem] = []
        for more in found:
            fields = more.fields(tuple(sorted(pending[more.no])) if more.no in pending else ())
            fields |= recorded.get(more.no, {}) | mail.get(more.no, {})
            fields["logs"] = tuple(logs.get(more.no, ()))
            item = portable.portable_item(states[more.no], fields)
            if more.status == RUNNING and more.verdict is None:
                lease = LostLease(more.worker or "", more.release or "", more.begun, more.began)
                item = unleased(item, lease, now)
            items.append(item)
        return items

    async def _recorded(self, nos: Sequence[int]) -> dict[int, dict[str, Any]]:
        """What items have recorded, whose rows say so. Of mail they do not."""
        steps: defaultdict[int, list[portable.PortableStep]] = defaultdict(list)
        found: defaultdict[int, dict[str, Any]] = defaultdict(dict)
        if not nos:
            return found
        for row in await self._rows("steps", nos):
            no, name, kind, value, took, undo, signal, over, until, at, attempt, times = row
            step = StepRecord(
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
            steps[no].append(portable.portable_step(step))
        for no, of_item in steps.items():
            found[no]["steps"] = tuple(of_item)
        for no, value, at in await self._rows("progress", nos):
            found[no] |= {"progress": value, "progress_at": at}
        chunks: defaultdict[int, list[tuple[int, float, bytes]]] = defaultdict(list)
        for no, *chunk in await self._rows("chunks", nos):
            chunks[no].append((chunk[0], chunk[1], chunk[2]))
        for no, parts in chunks.items():
            found[no]["chunks"] = tuple(parts)
        return found

    async def _mail(self, nos: Sequence[int]) -> dict[int, dict[str, Any]]:
        mail: defaultdict[int, list[Record]] = defaultdict(list)
        for row in await self._rows("mail", nos):
            mail[row["no"]].append(row)
        return {
            no: {
                "unread": tuple((row["name"], row["value"]) for row in rows if not row["taken"]),
                "signal_keys": tuple(
                    sorted((row["name"], row["key"]) for row in rows if row["key"] is not None)
                ),
            }
            for no, rows in mail.items()
        }

    async def _rest(self, now: float) -> AsyncIterator[AnyRecord]:
        for body, at in await self._rows("orders", now):
            yield PortableOrder(body=body, at=at)
        for row in await self._rows("schedules"):
            yield PortableSchedule(**dict(row))
        for row in await self._rows("removals"):
            yield PortableRemoval(**dict(row))
        for name, at, fired_at, id, tenant, error in await self._rows("runs"):
            yield PortableRun(name=name, at=at, fired_at=fired_at, id=id, tenant=tenant, error=error)
        for name, *state in await self._rows("limits"):
            code, _, own = name.partition(":")
            yield portable.portable_limit(own, _ALGORITHMS[code], *state)
        for row in await self._rows("claimed_keys", now):
            yield PortableKey(**dict(row))
        for row in await self._rows("releases"):
            yield PortableRelease(**dict(row))
        for step, at, type, queue, *counts, wait, run in await self._rows("stats"):
            yield PortableStat(
                step=step,
                at=at,
                type=type,
                queue=queue,
                counts=tuple(counts),
                wait=decoded_counts(wait),
                run=decoded_counts(run),
            )
        for row in await self._rows("samples"):
            yield PortableSample(**dict(row))
        last = -1
        while rows := await self._rows("audits", last, PORTION):
            last = rows[-1]["no"]
            for row in rows:
                fields: dict[str, Any] = dict(row) | {"ids": tuple(row["ids"])}
                yield PortableAudit(**fields)


class _PostgresFields(NamedTuple):
    """The columns of the statement `more`, in its order."""

    no: int
    group_no: int
    keep: float
    keep_dead: float | None
    contributes: bool
    need: int
    any_end: bool
    met: int | None
    status: int | None
    shown_status: int | None
    seq: int | None
    due: float
    ready_since: float | None
    redrives: int
    holds_lane: bool
    verdict: int | None
    worker: str | None
    release: str | None
    begun: bool
    began: float | None
    flags: int
    outcome: int | None
    holds_key: bool
    changed_by: Sequence[str] | None
    has_group: bool
    closes: bool
    recorded: int
    suspended: bool | None

    def fields(self, pending: tuple[str, ...]) -> dict[str, Any]:
        status, seq = self.status, self.seq or 0
        waits = status is not None and self.verdict is None
        place = 0
        if waits and status == STATUS_CODES["scheduled"]:
            place = -seq if seq < 0 else 0
        elif waits and status != STATUS_CODES["blocked"]:
            place = abs(seq)
        is_ready = waits and status not in (STATUS_CODES["blocked"], STATUS_CODES["scheduled"])
        return {
            "number": self.no,
            "group": self.group_no,
            "holds_key": self.holds_key,
            "changed_by": tuple(self.changed_by or ()) if self.holds_key else (),
            "keep": self.keep,
            "keep_dead": self.keep_dead,
            "need": self.need,
            "any_end": self.any_end,
            "contributes": self.contributes,
            "closes_group": self.closes,
            "verdict": VERDICTS[self.verdict],
            "place": place,
            "due": self.due,
            "ready_at": self.ready_since if is_ready else None,
            "redrives": self.redrives,
            "holds_lane": self.holds_lane,
            "suspended": bool(self.suspended) and status != RUNNING,
            "met": self.met if status == STATUS_CODES["blocked"] else 0,
            "pending": pending,
            "contributed": self.flags & (_CONTRIBUTED | _FINAL) == _CONTRIBUTED and not self._is_grouped,
            "unreleased": self.flags & _UNRELEASED > 0,
            "failed_group": self.outcome == STATUS_CODES["dead"] and not self.flags & _TOLERATED,
        }

    @property
    def _is_grouped(self) -> bool:
        return self.group_no != self.no or self.has_group


def _group(row: Record) -> PortableGroup:
    no, id, tenant, type, open, total, failed, cancelled, version, final, keep, ended, outer, value = row
    return PortableGroup(
        number=no,
        id=id,
        tenant=tenant,
        type=type,
        open=open,
        total=total,
        failed=failed,
        cancelled=cancelled,
        version=version,
        final=final,
        keep=keep if total else None,
        ended_at=ended,
        outer=outer,
        value=value,
    )


# ---------------------------------------------------------------------------------------------------- writing


_COLUMNS: Final = {
    "item": (
        "no queued due deadline keep keep_dead group_no priority attempts need id tenant type"
        " queue lane group_id parent workflow workflow_type key after counting contributes"
        " input options"
    ),
    "open_item": (
        "no seq due ready_since deadline claimed group_no keep keep_dead status shown_status"
        " verdict counting priority attempt failures losses redrives need met pending queue"
        " tenant lane type contributes began holds_lane deferrals recorded suspended"
    ),
    "ended_item": (
        "no ended started due prune_at attempt failures losses redrives outcome reason flags"
        " worker result began deferrals mark tenant queue type release group_no"
    ),
    "attempt": "no attempt at worker type message traceback release",
    "key": "no tenant type key changed_by",
    "step": "no seq at took until attempt times kind over name signal value undo",
    "mail": "no seq taken name key value",
    "progress": "no at value",
    "chunk": "no number at value",
    "log": "no token at value",
    "item_group": (
        "no open cancelled version contributed final ended keep value failed outermost id tenant type total"
    ),
    "orders": "subject queue tenant until at body",
    "schedule": "name next_at spec paused last_at seen_at",
    "removed_schedule": "name at",
    "schedule_run": "name at fired_at id tenant error",
    "limit_state": "name at used before until limit_ window_",
    "claimed_key": "key tenant owner until",
    "release": "name began",
    "stat": "step at type queue started succeeded failed retried dead cancelled lost wait run",
    "sample": "step at queue samples ready running oldest estimated",
    "audit": "no at actor verb tenant ids count about reason address bulk",
}
_INFINITY: Final = float("inf")
_UNFIT: Final = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError, asyncpg.exceptions.DataError)


class PostgresImport(Import):
    """Fills the schema in one transaction, which ends with the mark: a crash leaves an empty store."""

    def __init__(
        self, store: MovingSchema, connection: Connection, transaction: Transaction, move: str, source: str
    ) -> None:
        self._store = store
        self._connection = connection
        self._transaction = transaction
        self._move = move
        self._source = source
        self._seq = 0
        """Of steps, and of signals."""

    async def write(self, records: Sequence[bytes]) -> None:
        rows: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        waiting: list[tuple[Any, ...]] = []
        for record in map(portable.decode, records):
            if isinstance(record, Head):
                await self._begin(record)
            elif isinstance(record, PortableItem):
                self._add_item(record, rows)
                if record.status == "blocked" and record.verdict is None:
                    after = record.after
                    waiting += [
                        (record.number, record.tenant, name, after.count(name)) for name in record.pending
                    ]
            else:
                table, row = _row(record)
                rows[table].append(row)
        try:
            for table, of_table in rows.items():
                await self._copy(table, of_table)
            await self._connection.copy_records_to_table(
                "treadle_waiting", records=waiting, schema_name="pg_temp"
            )
        except asyncpg.UniqueViolationError as error:
            raise InputError(f"a record is there twice: {error}") from error
        except _UNFIT as error:
            raise InputError(f"a record does not fit its table: {error}") from error

    async def finish(self) -> None:
        for name in (
            *(
                "raise_number",
                "group_keeps",
                "outermost",
                "group_ends",
                "open_roots",
                "ended_roots",
                "dead_members",
            ),
            *("placeholders", "dependencies", "names_of_groups", "no_types", "audit_number", "analyze"),
        ):
            await self._connection.execute(self._store.sql(name))
        await self._store.park(self._connection, IMPORTING, self._move, self._source)
        await self._transaction.commit()

    async def _begin(self, head: Head) -> None:
        number = max(head.number, head.place)
        await self._connection.execute(
            self._store.sql("set_counters"), number, (head.token >> _TOKEN_BITS) + 1
        )
        await self._connection.execute(self._store.sql("orders_version"), head.orders)

    async def _copy(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        columns = _COLUMNS[table].split()
        if any(len(row) != len(columns) for row in rows):  # what is too much would be dropped
            raise BackendError(f"a row of the table {table} has not one value for each column")
        await self._connection.copy_records_to_table(
            table, records=rows, columns=columns, schema_name=self._store.schema.name
        )

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    def _add_item(self, item: PortableItem, rows: defaultdict[str, list[tuple[Any, ...]]]) -> None:
        no = item.number
        rows["item"].append(_item_row(item))
        if item.ended_at is None:
            rows["open_item"].append(_open_row(item))
        else:
            rows["ended_item"].append(_ended_row(item))
        if item.holds_key:
            rows["key"].append((no, item.tenant, item.type, item.key, list(item.changed_by) or None))
        for one in item.history:
            error = one.error_type, one.message, one.traceback
            rows["attempt"].append((no, one.attempt, one.at, one.worker, *error, one.release or None))
        for step in item.steps:
            counts = (
                step.at,
                step.took,
                step.until,
                step.attempt,
                step.times,
                STEP_KINDS.index(step.kind),
                step.over,
            )
            rows["step"].append(
                (no, self._next(), *counts, step.name, step.signal or None, step.value, step.undo)
            )
        rows["mail"] += [(no, self._next(), False, name, None, value) for name, value in item.unread]
        rows["mail"] += [(no, self._next(), True, name, key, None) for name, key in item.signal_keys]
        if item.progress is not None:
            rows["progress"].append((no, item.progress_at, item.progress))
        rows["chunk"] += [(no, *chunk) for chunk in item.chunks]
        rows["log"] += [(no, token, 0.0, log) for token, log in enumerate(item.logs, 1)]


def _item_row(item: PortableItem) -> tuple[Any, ...]:
    is_root = item.group == item.number
    return (
        item.number,
        item.queued_at,
        item.due,
        item.deadline,
        item.keep,
        item.keep_dead,
        None if is_root else item.group,
        item.priority,
        item.attempts,
        item.need,
        item.id,
        item.tenant,
        item.type,
        item.queue,
        item.lane,
        None if is_root else item.group_id,
        item.parent,
        item.workflow,
        item.workflow_type,
        item.key,
        list(item.after) or None,
        1 if item.any_end else None,
        None if item.contributes else False,
        item.input,
        item.options,
    )


_DAY: Final = 86400.0


def _open_row(item: PortableItem) -> tuple[Any, ...]:
    is_root, blocked = item.group == item.number, item.status == "blocked"
    status = STATUS_CODES[item.status]
    place = -item.place if item.status == "scheduled" and item.place else item.place or item.number
    return (
        item.number,
        place,
        item.due,
        item.due if item.ready_at is None else item.ready_at,
        item.deadline,
        item.claimed_at,
        None if is_root else item.group,
        None if item.keep == _DAY else item.keep,
        item.keep_dead,
        status if item.verdict is None else 4,
        None if item.verdict is None else status,
        REASON_CODES[item.verdict],
        int(item.any_end),
        item.priority,
        item.attempt,
        item.failures,
        item.losses,
        item.redrives,
        item.need,
        item.met if blocked else item.need,
        sum(item.after.count(name) for name in item.pending),
        item.queue,
        item.tenant,
        item.lane,
        item.type,
        item.contributes,
        item.started_at,
        item.holds_lane,
        item.deferrals,
        _recorded_flags(item),
        item.suspended,
    )


def _recorded_flags(item: PortableItem) -> int:
    return bool(item.steps) + 2 * (bool(item.chunks) or item.progress is not None)


def _ended_row(item: PortableItem) -> tuple[Any, ...]:
    keep = item.keep_dead if item.status == "dead" else item.keep
    is_root, is_dead = item.group == item.number, item.status == "dead"
    assert item.ended_at is not None
    release = item.history[-1].release or None if item.history and is_dead else None
    flags = (
        _CONTRIBUTED * item.contributed
        | _LIFTED * (item.deadline is None)
        | _TOLERATED * (is_dead and not item.failed_group)
        | _UNRELEASED * item.unreleased
        | _recorded_flags(item) << 5
    )
    return (
        item.number,
        item.ended_at,
        item.claimed_at,
        item.due,
        # Roots with other members are set right at the end.
        None if keep is None or not is_root else item.ended_at + keep,
        item.attempt,
        item.failures or None,
        item.losses or None,
        item.redrives,
        STATUS_CODES[item.status],
        REASON_CODES[item.reason],
        flags,
        item.worker,
        item.result,
        item.started_at,
        item.deferrals or None,
        item.mark if is_dead else None,
        *((item.tenant, item.queue, item.type) if is_dead else (None, None, None)),
        release,
        item.group if is_dead and not is_root else None,
    )


def _row(record: AnyRecord) -> tuple[str, tuple[Any, ...]]:
    """The table of a record, and its row."""
    match record:
        case Head() | PortableItem():
            raise AssertionError(record)
        case PortableGroup():
            return "item_group", _group_row(record)
        case PortableOrder():
            order = read_order(record.body, record.at)
            part = order.paused_part or (None, None)
            return "orders", (order.subject, *part, order.until, record.at, record.body)
        case PortableSchedule():
            return "schedule", tuple(asdict(record).values())
        case PortableRemoval():
            return "removed_schedule", (record.name, record.at)
        case PortableRun():
            return "schedule_run", tuple((asdict(record) | {"error": record.error or None}).values())
        case PortableLimit():
            return "limit_state", _limit_row(record)
        case PortableKey():
            return "claimed_key", tuple(asdict(record).values())
        case PortableRelease():
            return "release", (record.name, record.began)
        case PortableStat():
            histograms = Decimal(encoded_counts(record.wait)), Decimal(encoded_counts(record.run))
            return "stat", (record.step, record.at, record.type, record.queue, *record.counts, *histograms)
        case PortableSample():
            return "sample", tuple(asdict(record).values())
        case PortableAudit():
            return "audit", tuple((asdict(record) | {"ids": list(record.ids)}).values())
        case _:
            assert_never(record)


def _group_row(record: PortableGroup) -> tuple[Any, ...]:
    return (
        record.number,
        record.open,
        record.cancelled,
        record.version,
        record.version > 0,
        record.final,
        record.ended_at,
        _INFINITY if record.keep is None else record.keep,
        record.value,
        record.failed,
        record.outer,
        record.id,
        record.tenant,
        record.type,
        record.total,
    )


def _limit_row(record: PortableLimit) -> tuple[Any, ...]:
    state = LimitState(record.at, record.used, record.before)
    until = idle_at(portable.limit_of(record), state)
    name = f"{ALGORITHM_CODES[record.algorithm]}:{record.name}"
    return name, *state, until, record.limit, record.window
