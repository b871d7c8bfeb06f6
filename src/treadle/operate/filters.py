"""Filters: which items are meant. A caller gives options, a command words, a visitor of the dashboard a text.

- `item_filter` checks options, as `app.list` takes them.
- `read_words` reads words by name: `--since 2h`, `since:2h`.
- `parse_filter` reads one text: `status:dead type:mail.send since:2h input.order_id:17`.
- `WhereCondition` compares what is inside an item. Stores do not read inputs, so `find_items` does.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast, get_args

import msgspec
from typing_extensions import TypedDict, Unpack

from treadle.base.ids import check_id, check_name
from treadle.base.timing import Instant, instant, iso, seconds, to_datetime
from treadle.base.wording import did_you_mean, one_line
from treadle.bulk_action import OPERATORS
from treadle.errors import InputError
from treadle.item import NEVER, OPEN, TERMINAL, DeathReason, Filter, ItemState, Page, Status

STATUSES: Final[tuple[Status, ...]] = get_args(Status)
REASONS: Final[tuple[DeathReason, ...]] = get_args(DeathReason)
OPEN_STATUSES: Final[tuple[Status, ...]] = tuple(each for each in STATUSES if each in OPEN)
STATUS_GROUPS: Final[dict[str, tuple[Status, ...]]] = {
    "open": OPEN_STATUSES,
    "ended": tuple(each for each in STATUSES if each in TERMINAL),
}
"""Words that stand for several statuses."""

# ----------------------------------------------------------------------------------------------- options


class FilterOptions(TypedDict, total=False):
    """Which items: all that is given must hold."""

    status: Status | Sequence[Status] | None
    type: str | None
    queue: str | None
    tenant: str | None
    workflow: str | None
    since: Instant | None
    until: Instant | None
    group_id: str | None
    key: str | None
    reason: DeathReason | None
    mark: str | None
    release: str | None
    held: bool | None
    store: str | None


def item_filter(own_tenant: str | None, /, **where: Unpack[FilterOptions]) -> Filter:
    """The filter for these options. own_tenant: of the client, which it cannot leave.

    `InputError` for a status or a reason that does not exist, for texts that are no names, and for options
    that do not exist.
    """
    for name in where:
        if name not in FilterOptions.__annotations__:
            known = FilterOptions.__annotations__
            raise InputError(
                f"there is no filter {name!r}: {did_you_mean(name, known, ', '.join(known))}",
                parameters=(name,),
            )
    status, since, until = where.get("status"), where.get("since"), where.get("until")
    given: dict[str, Any] = {
        **where,
        "tenant": own_or(where.get("tenant"), own_tenant),
        "status": check_words(_listed(status), STATUSES, "status"),
        "since": None if since is None else instant(since, field="since"),
        "until": None if until is None else instant(until, field="until"),
    }
    return _checked(given, str)


def own_or(tenant: str | None, own: str | None) -> str | None:
    """The tenant that is meant. `InputError` if the client is bound to another: own."""
    if own is not None and tenant not in (None, own):
        raise InputError.of("tenant", tenant, f"is refused: this client is bound to {own!r}")
    return tenant if own is None else own


def _listed(status: Any) -> Iterable[Any]:
    """The statuses in an option: none, one, or a list."""
    if status is None or isinstance(status, str):
        return () if status is None else (status,)
    if isinstance(status, bytes) or not hasattr(status, "__iter__"):
        raise InputError.of("status", status, "must be a status, or a list of them")
    return cast("Iterable[Any]", status)


def _checked(given: Mapping[str, Any], field: Callable[[str], str]) -> Filter:
    """The filter for values by name. field: how an error calls a name."""
    group_id, reason = given.get("group_id"), given.get("reason")

    def name(of: str) -> str | None:
        return None if given.get(of) is None else check_name(given[of], field(of))

    return Filter(
        tenant=name("tenant"),
        status=given["status"],
        type=name("type"),
        queue=name("queue"),
        workflow=name("workflow"),
        since=given["since"],
        until=given["until"],
        group_id=None if group_id is None else check_id(group_id, field=field("group_id")),
        key=name("key"),
        reason=None if reason is None else check_words((reason,), REASONS, field("reason"))[0],
        mark="" if given.get("mark") == "" else name("mark"),
        release=name("release"),
        held=_is_held(given.get("held"), field("held")),
        store=name("store"),
    )


def _is_held(value: object, field: str) -> bool:
    if value not in (None, False, True, "true"):
        raise InputError.of(field, value, "can only be true, for items that are held")
    return bool(value)


def check_tenant(value: object) -> str:
    """Return `value`, or raise InputError if no client can be bound to a tenant of this name."""
    if value == OPERATORS:
        raise InputError.of(
            "tenant", value, "is reserved for bulk actions of all tenants: choose another name"
        )
    return check_name(value, "tenant")


def check_words(given: Iterable[Any], allowed: Sequence[Any], field: str) -> tuple[Any, ...]:
    """Return `given`, or raise InputError if one is not among the allowed words."""
    wanted = tuple(given)
    for each in wanted:
        if each not in allowed:
            raise InputError.of(field, each, f"does not exist: it is one of {', '.join(allowed)}")
    return wanted


# ------------------------------------------------------------------------------------------------- words


def read_words(
    words: Mapping[str, str | Iterable[str] | bool | None],
    *,
    now: float,
    prefix: str = "",
    status: tuple[Status, ...] = (),
) -> Filter:
    """The filter for words by name: `{"status": "dead,ready", "since": "2h", "group": "g-1"}`. InputError
    names the word at fault.

    now: the store's clock. prefix: what errors write before a name. status: used if the words name none.
    """
    one = {name: value for name, value in words.items() if isinstance(value, str)}
    given: dict[str, Any] = {
        **one,
        "group_id": one.get("group"),
        "held": words.get("held"),
        "status": read_statuses(cast("str | Iterable[str]", words.get("status") or ()), f"{prefix}status")
        or status,
        "since": read_time(one.get("since"), now, f"{prefix}since"),
        "until": read_time(one.get("until"), now, f"{prefix}until"),
    }
    return _checked(given, lambda name: prefix + name.removesuffix("_id"))


def read_statuses(words: str | Iterable[str], field: str) -> tuple[Status, ...]:
    """The statuses that words name. A text may have several, separated by commas."""
    found: list[Status] = []
    for word in names_in(words):
        check_words((word,), (*STATUSES, *STATUS_GROUPS), field)
        found += STATUS_GROUPS.get(word, (cast("Status", word),))
    return tuple(dict.fromkeys(found))


def names_in(given: str | Iterable[str] | None) -> list[str]:
    """The names in texts with commas."""
    texts = [given] if isinstance(given, str) else given or []
    return [name for text in texts for name in map(str.strip, text.split(",")) if name]


_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|min|[smhdw]))+|\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|min|[smhdw])")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LONGEST_SECONDS: Final = 9
"""Digits. A longer number without a unit is epoch seconds."""


def read_duration(text: str, field: str) -> float:
    """A duration as people write it: 90, 45s, 10m, 1h30m, 2d, 1w. Seconds if it has no unit."""
    text = text.strip().lower()
    if not _DURATION.fullmatch(text):
        raise InputError.of(field, text, "is no duration: write 45s, 10m, 1h30m, 2d or 1w")
    parts = _PART.findall(text)
    return seconds(sum(float(count) * _UNITS[unit] for count, unit in parts) if parts else float(text), field)


def read_limit(text: str, field: str) -> tuple[int, float | None]:
    """A limit as people write it: `50/1m`: 50 starts per minute. `4`: 4 at once."""
    count, slash, window = (part.strip() for part in text.partition("/"))
    if not re.fullmatch("[0-9]{1,9}", count) or (slash and not window):
        raise InputError.of(field, text, "is no limit: write 4 for 4 at once, 50/1m for 50 per minute")
    length = window if window[:1].isdecimal() else f"1{window}"
    return int(count), read_duration(length, field) if slash else None


def read_until(text: str | None, field: str) -> float | datetime | None:
    """When an order ends, as people write it: a duration from now, or an instant as in `read_time`."""
    if text is None or not text.strip():
        return None
    return (
        read_duration(text, field)
        if is_duration(text)
        else to_datetime(_read_instant(text, field, "from now"))
    )


def read_time(text: str | None, now: float, field: str) -> float | None:
    """An instant as people write it: a duration before `now`, ISO 8601 (in UTC unless it says otherwise), or
    epoch seconds."""
    if text is None:
        return None
    return now - read_duration(text, field) if is_duration(text) else _read_instant(text, field)


def read_start(text: str, now: float, field: str) -> float:
    """The same for an instant to come: a duration counts from `now`."""
    return now + read_duration(text, field) if is_duration(text) else _read_instant(text, field)


_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/(s|min|m|h))?")
_PER: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def read_rate(text: str | None, field: str) -> float | None:
    """Items per second. InputError."""
    if text is None:
        return None
    parts = _RATE.fullmatch(text.strip().lower())
    rate = 0.0 if parts is None else float(parts[1]) / _PER[parts[2] or "s"]
    if not 0 < rate < math.inf:
        raise InputError.of(field, text, "is no rate: write 50/s, 600/min or 1000/h")
    return rate


def is_duration(text: str) -> bool:
    """Whether a text says how long, not when."""
    text = text.strip().lower()
    return _DURATION.fullmatch(text) is not None and not _is_epoch(text)


def _is_epoch(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal() and len(text.partition(".")[0]) > _LONGEST_SECONDS


def _read_instant(text: str, field: str, direction: str = "ago") -> float:
    text = text.strip()
    if _is_epoch(text):
        return instant(float(text), field)
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise InputError.of(
            field, text, f"is no time: write 2h (two hours {direction}), 2026-11-16 or 2026-11-16T09:30:00Z"
        ) from None
    return instant(read if read.utcoffset() is not None else read.replace(tzinfo=UTC), field)


# ------------------------------------------------------------------------------------------- one text

FIELDS: Final[Mapping[str, str]] = {
    "status": "dead, running …; open and ended stand for several; separate by commas",
    "type": "the work type",
    "queue": "",
    "tenant": "",
    "key": "",
    "workflow": "",
    "group": "the id of a group",
    "reason": "of a death: exhausted, expired …",
    "mark": "items that died alike",
    "release": "items that failed last under it",
    "held": "true: items that an operator holds",
    "store": "of several stores",
    "since": "queued then or later: 2h, 2026-11-16T09:30",
    "until": "queued before then",
    "id": "of an item; the word alone does too",
}
"""The words before the colon, and what they mean."""
INSIDE: Final = ("input", "result", "headers")
"""What a condition can look into: `input.order_id:17`."""
MOST_CHARACTERS: Final = 4000
"""Longest text of a filter."""
MOST_TEXT_IDS: Final = 100
"""Limit on the ids in one text."""

_WORD = re.compile(r'([A-Za-z_][\w.\[\]-]*):(?:"((?:[^"\\]|\\.)*)"|(\S*))|"((?:[^"\\]|\\.)*)"|(\S+)')
_PLAIN = re.compile(r'[^\s"\\]+')


class ItemFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a text selects."""

    text: str = ""
    """As it was written."""
    filter: Filter = Filter()
    """As the store reads it. Without a tenant: those that the reader may see."""
    ids: tuple[str, ...] = ()
    """The items themselves. Then there are no other words."""
    conditions: tuple[WhereCondition, ...] = ()
    """On what is inside: all must hold. The store does not know them."""

    @property
    def is_empty(self) -> bool:
        """Whether every item matches."""
        return not self.where and not self.conditions and not self.ids

    @property
    def where(self) -> dict[str, Any]:
        """The arguments for `app.list`, without ids and conditions."""
        given = {name: getattr(self.filter, name) for name in FilterOptions.__annotations__}
        return {name: value for name, value in given.items() if value not in (None, (), False)}

    @property
    def bulk_where(self) -> dict[str, Any]:
        """The arguments for `app.bulk.start`. InputError if the store cannot find what it selects."""
        if self.conditions:
            name = ".".join(map(str, self.conditions[0].path))
            raise InputError(
                f"{name!r} is inside items, where the store does not look: "
                "choose items one by one, or leave it out"
            )
        if self.ids:
            raise InputError("ids are no filter: choose the items themselves")
        return self.where


