"""Moving: all that a schema holds, as records, and a schema that is filled from records.

A mark takes the schema out of sight: in one transaction with the mark it gets another name,
`treadle_parked`. So every statement of every session fails that knows the schema by its name, and nothing has
to look for a mark before it writes. `PostgresCalls` then reads the mark, which is in a small schema of the
old name. What reads a parked store gives it its name back in a transaction that is rolled back.

Each of these has a connection of its own, and one transaction.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from itertools import count
from typing import Any, Final, Literal, NamedTuple

import asyncpg
from asyncpg.transaction import Transaction

from treadle.backend import Export, Import, unknown_move
from treadle.errors import BackendError, InputError, StoreNotEmpty, StoreUnavailable, TreadleError
from treadle.item import STEP_KINDS, Algorithm
from treadle.records import StoreMark
from treadle.store import portable
from treadle.store.portable import (
    AnyRecord,
    Head,
    LostLease,
    Portable,
    PortableItem,
    PortableLease,
    PortableLimit,
    PortableWorker,
    leased,
    unleased,
)
from treadle.store.portable_rows import (
    AS_OF_NOW,
    READ,
    Row,
    Rows,
    RowValues,
    add_other,
    add_recorded,
    columns,
    group_of,
    outer_number,
    record_of,
    recorded,
)
from treadle.store.rules.tenant_moves import MARKS, PREFIX

from .columns import ALGORITHM_CODES, REASON_CODES, RUNNING, STATUS_CODES, VERDICTS
from .connection import Record
from .errors import CONNECTION_ERRORS, NothingSent, cause_of, translated
from .read import state_of
from .records import decoded as decoded_counts
from .records import encoded as encoded_counts
from .schema import IMPORTING, MOVED, Connection, PostgresSchema, refusal
from .statements import statement, statements, text

_sql = statements("moving")

_table_oid: Final = statement("schema", "table_oid")
PORTION: Final = 1000
LOCK_SECONDS: Final = 60
"""Seconds to wait for transactions of others that have written, and are open."""
GIVES_WAY: Final = 0.2
"""Seconds for which a freeze waits at first. Who comes then waits behind it."""
_TOKEN_BITS: Final = 24
"""A token is a number of the sequence, and this many random bits."""
_PARKED: Final = "_parked"
_ALGORITHMS: Final[dict[str, Algorithm]] = {str(code): name for name, code in ALGORITHM_CODES.items()}


def _histogram(counts: Sequence[int]) -> Decimal:
    return Decimal(encoded_counts(counts))


_VALUES: Final = RowValues(
    ids=list,
    read_ids=tuple,
    histogram=_histogram,
    read_histogram=decoded_counts,
    kind=STEP_KINDS.index,
    read_kind=STEP_KINDS.__getitem__,
)
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

    @property
    def create_waiting(self) -> str:
        return _sql("create_waiting")

    async def freeze(self, connection: Connection, patience: int = LOCK_SECONDS) -> None:
        """Take the locks. No statement before this in the transaction may take a snapshot: what commits until
        the locks are there would be missing in it."""
        try:
            await self.lock(connection, self.sql("freeze"), patience)
        except asyncpg.UndefinedTableError as error:
            # Another move that had the locks has taken the schema out of sight.
            mark = await self.mark()
            if mark is None:
                raise
            raise refusal(mark) from error

    async def lock(self, connection: Connection, statement: str, patience: float) -> None:
        """Take locks of tables. A transaction that this waits for may wait for one that this has: so it soon
        lets all of them go, and tries again, each time for longer."""
        now = asyncio.get_running_loop().time
        until, wait = now() + patience, GIVES_WAY
        while True:
            wait = min(wait, max(GIVES_WAY, until - now()))
            try:
                async with connection.transaction():  # a savepoint
                    await connection.execute(text("moving", "lock_wait", seconds=f"{wait:.3f}"))
                    await connection.execute(statement)
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                if now() >= until:
                    raise
                await asyncio.sleep(GIVES_WAY / 2)
                wait *= 2
            else:
                await connection.execute(text("moving", "lock_wait", seconds=str(patience)))
                return

    async def park(self, connection: Connection, state: int, move: str, to: str, content: str = "") -> None:
        """Take the schema out of sight, and say why, in the open transaction."""
        name = self.schema.name
        await connection.execute(text("moving", "rename", before=name, after=self.parked))
        await connection.execute(text("moving", "create_stub", schema=name, parked=self.parked))
        await connection.execute(self.sql("set_mark"), state, move, to, content)
        for (role,) in await connection.fetch(_sql("users"), self.parked):
            await connection.execute(text("moving", "let_read", schema=name, role=role))

    async def unpark(self, connection: Connection) -> None:
        await connection.execute(text("moving", "drop_schema", schema=self.schema.name))
        await connection.execute(text("moving", "rename", before=self.parked, after=self.schema.name))

    async def add_fence(self, connection: Connection) -> None:
        """Refuse from now on what would be stored of the tenants that are elsewhere, as their marks say."""

        def sql(name: str) -> str:
            return self.schema.sql(statement("tenant_moves", name))

        if await connection.fetchval(sql("any_mark"), MARKS, PREFIX):
            await connection.execute(await connection.fetchval(sql("fence"), MARKS))
            if not await connection.fetchval(sql("has_fence")):
                await connection.execute(sql("add_fence"))

    async def check_none_arriving(self, connection: Connection) -> None:
        """Raise if records of a tenant have come that is not here yet: they would be left out."""
        if await connection.fetchval(_table_oid, f'"{self.schema.name}".arriving') is None:
            return
        tenant = await connection.fetchval(self.schema.sql(statement("tenant_moves", "arriving_tenant")))
        if tenant is not None:
            raise BackendError(f"the tenant {tenant!r} is on its way into this store: end its move first")

    # -- the verbs -------------------------------------------------------------------------------------

    async def mark(self) -> StoreMark | None:
        async with self.connection() as connection:
            return await self.schema.mark(connection)

    @asynccontextmanager
    async def export(
        self, *, freeze: bool, move: str | None, tenant: str | None
    ) -> AsyncGenerator[PostgresExport]:
        async with self.connection() as connection:
            mark = await self.schema.mark(connection)
            if mark is not None and (move is None or not mark.is_of(move)):
                raise refusal(mark)
            if mark is None:
                await self.schema.check(connection)
                if tenant is None:
                    await self.check_none_arriving(connection)
            # The snapshot is taken after the lock.
            transaction = await self.begin(connection, "repeatable_read")
            if mark is not None:
                await self.unpark(connection)
            elif freeze:
                await self.freeze(connection)
            yield PostgresExport(self, connection, transaction, tenant, frozen=freeze and mark is None)

    @asynccontextmanager
    async def import_(self, move: str, source: str = "") -> AsyncGenerator[PostgresImport]:
        async with self.connection() as connection:
            mark = await self.schema.mark(connection)
            if mark is not None and not mark.gives_way(source):
                raise refusal(mark)
            transaction = await self.begin(connection)
            if mark is not None:
                await self._empty(connection)
            await self.schema.check_roles(connection)
            await self.schema.apply(connection)
            await self.freeze(connection)
            found = await connection.fetchval(self.sql("in_the_way"))
            if found is not None:
                raise StoreNotEmpty(self.address, found)
            await connection.execute(self.sql("clear"))
            await connection.execute(_sql("create_waiting"))
            yield PostgresImport(self, connection, transaction, move, source)

    @asynccontextmanager
    async def import_part(self, tenant: str) -> AsyncGenerator[PostgresPartImport]:
        async with self.connection() as connection:
            mark = await self.schema.mark(connection)
            if mark is not None:
                raise refusal(mark)
            await self.schema.check(connection)
            transaction = await self.begin(connection)
            await self.freeze(connection)
            found = await connection.fetchval(self.sql("tenant_in_the_way"), tenant)
            if found is not None:
                raise StoreNotEmpty(self.address, f"{found} of {tenant}")
            await connection.execute(_sql("create_waiting"))
            yield PostgresPartImport(self, connection, transaction, tenant)

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

    async def take_back(self, move: str) -> None:
        async with self.connection() as connection:
            transaction = await self.begin(connection)
            mark = await self.schema.mark(connection)
            if mark is None or not mark.is_moved_by(move):
                raise unknown_move(self.address, move)
            await self.unpark(connection)
            await transaction.commit()

    async def identity(self) -> str | None:
        async with self.connection() as connection:
            return await self.schema.identity(connection)

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
        self,
        store: MovingSchema,
        connection: Connection,
        transaction: Transaction,
        tenant: str | None,
        *,
        frozen: bool,
        leases: bool = False,
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._leases = leases
        self._connection = connection
        self._transaction = transaction
        self._frozen = frozen
        self._records = self.records()

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        found: list[bytes] = []
        if not limit:
            return found
        async for record in self._records:
            if portable.goes_along(record, self._tenant):
                found.append(portable.encode(record))
            if len(found) == limit:
                break
        return found

    async def move(self, move: str, to: str, content: str = "") -> None:
        await self._end(MOVED, move, to, content)

    async def give_back(self, move: str, source: str) -> None:
        await self._end(IMPORTING, move, source)

    async def _end(self, state: int, move: str, other: str, content: str = "") -> None:
        if not self._frozen:
            raise StoreUnavailable("the export is not frozen")
        await self._store.park(self._connection, state, move, other, content)
        await self._transaction.commit()
        self._frozen = False

    async def _rows(self, name: str, *arguments: object) -> list[Record]:
        return await self._connection.fetch(self._store.sql(name), *arguments)

    async def records(self) -> AsyncIterator[AnyRecord]:
        head = await self._head()
        yield head
        last = -1
        while nos := (await self._rows("next_items", last, self._tenant, PORTION))[0]["nos"]:
            last = nos[-1]
            for item in await self.items_of(nos, head.at):
                yield item
        last = -1
        while rows := await self._rows("groups", last, PORTION):
            last = rows[-1][0]
            for row in rows:
                yield group_of(row)
        async for record in self._others(READ, head.at):
            yield record

    async def _head(self) -> Head:
        (head,) = await self._rows("head")
        return Head(
            store="postgresql",
            tenant=self._tenant,
            at=head["now"],
            number=head["number"],
            place=head["number"],
            token=(head["token"] + 1) << _TOKEN_BITS,
            orders=head["orders"] or 0,
            workers=tuple(head["workers"]),
        )

    async def _workers(self) -> list[PortableWorker]:
        return [
            PortableWorker(
                id=id,
                until=until,
                lease=lease,
                types=None if types is None else tuple(types),
                info=info,
                release=release or "",
            )
            for id, until, lease, types, info, release in await self._rows("workers_of", self._tenant)
        ]

    async def items_of(self, nos: Sequence[int], now: float) -> list[PortableItem]:
        """The items of these numbers, in their order."""
        states = {row["no"]: state_of(row) for row in await self._rows("items", nos)}
        pending: defaultdict[int, set[str]] = defaultdict(set)
        for no, name in await self._rows("pending", nos):
            pending[no].add(name)
        found = [_PostgresFields(*row) for row in await self._rows("more", nos)]
        with_rows = [more.no for more in found if more.recorded]  # of mail and logs, rows do not say it
        wanted = {"steps": with_rows, "progress": with_rows, "chunks": with_rows, "mail": nos, "logs": nos}
        of_items = recorded(
            {name: await self._rows(name, some) if some else () for name, some in wanted.items()}, _VALUES
        )
        items: list[PortableItem] = []
        for more in found:
            fields = more.fields(tuple(sorted(pending[more.no])) if more.no in pending else ())
            item = portable.portable_item(states[more.no], fields | of_items.get(more.no, {}))
            if more.status == RUNNING and more.verdict is None and self._leases and more.token is not None:
                resumes = bool(more.suspended)
                kept = PortableLease(more.worker or "", more.token, more.begun, more.began, resumes)
                item = leased(item, kept)
            elif more.status == RUNNING and more.verdict is None:
                lease = LostLease(more.worker or "", more.release or "", more.begun, more.began)
                item = unleased(item, lease, now)
            items.append(item)
        return items

    async def _others(self, read: Mapping[str, type[Portable]], now: float) -> AsyncIterator[AnyRecord]:
        for name, kind in read.items():
            async for row in self._portions(name, now):
                if kind is PortableLimit:
                    code, _, own = row[0].partition(":")
                    yield record_of(kind, (own, _ALGORITHMS[code], *row[1:]), _VALUES)
                else:
                    yield record_of(kind, row, _VALUES)

    async def _portions(self, name: str, now: float) -> AsyncIterator[Row]:
        """The rows of a statement. Of audit entries there may be many."""
        if name != "audits":
            for row in await self._rows(name, *((now,) if name in AS_OF_NOW else ())):
                yield tuple(row)
            return
        last = -1
        while rows := await self._rows(name, last, PORTION):
            last = rows[-1]["no"]
            for row in rows:
                yield tuple(row)


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
    token: int | None

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


# ---------------------------------------------------------------------------------------------------- writing


_COLUMNS: Final = columns(
    {
        "item": (
            "no=number queued=queued_at due deadline keep keep_dead priority attempts need id tenant type"
            " queue lane parent workflow workflow_type key input options"
            " | group_no group_id after counting contributes"
        ),
        "open_item": (
            "no=number due deadline claimed=claimed_at keep_dead priority attempt failures losses redrives"
            " need queue tenant lane type contributes began=started_at holds_lane deferrals suspended"
            " | seq ready_since group_no keep status shown_status verdict counting met pending recorded"
        ),
        "ended_item": (
            "no=number ended=ended_at started=claimed_at due attempt redrives worker result began=started_at"
            " | prune_at failures losses outcome reason flags deferrals release group_no mark tenant"
            " queue type"
        ),
        "key": "no=number tenant type key | changed_by",
        "attempt": "no - attempt type message traceback at worker release",
        "step": "no name kind value took undo signal over until at attempt times seq",
        "mail": "no name key taken value seq",
        "progress": "no value at",
        "chunk": "no number at value",
        "log": "no token at value",
        "group": (
            "no id tenant type open total failed cancelled version final keep ended outermost value"
            " contributed"
        ),
        "orders": "subject queue tenant until at body",
        "schedule": "name next_at spec paused last_at seen_at",
        "removed_schedule": "name at",
        "schedule_run": "name at fired_at id tenant error",
        "limit": "name - at used before until limit_ window_",
        "claimed_key": "key tenant owner until",
        "release": "name began",
        "stat": "step at type queue started succeeded failed retried dead cancelled lost wait run",
        "sample": "step at queue samples ready running oldest estimated",
        "audit": "no at actor verb tenant ids count about reason address bulk",
    }
)
_TABLES: Final = {"group": "item_group", "limit": "limit_state"}
"""Names of tables that are other ones here."""
_DAY: Final = 86400.0
_INFINITY: Final = float("inf")
_UNFIT: Final = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError, asyncpg.exceptions.DataError)


class PostgresImport(Import):
    """Fills the schema in one transaction, which ends with the mark: a crash leaves an empty store."""

    _before = 0
    """What comes in has higher numbers."""

    def __init__(
        self, store: MovingSchema, connection: Connection, transaction: Transaction, move: str, source: str
    ) -> None:
        self._store = store
        self._connection = connection
        self._transaction = transaction
        self._move = move
        self._source = source
        self._seq = count(1)
        """Of steps, and of signals."""
        self._adapted: dict[str, Callable[[Row], Row]] = {
            "step": self._step,
            "mail": self._mail,
            "group": _group,
            "limit": _limit,
        }

    async def write(self, records: Sequence[bytes]) -> None:
        await self._write([portable.decode(data) for data in records])

    async def _write(self, records: Sequence[AnyRecord]) -> None:
        rows: Rows = defaultdict(list)
        waiting: list[Row] = []
        for record in records:
            if isinstance(record, Head):
                await self._begin(record)
            elif isinstance(record, PortableItem):
                _add_item(record, rows)
                if record.status == "blocked" and record.verdict is None:
                    after = record.after
                    waiting += [
                        (record.number, record.tenant, name, after.count(name)) for name in record.pending
                    ]
            else:
                add_other(record, _VALUES, rows)
        for table, adapt in self._adapted.items():
            rows[table] = [adapt(row) for row in rows[table]]
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
        await self._connection.execute(self._store.sql("raise_number"))
        await self._connect()
        for name in ("audit_number", "analyze"):
            await self._connection.execute(self._store.sql(name))
        await self._store.add_fence(self._connection)
        await self._store.park(self._connection, IMPORTING, self._move, self._source)
        await self._transaction.commit()

    async def _connect(self) -> None:
        """Derive what is not in the records."""
        await self._connection.execute(self._store.sql("group_keeps"))
        for name in ("outermost", "group_ends", "open_roots", "ended_roots", "dead_members"):
            await self._connection.execute(self._store.sql(name), self._before)
        for name in ("placeholders", "dependencies", "no_types"):
            await self._connection.execute(self._store.sql(name))
        await self._connection.execute(self._store.sql("names_of_groups"), self._before)

    async def _begin(self, head: Head) -> None:
        number = max(head.number, head.place)
        await self._connection.execute(
            self._store.sql("set_counters"), number, (head.token >> _TOKEN_BITS) + 1
        )
        await self._connection.execute(self._store.sql("orders_version"), head.orders)

    async def _copy(self, table: str, rows: Sequence[Row]) -> None:
        await self._connection.copy_records_to_table(
            _TABLES.get(table, table),
            records=_COLUMNS[table].pick(rows),
            columns=_COLUMNS[table].names,
            schema_name=self._store.schema.name,
        )

    def _step(self, row: Row) -> Row:
        *before, signal = row[:7]
        return *before, signal or None, *row[7:], next(self._seq)

    def _mail(self, row: Row) -> Row:
        return *row, next(self._seq)


class PostgresPartImport(PostgresImport):
    """Adds a tenant to a schema that is in use, in one transaction. Others wait to write meanwhile."""

    def __init__(
        self, store: MovingSchema, connection: Connection, transaction: Transaction, tenant: str
    ) -> None:
        super().__init__(store, connection, transaction, "", "")
        self._tenant = tenant
        self._beside: portable.Beside | None = None
        self._leased: list[PortableItem] = []

    async def _write(self, records: Sequence[AnyRecord]) -> None:
        if isinstance(records[0], Head):
            await self._begin(records[0])
            records = records[1:]
        if self._beside is None:
            raise InputError("the first record is no head: this is no whole export")
        await super()._write(self._beside.place(records))

    async def _begin(self, head: Head) -> None:
        """Take numbers for all that comes in. Sequences have no locks: what others take meanwhile is in the
        gaps."""
        span = max(head.number, head.place)
        self._before = await self._connection.fetchval(self._store.sql("take_numbers"), span)
        await self._connection.execute(self._store.sql("raise_token"), (head.token >> _TOKEN_BITS) + 1)
        last_audit = await self._connection.fetchval(self._store.sql("take_audit"))
        self._beside = portable.Beside(self._tenant, self._before, self._before, last_audit - 1)

    async def finish(self) -> None:
        await self._connect()
        found = [record async for record in self._stored() if portable.goes_along(record, self._tenant)]
        if self._beside is not None:
            self._beside.check(found)
        await self._transaction.commit()

    def _stored(self) -> AsyncIterator[AnyRecord]:
        """What is stored of the tenant by now."""
        export = PostgresExport(self._store, self._connection, self._transaction, self._tenant, frozen=False)
        return export.records()


def _group(row: Row) -> Row:
    *before, version, final, keep, ended_at, outer, value = row
    return *before, version, final, _INFINITY if keep is None else keep, ended_at, outer, value, version > 0


def _limit(row: Row) -> Row:
    return f"{ALGORITHM_CODES[row[1]]}:{row[0]}", *row[1:]


def _add_item(item: PortableItem, rows: Rows) -> None:
    def add(table: str, *others: object) -> None:
        rows[table].append(_COLUMNS[table].row(item, *others))

    outer = outer_number(item)
    counting, contributes = 1 if item.any_end else None, None if item.contributes else False
    group_id = None if outer is None else item.group_id
    add("item", outer, group_id, list(item.after) or None, counting, contributes)
    if item.ended_at is None:
        add("open_item", *_open_values(item, outer))
    else:
        add("ended_item", *_ended_values(item, outer))
    if item.holds_key:
        add("key", list(item.changed_by) or None)
    add_recorded(item, _VALUES, rows)


def _open_values(item: PortableItem, outer: int | None) -> Row:
    status = STATUS_CODES[item.status]
    return (
        -item.place if item.status == "scheduled" and item.place else item.place or item.number,
        item.due if item.ready_at is None else item.ready_at,
        outer,
        None if item.keep == _DAY else item.keep,
        status if item.verdict is None else 4,
        None if item.verdict is None else status,
        REASON_CODES[item.verdict],
        int(item.any_end),
        item.met if item.status == "blocked" else item.need,
        sum(item.after.count(name) for name in item.pending),
        _recorded_flags(item),
    )


def _recorded_flags(item: PortableItem) -> int:
    return bool(item.steps) + 2 * (bool(item.chunks) or item.progress is not None)


def _ended_values(item: PortableItem, outer: int | None) -> Row:
    is_dead = item.status == "dead"
    keep = item.keep_dead if is_dead else item.keep
    assert item.ended_at is not None
    flags = (
        _CONTRIBUTED * item.contributed
        | _LIFTED * (item.deadline is None)
        | _TOLERATED * (is_dead and not item.failed_group)
        | _UNRELEASED * item.unreleased
        | _recorded_flags(item) << 5
    )
    return (
        # Roots with other members are set right at the end.
        None if keep is None or outer is not None else item.ended_at + keep,
        item.failures or None,
        item.losses or None,
        STATUS_CODES[item.status],
        REASON_CODES[item.reason],
        flags,
        item.deferrals or None,
        item.history[-1].release or None if item.history and is_dead else None,
        outer if is_dead else None,
        *((item.mark, item.tenant, item.queue, item.type) if is_dead else (None,) * 4),
    )
