"""Moving: all that a file holds, as records, and a file that is filled from records.

A mark takes the tables out of sight: in one transaction with the mark they get other names,
`treadle_parked_...`. So every statement of every process fails that knows the tables by their names, and
nothing has to look for a mark before it writes. `marks.py` then says why. What reads parked tables gives them
their names back in a transaction that is rolled back.

Each of these has a connection of its own, on a thread at a time. Its commits are on the disk, also with
`durability="normal"`: a mark that a loss of power undoes would leave two owners, or none.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from treadle.backend import Export, Import, unknown_move
from treadle.base.timing import Clock
from treadle.errors import BackendError, InputError, StoreNotEmpty, StoreUnavailable
from treadle.item import StepKind, Verdict
from treadle.records import StoreMark
from treadle.store import portable
from treadle.store.portable import (
    AnyRecord,
    Head,
    LostLease,
    Portable,
    PortableGroup,
    PortableItem,
    PortableLease,
    PortableWorker,
    leased,
    unleased,
)
from treadle.store.portable_rows import (
    AS_OF_NOW,
    READ,
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
from treadle.store.rules.submission import Dependencies, is_tolerant
from treadle.store.rules.tenant_moves import MARKS, PREFIX

from .connection import connect, create_file, is_busy, retry_while_locked, translated, usable_path
from .dependencies import WaitingItem, find_known, store_dependencies
from .marks import IMPORTING, MOVED, check_unmarked, read_mark, refusal
from .records import decode_histogram, encode_histogram
from .rows import BLOCKED, READY, RUNNING, SCHEDULED, decode_ids, doomed, full_states
from .schema import apply_schema, check_schema
from .statements import Row, Tx, array, statements

T = TypeVar("T")

_SQL: Final = statements("moving")
_RECORDED: Final = ("steps", "mail", "progress", "chunks", "logs")
_STATEMENTS: Final = _SQL | {"steps": statements("steps")["steps"]}


def _as_it_is(kind: StepKind) -> StepKind:
    return kind


_VALUES: Final = RowValues(
    ids=array,
    read_ids=decode_ids,
    histogram=encode_histogram,
    read_histogram=decode_histogram,
    kind=str,
    read_kind=_as_it_is,
)
_OURS: Final = "treadle_"
_PARKED: Final = "treadle_parked_"
_MARK: Final = "treadle_part"
_KEPT: Final = frozenset({"treadle_meta", "treadle_counter"})
"""Tables whose rows an empty store has too."""
PORTION: Final = 1000


_MARKS: Final = statements("tenant_moves")


def add_fences(connection: sqlite3.Connection) -> None:
    """Refuse from now on what would be stored of a tenant that is elsewhere, as its mark says."""
    for name in ("fence_items", "fence_keys"):
        connection.execute(_MARKS[name])


class MovingStore:
    """What the verbs of a move need to know about a file."""

    def __init__(self, path: str | Path, clock: Clock, patience: float) -> None:
        self._given = path
        self.clock = clock
        self._patience = patience

    @property
    def path(self) -> Path:
        return usable_path(self._given)

    def exists(self) -> bool:
        """A file of no bytes is none yet: to look into it would make one of it."""
        return self.path.exists() and self.path.stat().st_size > 0

    def connect(self, *, make: bool = False) -> sqlite3.Connection:
        path = self.path
        if make:
            create_file(path)
        elif not self.exists():
            raise BackendError(f"there is no store in {path}")
        connection = retry_while_locked(lambda: connect(path, "full"), path, self._patience)
        connection.execute(_SQL["keep_references"])
        return connection

    def begin(self, connection: sqlite3.Connection) -> None:
        """Begin to write. Others wait from now on."""
        end = time.monotonic() + self._patience
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() > end:
                    raise translated(error, self.path) from error
            time.sleep(0.0005)

    async def run(self, action: Callable[[], T]) -> T:
        """Call `action` in a thread, with treadle's errors."""
        return await asyncio.to_thread(self._translated, action)

    def _translated(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    # -- the verbs -------------------------------------------------------------------------------------

    async def mark(self) -> StoreMark | None:
        def read() -> StoreMark | None:
            if not self.exists():
                return None
            with contextlib.closing(self.connect()) as connection:
                return read_mark(connection)

        return await self.run(read)

    @asynccontextmanager
    async def export(
        self, *, freeze: bool, move: str | None, tenant: str | None
    ) -> AsyncGenerator[SqliteExport]:
        export = await self.run(lambda: SqliteExport(self, tenant, freeze=freeze, move=move))
        try:
            yield export
        finally:
            await self.run(export.close)

    @asynccontextmanager
    async def import_(self, move: str, source: str, tenant: str | None) -> AsyncGenerator[SqliteImport]:
        filled = await self.run(
            lambda: SqliteImport(self, move, source) if tenant is None else SqlitePartImport(self, tenant)
        )
        try:
            yield filled
        finally:
            await self.run(filled.close)

    async def own(self, move: str) -> None:
        await self.run(lambda: self._own(move))

    def _own(self, move: str) -> None:
        with contextlib.closing(self.connect()) as connection:
            self.begin(connection)
            mark = read_mark(connection)
            if mark is None:
                if _owned(connection) != move:
                    raise unknown_move(f"sqlite:///{self.path}", move)
            elif not mark.is_of(move):
                raise refusal(mark)
            else:
                _unpark(connection)
                connection.execute(_SQL["set_owned"], (move,))
                connection.execute("COMMIT")

    async def take_back(self, move: str) -> None:
        await self.run(lambda: self._take_back(move))

    def _take_back(self, move: str) -> None:
        with contextlib.closing(self.connect()) as connection:
            self.begin(connection)
            mark = read_mark(connection)
            if mark is None or not mark.is_moved_by(move):
                raise unknown_move(f"sqlite:///{self.path}", move)
            _unpark(connection)
            connection.execute("COMMIT")

    async def identity(self) -> str | None:
        if not self.exists():
            return None
        found = self.path.stat()
        return f"{found.st_dev}:{found.st_ino}"

    async def discard(self, move: str) -> None:
        await self.run(lambda: self._discard(move))

    def _discard(self, move: str) -> None:
        if not self.exists():
            return
        with contextlib.closing(self.connect()) as connection:
            self.begin(connection)
            mark = read_mark(connection)
            if mark is not None and mark.is_of(move):
                _empty(connection)
                connection.execute("COMMIT")


# ---------------------------------------------------------------------------------------------------- parking


def _names(connection: sqlite3.Connection, kind: str) -> list[str]:
    return [name for type, name in connection.execute(_SQL["ours"]).fetchall() if type == kind]


def _owned(connection: sqlite3.Connection) -> str | None:
    """The last move that the file owned."""
    if "treadle_meta" not in _names(connection, "table"):
        return None
    rows = connection.execute(_SQL["owned"]).fetchall()
    return rows[0][0] if rows else None


def _rename(connection: sqlite3.Connection, before: str, after: str) -> None:
    connection.execute(f'ALTER TABLE "{before}" RENAME TO "{after}"')


def _park(connection: sqlite3.Connection, state: int, move: str, to: str, content: str = "") -> None:
    """Take the tables out of sight, and say why, in the open transaction. The connection keeps references."""
    for name in _names(connection, "table"):
        if name != _MARK and not name.startswith(_PARKED):
            _rename(connection, name, _PARKED + name.removeprefix(_OURS))
    connection.execute(_SQL["keep_meta"])
    connection.execute(_SQL["create_part"])
    connection.execute(_SQL["set_mark"], (state, move, to, content))


def _unpark(connection: sqlite3.Connection) -> None:
    connection.execute(_SQL["drop_part"])
    connection.execute('DROP TABLE "treadle_meta"')
    for name in _names(connection, "table"):
        if name.startswith(_PARKED):
            _rename(connection, name, _OURS + name.removeprefix(_PARKED))


def _empty(connection: sqlite3.Connection) -> None:
    """Remove what an import has stored, and bring the tables back."""
    _unpark(connection)
    for name in _names(connection, "table"):
        if name not in _KEPT:
            connection.execute(f'DELETE FROM "{name}"')  # noqa: S608  the name is one of ours


# ---------------------------------------------------------------------------------------------------- reading


class SqliteExport(Export):
    """Reads one snapshot. If it is frozen, it has the write lock: others wait. A crash lets them go on."""

    def __init__(
        self,
        store: MovingStore,
        tenant: str | None,
        *,
        freeze: bool,
        move: str | None = None,
    ) -> None:
        self._store = store
        self._frozen = freeze and move is None
        self._connection = store.connect()
        try:
            if freeze or move is not None:
                store.begin(self._connection)
            else:
                self._connection.execute("BEGIN")
            mark = read_mark(self._connection)
            if mark is not None:
                if move is None or not mark.is_of(move):
                    raise refusal(mark)
                # In this transaction, which is rolled back.
                _unpark(self._connection)
            else:
                check_schema(self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._tx = Tx(self._connection.cursor(), store.clock.now())
        self._tenant = tenant
        if tenant is None:
            check_none_arriving(self._connection)
        self._records = records_of(self._tx, tenant)

    async def read(self, limit: int = 1000) -> Sequence[bytes]:
        return await self._store.run(lambda: self._take(limit))

    def _take(self, limit: int) -> list[bytes]:
        found: list[bytes] = []
        if not limit:
            return found
        for record in self._records:
            if portable.goes_along(record, self._tenant):
                found.append(portable.encode(record))
            if len(found) == limit:
                break
        return found

    async def move(self, move: str, to: str, content: str = "") -> None:
        await self._store.run(lambda: self._end(MOVED, move, to, content))

    async def give_back(self, move: str, source: str) -> None:
        await self._store.run(lambda: self._end(IMPORTING, move, source))

    def _end(self, state: int, move: str, other: str, content: str = "") -> None:
        if not self._frozen:
            raise StoreUnavailable("the export is not frozen")
        _park(self._connection, state, move, other, content)
        self._connection.execute("COMMIT")
        self._frozen = False

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._connection.close()


def check_none_arriving(connection: sqlite3.Connection) -> None:
    """Raise if records of a tenant have come that is not here yet: they would be left out."""
    if connection.execute(_SQL["has_arriving"]).fetchall()[0][0]:
        for (tenant,) in connection.execute(_SQL["arriving_tenant"]).fetchall():
            raise BackendError(f"the tenant {tenant!r} is on its way into this store: end its move first")


def records_of(tx: Tx, tenant: str | None) -> Iterator[AnyRecord]:
    yield head_of(tx, tenant)
    last = -1
    while nos := [no for (no,) in tx.rows(_SQL["next_items"], last, PORTION, tenant)]:
        last = nos[-1]
        yield from items_of(tx, nos, leases=False)
    yield from _groups(tx)
    yield from others_of(tx, READ)


def head_of(tx: Tx, tenant: str | None) -> Head:
    no, seq, token, orders = tx.rows(_SQL["head"])[0]
    workers = tuple(id for (id,) in tx.rows(_SQL["live_workers"], tx.now))
    counters = {"number": no, "place": seq, "token": token, "orders": orders}
    return Head(store="sqlite", tenant=tenant, at=tx.now, workers=workers, **counters)


def workers_of(tx: Tx, tenant: str | None) -> Iterator[PortableWorker]:
    for id, until, lease, types, info, release in tx.rows(_SQL["workers_of"], tenant):
        names = None if types is None else decode_ids(types)
        yield PortableWorker(id=id, until=until, lease=lease, types=names, info=info, release=release or "")


def items_of(tx: Tx, nos: Sequence[int], *, leases: bool) -> Iterator[PortableItem]:
    """The items of these numbers, in their order."""
    wanted = array(nos)
    states = full_states(tx, nos)
    of_items = recorded({name: tx.rows(_STATEMENTS[name], wanted) for name in _RECORDED}, _VALUES)
    pending: defaultdict[int, set[str]] = defaultdict(set)
    for no, name in tx.rows(_SQL["pending"], wanted):
        pending[no].add(name)
    for row in tx.rows(_SQL["more"], wanted):
        more = _SqliteFields(*row)
        names = tuple(sorted(pending[more.no])) if more.no in pending else ()
        item = portable.portable_item(states[more.no], more.fields(names) | of_items.get(more.no, {}))
        if more.status == RUNNING and leases and more.token is not None:
            token, resumes = more.token, more.records & 8 > 0
            yield leased(item, PortableLease(more.worker_id, token, bool(more.begun), more.began, resumes))
        elif more.status == RUNNING:
            lease = LostLease(more.worker_id, more.worker_release or "", bool(more.begun), more.began)
            yield unleased(item, lease, tx.now)
        else:
            yield item


class _SqliteFields(msgspec.Struct, gc=False):
    """The columns of the statement `more`, in its order."""

    no: int
    group_no: int
    keep: float
    keep_dead: float | None
    contributes: int
    need: int
    any_end_counts: int
    open_met: int | None
    done_met: int | None
    status: int | None
    seq: int | None
    due: float
    ready_since: float | None
    redrives: int
    holds_lane: int | None
    verdict: Verdict | None
    worker_id: str
    worker_release: str | None
    begun: int | None
    began: float | None
    contributed: int | None
    failed_group: int
    holds_key: int | None
    changed_by: str | None
    records: int
    has_group: int
    closes: int
    token: int | None

    def fields(self, pending: tuple[str, ...]) -> dict[str, Any]:
        status = self.status
        waits = status is not None and self.verdict is None
        blocked = status == BLOCKED
        return {
            "number": self.no,
            "group": self.group_no,
            "holds_key": self.holds_key == 1,
            "changed_by": decode_ids(self.changed_by) if self.holds_key == 1 else (),
            "keep": self.keep,
            "keep_dead": self.keep_dead,
            "need": self.need,
            "any_end": bool(self.any_end_counts),
            "contributes": bool(self.contributes),
            "closes_group": bool(self.closes),
            "verdict": self.verdict,
            "place": self.seq if waits and not blocked else 0,
            "due": self.due,
            "ready_at": self.ready_since if waits and status not in (BLOCKED, SCHEDULED) else None,
            "redrives": self.redrives,
            "holds_lane": bool(self.holds_lane),
            "met": self.open_met if blocked else 0,
            "pending": pending,
            "contributed": self.contributed == 1 and not self.has_group,
            "unreleased": self.done_met is not None and self.done_met < self.need,
            "failed_group": bool(self.failed_group),
            "suspended": self.records & 2 > 0 and status != RUNNING,
        }


def _groups(tx: Tx) -> Iterator[PortableGroup]:
    last = -1
    while rows := tx.rows(_SQL["groups"], last, PORTION):
        last = rows[-1][0]
        yield from map(group_of, rows)


def others_of(tx: Tx, read: Mapping[str, type[Portable]]) -> Iterator[AnyRecord]:
    for name, kind in read.items():
        for row in tx.rows(_SQL[name], *((tx.now,) if name in AS_OF_NOW else ())):
            yield record_of(kind, row, _VALUES)


# ---------------------------------------------------------------------------------------------------- writing


_COLUMNS: Final = columns(
    {
        "item": (
            "no=number id tenant type queue lane priority attempts group_no=group parent workflow"
            " workflow_type key queued_at keep keep_dead options input | queued_by after"
        ),
        "open": (
            "no=number queue tenant type lane seq=place due ready_since=ready_at deadline attempt failures"
            " losses redrives need any_end_counts=any_end verdict started=claimed_at contributes"
            " began=started_at holds_lane deferrals"
            " | status rank group_no has_dependencies met pending records"
        ),
        "done": (
            "no=number reason attempt failures losses redrives due deadline started=claimed_at ended=ended_at"
            " contributed worker result contributes need any_end_counts=any_end began=started_at deferrals"
            " | outcome expires met failed_group records"
        ),
        "dead": "no=number ended=ended_at queue tenant type reason mark | release",
        "key": "key tenant type no=number | changed_by",
        "waiting": "no=number tenant | after tolerant pending",
        "attempt": "no place attempt error_type message traceback at worker release",
        "step": "no name kind value took undo signal over until at attempt times",
        "mail": "no name key taken value",
        "progress": "no value at",
        "chunk": "no number at value",
        "log": "no token at value",
        "group": (
            "no id tenant type open total failed cancelled version final keep ended prune_at outer_no value"
        ),
        "orders": "subject queue tenant until at body",
        "schedule": "name next_at spec paused last_at seen_at",
        "removed_schedule": "name at",
        "schedule_run": "name at fired_at id tenant error",
        "limit": "name algorithm at used before idle_at limit_ window_",
        "claimed_key": "key tenant owner until",
        "release": "name began",
        "stat": "step at type queue started succeeded failed retried dead cancelled lost wait run",
        "sample": "step at queue samples ready running oldest estimated",
        "audit": "no at actor verb tenant ids count about reason address bulk",
    }
)
_INSERTS: Final = {
    table: f"INSERT INTO treadle_{table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608  our names
    for table, (_, names, *_) in _COLUMNS.items()
}
_STATUS: Final = {"blocked": BLOCKED, "scheduled": SCHEDULED, "ready": READY}
_OUTCOME: Final = {"success": 10, "dead": 11, "cancelled": 12}


class SqliteImport(Import):
    """Fills the file in one transaction, which ends with the mark: a crash leaves an empty store."""

    _before = -1
    """The last number that the file had given before."""

    def __init__(self, store: MovingStore, move: str, source: str) -> None:
        self._store = store
        self._move = move
        self._source = source
        self._connection = store.connect(make=True)
        try:
            self._begin()
        except BaseException:
            self._connection.close()
            raise
        self._tx = Tx(self._connection.cursor(), store.clock.now())

    def _begin(self) -> None:
        connection = self._connection
        self._store.begin(connection)
        mark = read_mark(connection)
        if mark is not None:
            if not mark.gives_way(self._source):
                raise refusal(mark)
            _empty(connection)
        apply_schema(connection)
        found = connection.execute(_SQL["in_the_way"], (self._store.clock.now(),)).fetchall()[0][0]
        if found is not None:
            raise StoreNotEmpty(f"sqlite:///{self._store.path}", found)
        connection.execute(_SQL["create_waiting"])

    async def write(self, records: Sequence[bytes]) -> None:
        decoded = [portable.decode(data) for data in records]
        await self._store.run(lambda: self._write(decoded))

    def _write(self, records: Sequence[AnyRecord]) -> None:
        rows: Rows = defaultdict(list)
        items: list[PortableItem] = []
        for record in records:
            if isinstance(record, Head):
                counters = record.number, record.place, record.token, record.orders
                self._tx.run(_SQL["set_counter"], *counters)
            elif isinstance(record, PortableItem):
                items.append(record)
                _add_item(record, rows)
            else:
                add_other(record, _VALUES, rows)
        try:
            for table, of_table in rows.items():
                if table == "group":  # a look at the items, which are written by now
                    of_table = [self._group_row(row) for row in of_table]
                self._connection.executemany(_INSERTS[table], _COLUMNS[table].pick(of_table))
        except sqlite3.IntegrityError as error:
            raise InputError(f"a record is there twice: {error}") from error
        if any(item.parent is not None and item.group != item.number for item in items):
            self._tx.run(_SQL["queued_by"], items[0].number, items[-1].number)

    async def finish(self) -> None:
        await self._store.run(self._finish)

    def _connect(self) -> None:
        tx = self._tx
        self._add_dependencies()
        for name in ("open_roots", "done_roots", "failed_places", "deaths", "outermost", "nested"):
            tx.run(_SQL[name], self._before)
        tx.run(_SQL["raise_counter"])
        tx.run(_SQL["no_types"], tx.now)
        if tx.rows(_MARKS["any_mark"], MARKS, PREFIX):
            add_fences(self._connection)
        tx.run(_SQL["drop_waiting"])

    def _finish(self) -> None:
        self._connect()
        _park(self._connection, IMPORTING, self._move, self._source)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        self._connection.close()

    def _add_dependencies(self) -> None:
        last = -1
        while rows := self._tx.rows(_SQL["next_waiting"], last, PORTION):
            last = rows[-1][0]
            found = [
                (no, tenant, decode_ids(after), tolerant, pending)
                for no, tenant, after, tolerant, pending in rows
            ]
            known = find_known(
                self._tx, {(tenant, name) for _, tenant, after, _, _ in found for name in after}
            )
            waiting: list[WaitingItem] = []
            for no, tenant, after, tolerant, pending in found:
                # Of an item that does not wait any more, names that do not exist are kept, for
                # `connect_waiting`.
                names = (
                    [name for name in after if (tenant, name) not in known]
                    if pending is None
                    else decode_ids(pending)
                )
                waiting.append(
                    WaitingItem(no, tenant, after, tolerant, Dependencies(0, pending=dict.fromkeys(names, 1)))
                )
            store_dependencies(self._tx, waiting, known)

    def _group_row(self, row: Row) -> Row:
        number, *others, keep, ended_at, outer, value = row
        if keep is None:
            keep = self._tx.value(_SQL["keep_of_closer"], number)
        prune_at = None if ended_at is None else ended_at + (keep or 0.0)
        return number, *others, 86400.0 if keep is None else keep, ended_at, prune_at, outer, value


class SqlitePartImport(SqliteImport):
    """Adds a tenant to a file that is in use, in one transaction. Others wait to write meanwhile."""

    def __init__(self, store: MovingStore, tenant: str) -> None:
        self._tenant = tenant
        super().__init__(store, "", "")
        self._before, self._place, self._token, self._orders = self._tx.rows(_SQL["head"])[0]
        last_audit = self._tx.value(_SQL["last_audit"])
        self._beside = portable.Beside(tenant, self._before, self._place, last_audit)

    def _begin(self) -> None:
        connection = self._connection
        self._store.begin(connection)
        check_unmarked(connection)
        check_schema(connection)
        self._check_room()

    def _check_room(self) -> None:
        connection = self._connection
        found = connection.execute(_SQL["tenant_in_the_way"], (self._tenant,)).fetchall()[0][0]
        if found is not None:
            raise StoreNotEmpty(f"sqlite:///{self._store.path}", f"{found} of {self._tenant}")
        connection.execute(_SQL["create_waiting"])

    def _write(self, records: Sequence[AnyRecord]) -> None:
        placed = self._beside.place(records)
        for record in placed:
            if isinstance(record, Head):
                record.number += self._before
                record.place += self._place
                record.token = max(record.token, self._token)
                record.orders = self._orders
        super()._write(placed)

    def _finish(self) -> None:
        self._connect()
        self._beside.check(
            record
            for record in records_of(self._tx, self._tenant)
            if portable.goes_along(record, self._tenant)
        )
        self._connection.execute("COMMIT")


def _add_item(item: PortableItem, rows: Rows) -> None:
    def add(table: str, *others: object) -> None:
        rows[table].append(_COLUMNS[table].row(item, *others))

    outer = outer_number(item)
    add("item", outer, array(item.after) if item.after else None)
    if item.ended_at is None:
        add("open", *_open_values(item, outer))
    else:
        add("done", *_done_values(item, outer))
    if item.status == "dead":
        add("dead", item.history[-1].release or None if item.history else None)
    if item.holds_key:
        add("key", array(item.changed_by) if item.changed_by else None)
    if item.after:
        tolerant = is_tolerant("done" if item.any_end else "success", item.need, item.after)
        waits = item.status == "blocked" and item.verdict is None
        add("waiting", array(item.after), tolerant, array(item.pending) if waits else None)
    add_recorded(item, _VALUES, rows)


def _open_values(item: PortableItem, outer: int | None) -> Row:
    status = _STATUS[item.status]
    return (
        status if item.verdict is None else doomed(status),
        -item.priority,
        outer,
        bool(item.after),
        item.met if item.status == "blocked" else item.need,
        sum(item.after.count(name) for name in item.pending),
        _flags(item),
    )


def _done_values(item: PortableItem, outer: int | None) -> Row:
    keep = item.keep_dead if item.status == "dead" else item.keep
    assert item.ended_at is not None
    return (
        _OUTCOME[item.status],
        # Roots with other members are set right at the end.
        None if keep is None or outer is not None else item.ended_at + keep,
        0 if item.unreleased else item.need,
        item.group if item.failed_group else None,
        _flags(item),
    )


def _flags(item: PortableItem) -> int:
    others = item.unread or item.signal_keys or item.chunks or item.progress is not None
    return bool(item.steps) + 2 * item.suspended + 4 * bool(others)
