"""Portable records: all that a store holds, in one form for all stores.

`Backend.export` gives records, `Backend.import_` takes them, `treadle export` writes them into a file. Each
is msgpack: a map with the name of its kind and the fields that differ from their defaults. They come in this
order: one `Head`, items in the order of their numbers, groups, and the rest.

Numbers are those of the exporting store: the order of submission. A group has the number of its root, or of
the item that closes it. They are unique within one export, and the importing store, which is empty, keeps
them.

What is not in a record is made anew, or left out: workers, leases, permits and stages. A running item is
exported as if its worker had been removed at that instant: see `unleased`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, BinaryIO, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, astuple

from treadle.errors import InputError
from treadle.item import (
    Algorithm,
    Attempt,
    DeathReason,
    ItemState,
    Limit,
    Schedule,
    StepKind,
    StepRecord,
    Verdict,
)
from treadle.records import AuditEntry, BacklogSample, ScheduleRun, Stat

from .rules.records import COUNTERS, stat_of
from .rules.settlement import KEPT_ATTEMPTS, Counters, after_loss, lost_attempt
from .rules.times import HELD

VERSION: Final = 1
"""Of the form. A store that gets a newer one refuses it."""

OpenStatus: TypeAlias = Literal["blocked", "scheduled", "ready", "success", "dead", "cancelled"]
_OPEN: Final = ("blocked", "scheduled", "ready")


Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**47)]
"""Of items, groups, places and audit entries. Scripts of Redis count on from the last one, in six bytes."""
Token: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
Priority: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Counts: TypeAlias = Annotated[tuple[Whole, ...], Meta(min_length=len(COUNTERS), max_length=len(COUNTERS))]
_FAR: Final = 2.0**40
"""Later than the year 9999, and twice as long."""
Instant: TypeAlias = Annotated[float, Meta(ge=-_FAR, le=_FAR)]
Due: TypeAlias = Annotated[float, Meta(ge=-_FAR, le=_FAR * HELD)]
Duration: TypeAlias = Annotated[float, Meta(ge=0, le=_FAR)]
Amount: TypeAlias = Annotated[float, Meta(ge=-(2.0**63), le=2.0**63)]
"""A finite number."""


class Portable(
    Struct, kw_only=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"
):
    """Base of all records."""


class Head(Portable, tag="head", kw_only=True):
    """The first record: of which form the others are, and how far the counters of the store are."""

    version: int = VERSION
    store: str
    """The kind of the store, for people."""
    at: Instant
    """The store's clock, when it was exported."""
    number: Number
    """The last number of an item."""
    place: Number
    """The last place in a line."""
    token: Token
    """No token of the importing store may be this one, or smaller."""
    orders: Whole
    """The version of the orders."""
    workers: tuple[str, ...] = ()
    """Workers that were alive. They are not imported."""
    tenant: str | None = None
    """Whose alone the records are. None: they are all."""


class PortableAttempt(Struct, array_like=True, frozen=True, gc=False):
    """An entry of a history. The texts are bytes: they may hold lone surrogates."""

    attempt: Count
    error_type: bytes
    message: bytes
    traceback: bytes
    at: Instant
    worker: str
    release: str


class PortableStep(Struct, array_like=True, frozen=True, gc=False):
    name: str
    kind: StepKind
    value: bytes | None
    took: Amount
    undo: bytes | None
    signal: str
    over: bool
    until: Instant | None
    at: Instant
    attempt: Count
    times: Count


class PortableLease(Struct, array_like=True, frozen=True, gc=False):
    """The lease of an item that runs while its tenant moves: it goes along, with its token."""

    worker: str
    token: Token
    begun: bool
    started_at: Instant | None
    """When the handler of the attempt before this one began."""
    resumes: bool = False