def parse_filter(text: str, *, now: float) -> ItemFilter:
    """Read a filter. InputError names the word that is wrong, and says what there is.

    now: the store's clock. `since:2h` counts from it.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"the filter is longer than {MOST_CHARACTERS:,} characters")
    words: dict[str, list[str]] = {}
    conditions: list[WhereCondition] = []
    for found in _WORD.finditer(text):
        name, value = _read_word(found)
        if name.partition(".")[0].partition("[")[0] in INSIDE:
            conditions.append(_condition(name, value))
        elif name not in FIELDS:
            raise _unknown(name, found[0])
        elif not value:
            raise InputError(
                f"{name}: has no value: write {name}:{_EXAMPLES.get(name, 'name')}, or leave it out"
            )
        elif name in words and name not in ("id", "status"):
            raise InputError(f"{name}: is there twice, and an item has only one")
        else:
            words.setdefault(name, []).append(value)
    if "id" in words and (len(words) > 1 or conditions):
        others = ", ".join(
            [*(f"{name}:" for name in words if name != "id"), *(["input."] if conditions else [])]
        )
        raise InputError(
            f"{one_line(words['id'][0], 80)!r} is an id, which names one item: leave out {others}"
        )
    ids = tuple(dict.fromkeys(check_id(id) for id in words.get("id", ())))
    if len(ids) > MOST_TEXT_IDS:
        raise InputError(f"there are {len(ids)} ids: give at most {MOST_TEXT_IDS}")
    given: dict[str, str | Iterable[str]] = {name: values[0] for name, values in words.items()}
    given["status"] = [each.lower() for each in words.get("status", ())]
    where = read_words(given, now=now)
    return ItemFilter(text=text.strip(), filter=where, ids=ids, conditions=tuple(conditions))


def _read_word(found: re.Match[str]) -> tuple[str, str]:
    """The part before the colon, and the value. A word alone is an id."""
    name, quoted, plain, quoted_alone, alone = found.groups()
    if name is not None:
        return name.lower() if name.lower() in FIELDS else name, plain if quoted is None else _unquote(quoted)
    word = alone if quoted_alone is None else _unquote(quoted_alone)
    try:
        return "id", check_id(word)
    except InputError:
        raise InputError(
            f"{one_line(word, 80)!r} is no id, and no filter: write {_all_fields()}. "
            'Quote values with blanks: key:"a b"'
        ) from None


def _unknown(name: str, word: str) -> InputError:
    hint = did_you_mean(name, FIELDS)
    known = f"{hint} There are {_all_fields()}" if hint else f"there are {_all_fields()}"
    return InputError(
        f"there is no filter {one_line(name, 80)!r}: {known}. If {one_line(word, 80)!r} is an id, write "
        f"id:{one_line(word, 80)}"
    )


def _all_fields() -> str:
    return ", ".join([*(f"{name}:" for name in FIELDS), "input.NAME:"])


def _condition(name: str, value: str) -> WhereCondition:
    condition = make_condition(name, "=", value)
    if len(condition.path) < 2:
        raise InputError(f"{name}: looks inside items, so say where: {name}.NAME:{value or 'value'}")
    return condition


_EXAMPLES: Final = {
    "status": "dead",
    "since": "2h",
    "until": "2026-11-16",
    "reason": "expired",
    "group": "id",
    "held": "true",
}


# ------------------------------------------------------------------------------------------- as a text


def filter_text(where: Filter, everything: bool = False) -> str:
    """A filter as text: `status:dead type:mail.send`."""
    given = {
        "status": ",".join(where.status),
        "type": where.type,
        "queue": where.queue,
        "tenant": where.tenant,
        "workflow": where.workflow,
        "group": where.group_id,
        "key": where.key,
        "reason": where.reason,
        "mark": where.mark,
        "release": where.release,
        "held": "true" if where.held else "",
        "store": where.store,
        "since": iso(where.since),
        "until": iso(where.until),
    }
    return words_text(given) or ("everything" if everything else "")


def words_text(given: Mapping[str, object]) -> str:
    """Words of a filter as text. Those without a value are left out."""
    return " ".join(filter_word(name, str(value)) for name, value in given.items() if value)


def filter_word(name: str, value: str) -> str:
    """One word of a filter, quoted if it must be."""
    if _PLAIN.fullmatch(value):
        return f"{name}:{value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}:"{escaped}"'


def with_word(text: str, name: str, value: str | None) -> str:
    """A filter with another value for a word. None: without it."""
    kept = [found[0] for found in _WORD.finditer(text) if (found[1] or "").lower() != name]
    return " ".join([*kept, filter_word(name, value)] if value else kept)


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


# ---------------------------------------------------------------------------- conditions on what is inside

_CONDITION = re.compile(r"\s*([A-Za-z_][\w.\[\]-]*?)\s*(!=|>=|<=|=|>|<|~)\s*(.*)", re.DOTALL)
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_ITEM_FIELDS: Final = frozenset(ItemState.__struct_fields__) - {"options", "history", "waiting_for"}
_MISSING: Final = object()


class WhereCondition(NamedTuple):
    """One condition: a path, an operator and a value."""

    path: tuple[str | int, ...]
    operator: str
    text: str
    value: Any
    """The text as JSON, if it is JSON."""

    def holds(self, item: Mapping[str, Any]) -> bool:
        found = _at(item, self.path)
        if self.operator == "!=":
            return found is _MISSING or not self._equals(found)
        if found is _MISSING:
            return False
        if self.operator == "=":
            return self._equals(found)
        if self.operator == "~":
            return self.text in (found if isinstance(found, str) else msgspec.json.encode(found).decode())
        try:
            return bool(_ORDER[self.operator](found, self.value))
        except TypeError:
            return isinstance(found, str) and bool(_ORDER[self.operator](found, self.text))

    def _equals(self, found: object) -> bool:
        # 42 is the number and the text "42"; true is not 1.
        if isinstance(found, str):
            return found in (self.text, self.value)
        return (type(found) is type(self.value) and found == self.value) or (
            _is_number(found) and _is_number(self.value) and found == self.value
        )


_ORDER: Final[dict[str, Callable[[Any, Any], Any]]] = {
    ">": lambda found, value: found > value,
    "<": lambda found, value: found < value,
    ">=": lambda found, value: found >= value,
    "<=": lambda found, value: found <= value,
}


def read_condition(text: str) -> WhereCondition:
    """Read `input.user_id=42`. InputError says what is wrong."""
    parts = _CONDITION.fullmatch(text)
    if parts is None:
        raise InputError.of("--where", text, "is no condition: write 'input.user_id=42' (or != < <= > >= ~)")
    found = make_condition(parts[1], parts[2], parts[3])
    if not found.path or found.path[0] not in _ITEM_FIELDS:
        known = "input.NAME, result.NAME, headers.NAME, error, lane, worker, priority"
        raise InputError.of("--where", text, f"names no field of items: use {known}, ...")
    return found


def make_condition(path: str, operator: str, text: str) -> WhereCondition:
    """A condition of its parts: `input.lines[0].sku`, `=`, `17`."""
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except msgspec.DecodeError:
        value = text
    steps = tuple(name or int(index) for name, index in _STEP.findall(path))
    return WhereCondition(steps, operator, text, value)


def _at(value: Any, path: Sequence[str | int]) -> Any:
    for step in path:
        value = _inside(value, step)
    return value


def _inside(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).get(str(step), _MISSING)
    if isinstance(value, list) and isinstance(step, int):
        values = cast("Sequence[Any]", value)
        return values[step] if step < len(values) else _MISSING
    return _MISSING


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class FoundItems(NamedTuple):
    """What a walk found."""

    items: list[ItemState]
    looked_at: int
    last: ItemState | None
    """The last item that was looked at."""
    cursor: str | None
    """Where to go on. None: everything was looked at."""
    reached_at: float | None = None
    """How far the walk looked, if it ended before it had found enough."""


async def find_items(
    read: Callable[[int, str | None], Awaitable[Page]],
    holds: Callable[[ItemState], bool],
    *,
    limit: int,
    scan: int,
    portion: int,
    cursor: str | None,
    seconds: float = math.inf,
) -> FoundItems:
    """Return up to `limit` items that `holds` says yes to, among the next `scan` items.

    read: returns a page: its size at most, and the cursor where it begins.
    portion: items per page.
    seconds: time after which no further page is read.
    """
    items: list[ItemState] = []
    looked_at, last, until = 0, None, time.monotonic() + seconds
    while True:
        page = await read(min(portion, scan - looked_at), cursor)
        for place, item in enumerate(page.items, 1):
            looked_at, last = looked_at + 1, item
            if holds(item):
                items.append(item)
            if len(items) == limit and place < len(page.items):
                # The same page, cut here: its cursor goes on after this item.
                return FoundItems(items, looked_at, last, (await read(place, cursor)).cursor)
        cursor = page.cursor
        if cursor is None or len(items) >= limit:
            return FoundItems(items, looked_at, last, cursor)
        if looked_at >= scan or page.reached_at is not None or time.monotonic() > until:
            reached = page.reached_at or (None if last is None else last.queued_at)
            return FoundItems(items, looked_at, last, cursor, reached)


# ------------------------------------------------------------------------------------- an item in a list


def attempt_words(item: ItemState) -> str:
    """How many attempts have begun, and how many it may have."""
    if item.attempt == 0:
        return ""
    # Lost attempts do not count among those that may fail: with one of them there may be more.
    ends_well = item.status in ("running", "success", "cancelled", "dead") and item.reason != "lease_lost"
    counts = item.attempts is not None and item.attempt <= min(item.attempts, item.failures + ends_well)
    return f"{item.attempt}/{item.attempts}" if counts else str(item.attempt)


def matters_at(item: ItemState) -> float | None:
    """The instant that matters in its status: when it ended, began, is due, became ready or was queued. None
    for one that waits without a limit."""
    match item.status:
        case "success" | "dead" | "cancelled":
            return item.ended_at
        case "running":
            return item.started_at or item.claimed_at
        case "scheduled":
            return item.due_at if item.due_at < NEVER else None
        case "ready":
            return max(item.due_at, item.queued_at)
        case "blocked":
            return item.queued_at