class PortableItem(Portable, tag="item", kw_only=True):
    """An item in any state but `running`. One that has a lease is `ready` here."""

    number: Number
    id: str
    tenant: str
    type: str
    queue: str
    lane: str = ""
    priority: Priority = 0
    attempts: Whole | None = None
    group: Number
    """The number of its group: its own for a root."""
    group_id: str = ""
    """Empty for a root."""
    parent: str | None = None
    workflow: str | None = None
    workflow_type: str | None = None
    key: str | None = None
    holds_key: bool = False
    """It answers for the key: no later item has taken it over."""
    changed_by: tuple[str, ...] = ()
    """See `KeyHolder` in the rules of submission."""
    queued_at: Instant
    keep: Duration
    keep_dead: Duration | None = None
    after: tuple[str, ...] = ()
    need: Count = 0
    any_end: bool = False
    """Any end of a prerequisite counts."""
    contributes: bool = True
    closes_group: bool = False
    options: bytes = b""
    input: bytes = b""

    status: OpenStatus
    verdict: Verdict | None = None
    place: Number = 0
    """Its place in its line, for a ready item, or for a scheduled one that keeps it."""
    due: Due
    """As stored: while it is held, multiplied by `HELD` in the rules of times."""
    ready_at: Instant | None = None
    deadline: Instant | None = None
    claimed_at: Instant | None = None
    started_at: Instant | None = None
    ended_at: Instant | None = None
    worker: str | None = None
    """The worker that ended it."""
    attempt: Count = 0
    failures: Count = 0
    losses: Count = 0
    deferrals: Count = 0
    redrives: Count = 0
    holds_lane: bool = False
    suspended: bool = False
    met: Count = 0
    """For an open item with prerequisites: how many have counted."""
    pending: tuple[str, ...] = ()
    """The names in `after` that are open, in the order of their bytes."""
    reason: DeathReason | None = None
    result: bytes | None = None
    contributed: bool = False
    """A root that is alone: its result is its group's value."""
    unreleased: bool = False
    """It ended before its condition was met."""
    failed_group: bool = False
    mark: str = ""

    history: tuple[PortableAttempt, ...] = ()
    steps: tuple[PortableStep, ...] = ()
    """In the order in which they were recorded first."""
    unread: tuple[tuple[str, bytes | None], ...] = ()
    """Signals that no wait has taken, in the order of arrival: names and values."""
    signal_keys: tuple[tuple[str, str], ...] = ()
    """Names and keys of all signals that had a key, in the order of their bytes."""
    progress: bytes | None = None
    progress_at: Instant | None = None
    chunks: tuple[tuple[Count, Instant, bytes], ...] = ()
    """Numbers, instants and values."""
    logs: tuple[bytes, ...] = ()
    """What its last attempts have logged, the last one last."""
    lease: PortableLease | None = None
    """Only in the records of a tenant that moves from store to store: never in a file."""


class PortableGroup(Portable, tag="group", kw_only=True):
    """A group that has had a second member, or a value that is not its root's result."""

    number: Number
    id: str
    tenant: str
    type: str
    open: Count = 0
    total: Count = 1
    failed: Count = 0
    cancelled: Count = 0
    version: Whole = 0
    final: bool = False
    keep: Duration | None = None
    """None: no member has joined yet."""
    ended_at: Instant | None = None
    outer: Number | None = None
    value: bytes | None = None


class PortableWorker(Portable, tag="worker", kw_only=True):
    """A worker that has a lease which goes along. Only in the records of a tenant that moves."""

    id: str
    until: Instant
    lease: Duration | None = None
    types: tuple[str, ...] | None = None
    info: bytes | None = None
    release: str = ""


class PortableOrder(Portable, tag="order", kw_only=True):
    """An order of an operator. `body`: see `order_bytes` in the rules of orders."""

    body: bytes
    at: Instant


class PortableSchedule(Portable, tag="schedule", kw_only=True):
    name: str
    next_at: Instant | None = None
    spec: bytes = b""
    paused: bool = False
    last_at: Instant | None = None
    seen_at: Instant = 0.0


class PortableRemoval(Portable, tag="removed_schedule", kw_only=True):
    name: str
    at: Instant


class PortableRun(Portable, tag="run", kw_only=True):
    """A run of a schedule."""

    name: str
    at: Instant
    fired_at: Instant
    id: str | None = None
    tenant: str | None = None
    error: str = ""


class PortableLimit(Portable, tag="limit", kw_only=True):
    """The state of a rate limit, and what its last request asked for."""

    name: str
    algorithm: Literal["token_bucket", "fixed_window", "sliding_window"]
    at: Instant
    used: Amount
    before: Amount = 0.0
    limit: Whole | None = None
    window: Duration | None = None


class PortableKey(Portable, tag="claimed_key", kw_only=True):
    key: str
    tenant: str
    owner: str
    until: Instant


class PortableRelease(Portable, tag="release", kw_only=True):
    """When the first worker of a release began."""

    name: str
    began: Instant


class PortableStat(Portable, tag="stat", kw_only=True):
    """What workers counted in a span of this many seconds. `counts`: in the order of `COUNTERS` in the rules
    of records. Histograms have no zeros at their ends."""

    step: Count
    at: Instant
    type: str
    queue: str
    counts: Counts
    wait: tuple[Whole, ...] = ()
    run: tuple[Whole, ...] = ()


class PortableSample(Portable, tag="sample", kw_only=True):
    step: Count
    at: Instant
    queue: str
    samples: Whole
    ready: Amount
    running: Amount
    oldest: Amount
    estimated: bool = False


class PortableAudit(Portable, tag="audit", kw_only=True):
    no: Number
    at: Instant
    actor: str
    verb: str
    tenant: str | None = None
    ids: tuple[str, ...] = ()
    count: Whole = 0
    about: str = ""
    reason: str = ""
    address: str = ""
    bulk: str | None = None


AnyRecord: TypeAlias = (
    Head
    | PortableItem
    | PortableGroup
    | PortableWorker
    | PortableOrder
    | PortableSchedule
    | PortableRemoval
    | PortableRun
    | PortableLimit
    | PortableKey
    | PortableRelease
    | PortableStat
    | PortableSample
    | PortableAudit
)

KINDS: Final[tuple[str, ...]] = (
    *("head", "item", "group", "order", "schedule", "removed_schedule", "run", "limit", "claimed_key"),
    *("release", "stat", "sample", "audit"),
)

encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(AnyRecord).decode


def goes_along(record: AnyRecord, tenant: str | None) -> bool:
    """Whether a record is in the export of a tenant, or of all."""
    match record:
        case Head() | PortableWorker():
            return True
        case PortableItem() | PortableGroup() | PortableRun() | PortableKey() | PortableAudit():
            return tenant is None or record.tenant == tenant
        case _:
            return tenant is None


class _AnyHead(Struct):
    kind: str = ""
    version: int = VERSION


_decode_head: Final = msgspec.msgpack.Decoder(_AnyHead).decode


def decode(data: bytes) -> AnyRecord:
    """A record. `InputError` if it is of a newer form, or no record."""
    try:
        try:
            record: AnyRecord = _decode(data)
        except msgspec.ValidationError:
            _refuse_newer(data)
            raise
        if isinstance(record, Head):
            _refuse_newer(data)
        elif isinstance(record, PortableItem):
            _check_item(record)
        return record
    except InputError:
        raise
    except msgspec.ValidationError as error:
        raise InputError(f"this is no record that this version of treadle knows: {error}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"this is no record of treadle: {error}") from error


def _refuse_newer(data: bytes) -> None:
    """`InputError` if this is the head of a newer form."""
    head = _decode_head(data)
    if head.kind == "head" and head.version > VERSION:
        raise InputError(
            f"these records have version {head.version}, and this treadle knows {VERSION}: "
            "import them with the version of treadle that exported them, or a newer one"
        )


def _check_item(item: PortableItem) -> None:
    """Raise ValueError for fields that contradict each other."""
    steps, chunks = [step.name for step in item.steps], [chunk[0] for chunk in item.chunks]
    for is_wrong, what in (
        ((item.ended_at is None) != (item.status in _OPEN), "`ended_at`"),
        (item.holds_key and item.key is None, "`holds_key`"),
        (not set(item.pending) <= set(item.after), "`pending`"),
        (len(set(steps)) < len(steps), "`steps`"),
        (any(number >= later for number, later in pairwise(chunks)), "`chunks`"),
    ):
        if is_wrong:
            raise ValueError(f"{what} of item {item.number} does not agree with its other fields")


def in_order(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """In the order of an export."""
    return sorted(records, key=_place)


def renumbered(records: list[AnyRecord]) -> list[AnyRecord]:
    """All that comes in of a tenant, with numbers and places from 1 on, in the same order. Behind those of
    the old store, numbers would double with each move to and fro."""
    numbers, places = list[int](), list[int]()
    for record in records:
        if isinstance(record, PortableItem):
            numbers += (record.number, record.group)
            places += (record.place,) if record.place else ()
        elif isinstance(record, PortableGroup):
            numbers += (record.number,) if record.outer is None else (record.number, record.outer)
    number, place = (min(each, default=1) - 1 for each in (numbers, places))
    for record in records:
        if isinstance(record, PortableItem):
            record.number -= number
            record.group -= number
            record.place -= place if record.place else 0
        elif isinstance(record, PortableGroup):
            record.number -= number
            record.outer = None if record.outer is None else record.outer - number
        elif isinstance(record, Head):
            record.number = max(numbers, default=0) - number
            record.place = max(places, default=0) - place
    return records


def _place(record: AnyRecord) -> tuple[int, int]:
    match record:
        case Head():
            return 0, 0
        case PortableItem():
            return 1, record.number
        case PortableGroup():
            return 2, record.number
        case _:
            return 3, 0


class Place(NamedTuple):
    """Where a record is in an export: that of its kind, and the number of an item."""

    kind: int
    number: int = 0


def check_order(records: Iterable[AnyRecord], last: Place | None) -> Place | None:
    """The place of the last record. `InputError` for one that does not come behind those before it."""
    for record in records:
        match record:
            case Head():
                place = Place(0)
            case PortableItem():
                place = Place(1, record.number)
            case PortableGroup():
                place = Place(2)
            case _:
                place = Place(3)
        if last is None and place.kind:
            raise InputError("the first record is no head: this is no whole export")
        if last is not None and (place < last or (place == last and place.kind < 2)):
            kind = record.__struct_config__.tag
            raise InputError(f"a record is out of order, or there twice: {kind} {place.number or ''}".strip())
        last = place
    return last


def check_nesting(outer: Mapping[int, int]) -> None:
    """`InputError` if a group is within itself. outer: by the number of a group, that of its outer one."""
    checked = set[int]()
    for number in outer:
        passed = set[int]()
        around: int | None = number
        while around is not None and around not in checked:
            if around in passed:
                raise InputError(f"the group {around} is within itself")
            passed.add(around)
            around = outer.get(around)
        checked |= passed


class Beside:
    """Records of a tenant that come into a store beside the work of others: with numbers behind those that
    the store has given. What is read back before they are seen must be the same.

    number, place, audit: the last ones that the store has given.
    """

    def __init__(self, tenant: str, number: int, place: int, audit: int) -> None:
        self._tenant = tenant
        self._number = number
        self._place = place
        self._audit = audit
        self._wanted = _Contents()

    def place(self, records: Iterable[AnyRecord]) -> list[AnyRecord]:
        """Those that come in. Runs, and what the audit says of the tenant, stay where they were written."""
        found = [one for record in records if (one := self._placed(record)) is not None]
        self._wanted.add(found)
        return found

    def _placed(self, record: AnyRecord) -> AnyRecord | None:
        if getattr(record, "tenant", None) not in (None, self._tenant):
            raise InputError(f"a record of another tenant is among those of {self._tenant}")
        match record:
            case PortableItem():
                record.number += self._number
                record.group += self._number
                if record.place:
                    record.place += self._place
            case PortableGroup():
                record.number += self._number
                if record.outer is not None:
                    record.outer += self._number
            case PortableAudit() if record.tenant is None:  # who does this
                record.tenant = self._tenant
                record.no = self._audit = self._audit + 1
            case Head() | PortableKey() | PortableWorker():
                pass
            case _:
                return None
        return record

    def check(self, records: Iterable[AnyRecord]) -> None:
        """Raise if these, read from the store, are not what was written."""
        found = _Contents()
        found.add(records)
        if not found.is_copy_of(self._wanted):
            raise damaged(f"{self._wanted} were read, and {found} of them are in the store")


class _Contents:
    """Counts records, and adds up their hashes, for a comparison in this process."""

    def __init__(self) -> None:
        self.keys = self.others = self._keys = self._others = 0

    def add(self, records: Iterable[AnyRecord]) -> None:
        for record in records:
            if isinstance(record, (PortableItem, PortableGroup)):
                self.others += 1
                self._others += hash(astuple(record))
            elif isinstance(record, PortableKey):
                self.keys += 1
                self._keys += hash(astuple(record))

    def is_copy_of(self, first: _Contents) -> bool:
        """Claimed keys may have expired since the first was counted."""
        if (self.others, self._others) != (first.others, first._others):
            return False
        return self.keys < first.keys or (self.keys, self._keys) == (first.keys, first._keys)

    def __str__(self) -> str:
        return f"{self.others:,} items and groups, and {self.keys:,} claimed keys,"


# ------------------------------------------------------------------------------------------------- building


def text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def bytes_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def portable_attempt(attempt: Attempt) -> PortableAttempt:
    type, message, traceback = map(text_bytes, (attempt.error_type, attempt.message, attempt.traceback))
    return PortableAttempt(
        attempt.attempt, type, message, traceback, attempt.at, attempt.worker, attempt.release
    )


def portable_step(step: StepRecord) -> PortableStep:
    return PortableStep(
        step.name,
        step.kind,
        step.value,
        step.took,
        step.undo,
        step.signal,
        step.over,
        step.until,
        step.at,
        step.attempt,
        step.times,
    )


def step_record(step: PortableStep) -> StepRecord:
    return StepRecord(**{name: getattr(step, name) for name in PortableStep.__struct_fields__})


def attempt_of(record: PortableAttempt) -> Attempt:
    type, message, traceback = map(bytes_text, (record.error_type, record.message, record.traceback))
    return Attempt(record.attempt, type, message, traceback, record.at, record.worker, record.release)


def portable_run(run: ScheduleRun) -> PortableRun:
    return PortableRun(
        name=run.name, at=run.at, fired_at=run.fired_at, id=run.id, tenant=run.tenant, error=run.error
    )


def run_of(record: PortableRun) -> ScheduleRun:
    return ScheduleRun(**asdict(record))


def portable_schedule(schedule: Schedule) -> PortableSchedule:
    return PortableSchedule(**{name: value for name, value in asdict(schedule).items() if name != "tenant"})


def schedule_of(record: PortableSchedule) -> Schedule:
    return Schedule(**asdict(record))


def portable_limit(
    name: str,
    algorithm: Algorithm,
    at: float,
    used: float,
    before: float,
    limit: int | None,
    window: float | None,
) -> PortableLimit:
    return PortableLimit(
        name=name,
        algorithm=algorithm,  # type: ignore[arg-type]
        at=at,
        used=used,
        before=before,
        limit=limit,
        window=window,
    )


def limit_of(record: PortableLimit) -> Limit:
    return Limit(record.name, record.limit or 0, record.window or 1.0, record.algorithm)


def portable_stat(step: int, stat: Stat) -> PortableStat:
    counts = tuple(getattr(stat, name) for name in COUNTERS)
    wait, run = _without_zeros(stat.wait), _without_zeros(stat.run)
    return PortableStat(
        step=step, at=stat.at, type=stat.type, queue=stat.queue, counts=counts, wait=wait, run=run
    )


def _without_zeros(counts: Sequence[int]) -> tuple[int, ...]:
    """A histogram as all stores have it: some drop the zeros at its end."""
    length = max((place for place, number in enumerate(counts, 1) if number), default=0)
    return tuple(counts[:length])


def stat_of_record(record: PortableStat) -> Stat:
    return stat_of(record.at, (record.type, record.queue), record.counts, record.wait, record.run)


def portable_sample(sample: BacklogSample) -> PortableSample:
    return PortableSample(**asdict(sample))


def sample_of(record: PortableSample) -> BacklogSample:
    return BacklogSample(**asdict(record))


def portable_audit(entry: AuditEntry) -> PortableAudit:
    return PortableAudit(**{name: getattr(entry, name) for name in PortableAudit.__struct_fields__})


def audit_of(record: PortableAudit) -> AuditEntry:
    return AuditEntry(**asdict(record))


def portable_item(state: ItemState, more: Mapping[str, Any]) -> PortableItem:
    """The record of an item as a reader sees it, with what readers do not see. It may be `running` still: see
    `unleased`."""
    is_open = state.ended_at is None
    if not state.after:
        more = {**more, "need": 0, "any_end": False}
    return PortableItem(
        id=state.id,
        tenant=state.tenant,
        type=state.type,
        queue=state.queue,
        lane=state.lane,
        priority=state.priority,
        attempts=state.attempts,
        group_id="" if state.group_id == state.id else state.group_id,
        parent=state.parent,
        workflow=state.workflow,
        workflow_type=state.workflow_type,
        key=state.key,
        queued_at=float(state.queued_at),
        after=tuple(state.after),
        options=state.options,
        input=state.input,
        status=state.status,  # type: ignore[arg-type]
        deadline=_float(state.deadline),
        claimed_at=_float(state.claimed_at),
        started_at=_float(state.started_at),
        ended_at=_float(state.ended_at),
        worker=None if is_open else state.worker,
        attempt=state.attempt,
        failures=state.failures,
        losses=state.losses,
        deferrals=state.deferrals,
        reason=state.reason,
        result=state.result,  # type: ignore[arg-type]
        mark=state.mark,
        history=tuple(map(portable_attempt, state.history)),
        **more,
    )


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


class LostLease(Struct, frozen=True):
    """The lease of an item that is exported: who has it, and what becomes of it."""

    worker: str
    release: str
    begun: bool
    started_at: float | None
    """When the handler of the attempt before this one began."""
    overdue: bool = False
    """Its deadline has passed while it ran."""


def unleased(item: PortableItem, lease: LostLease, now: float) -> PortableItem:
    """A running item as it is exported: as if its worker had been removed now. A lease that had begun is a
    loss. One that had not leaves no trace."""
    counters = Counters(item.attempt, item.failures, item.losses, lease.begun)
    again = after_loss(now, counters, item.number, due=item.due, deadline=None)
    if lease.begun:
        item.started_at = item.claimed_at
        lost = portable_attempt(lost_attempt(item.attempt, now, lease.worker, lease.release))
        item.history = (*item.history, lost)[-KEPT_ATTEMPTS:]
    else:
        item.started_at = lease.started_at
    item.status, item.due, item.losses = again.status, again.due, again.losses
    item.suspended = False
    if item.status == "scheduled":
        item.ready_at = None
    elif lease.begun:
        item.ready_at = now
    if lease.overdue:
        item.verdict, item.ready_at, item.place = "expired", None, 0
    return item


def leased(item: PortableItem, lease: PortableLease) -> PortableItem:
    """A running item whose lease goes along."""
    item.status, item.suspended, item.lease = "ready", False, lease
    return item


def lost_lease(item: PortableItem, release: str, now: float) -> PortableItem:
    """An item whose lease cannot go along after all."""
    lease, item.lease = item.lease, None
    if lease is None:
        return item
    return unleased(item, LostLease(lease.worker, release, lease.begun, lease.started_at), now)


# ------------------------------------------------------------------------------------------ counts and files


_EXPIRING: Final = (PortableOrder, PortableKey)
_EXPIRING_KINDS: Final = frozenset(str(kind.__struct_config__.tag) for kind in _EXPIRING)


class Tally:
    """Counts records by kind, and adds up a checksum that does not depend on their order.

    What two exports of one content may differ in is left out: the head.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.statuses: dict[str, int] = {}
        self.last_audit = 0
        """The highest number of an audit entry."""
        self._sum = self._lasting = 0
        self._counters = (0, 0)

    def add(self, records: Iterable[AnyRecord]) -> None:
        for record in records:
            if isinstance(record, Head):
                self._counters = record.number, record.orders
                continue
            kind = str(record.__struct_config__.tag)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            if isinstance(record, PortableItem):
                self.statuses[record.status] = self.statuses.get(record.status, 0) + 1
            elif isinstance(record, PortableAudit):
                self.last_audit = max(self.last_audit, record.no)
            # Not its bytes: one store writes a whole number where another writes a float, and whether a
            # default is left out depends on which object it is.
            content = repr(record).encode()
            added = int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "big")
            self._sum += added
            if not isinstance(record, _EXPIRING):
                self._lasting += added

    @property
    def checksum(self) -> str:
        return f"{self._sum % 2**128:032x}"

    @property
    def content(self) -> str:
        """What was counted, in one text: the same for one store as long as it is not used. What expires by
        itself is left out."""
        number, orders = self._counters
        return f"{self._lasting % 2**128:032x}-{number}-{orders}"

    def is_copy_of(self, first: Tally) -> bool:
        """Whether both are of one content. What expires by itself may have ended since the first was counted:
        an export leaves it out then."""
        if self.counts == first.counts:
            return self.checksum == first.checksum
        counts = {**self.counts}
        for kind in _EXPIRING_KINDS & first.counts.keys():
            if counts.get(kind, 0) <= first.counts[kind]:
                counts[kind] = first.counts[kind]
        return counts == first.counts and self._lasting == first._lasting

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class RecordsChecksum:
    """Counts records as they are stored, and adds up a checksum that does not depend on their order."""

    def __init__(self, count: int = 0, added: int = 0) -> None:
        self._count = count
        self._added = added

    def add(self, records: Iterable[bytes]) -> None:
        for data in records:
            self._count += 1
            self._added += record_digest(data)

    @property
    def total(self) -> tuple[int, int]:
        return self._count, self._added


def record_digest(data: bytes) -> int:
    """56 bits: what a database adds up too."""
    return int.from_bytes(hashlib.sha256(data).digest()[:7], "big")


MAGIC: Final = b"treadle\n"
END: Final = bytes(4)
"""Closes a file, so that one that was cut off is not taken for a whole one. The checksum follows."""
_AT_ONCE: Final = 2**20
"""Bytes that are read at once: memory is not taken for more than is there."""


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


class FileWriter:
    """Writes records into a file: each after its length, and a checksum of all bytes at the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = _digest()
        self._write(MAGIC)

    def write(self, records: Sequence[bytes]) -> None:
        for data in records:
            self._write(len(data).to_bytes(len(END), "big"))
            self._write(data)

    def end(self) -> None:
        self._write(END)
        self._file.write(self._sum.hexdigest().encode())

    def _write(self, data: bytes) -> None:
        self._sum.update(data)
        self._file.write(data)


class FileReader:
    """Reads a file of records in portions."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = _digest()
        self._ended = False
        if self._read(len(MAGIC)) != MAGIC:
            raise InputError("this is no file that `treadle export` has written")

    def read(self, limit: int) -> list[bytes]:
        """The next records: none at the end. `InputError` if the file is not as it was written."""
        found: list[bytes] = []
        while not self._ended and len(found) < limit:
            length = int.from_bytes(self._exactly(len(END)), "big")
            if length:
                found.append(self._exactly(length))
            else:
                self._check_end()
        return found

    def _check_end(self) -> None:
        wanted = self._sum.hexdigest().encode()
        if self._exactly(len(wanted)) != wanted:
            raise damaged("its checksum is another one")
        if self._read(1):
            raise damaged("something follows its end")
        self._ended = True

    def _exactly(self, count: int) -> bytes:
        data = self._read(count)
        if len(data) != count:
            raise InputError("the file ends in the middle: export it again")
        return data

    def _read(self, count: int) -> bytes:
        """As many bytes as asked for, or what is left."""
        parts: list[bytes] = []
        while count and (part := self._file.read(min(count, _AT_ONCE))):
            parts.append(part)
            count -= len(part)
        data = b"".join(parts)
        self._sum.update(data)
        return data


def damaged(how: str) -> InputError:
    return InputError(f"the file is damaged: {how}. Export it again")
