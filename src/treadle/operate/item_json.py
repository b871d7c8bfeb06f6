"""Items and groups as JSON, for programs: what `treadle show --json` prints.

It has the names of `ItemState`. Instants are ISO 8601 in UTC, always with microseconds. `input`, `result`
and `headers` are JSON values, with `***` in place of secrets: see `treadle.define.secret_values`. What this
code cannot read is shown as JSON if it is JSON, else as `{"$base64": ...}`, and `unreadable` says why. Where
the code of a type is unknown, its input and result are `***`: nothing says what in them is secret. `options`,
which only the engine reads, is left out.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from treadle.base.headers import headers_of
from treadle.base.timing import iso
from treadle.codec.hooks import to_json
from treadle.define.condition import GroupRef, shown_names
from treadle.define.secret_values import holds_secret
from treadle.define.signature import GROUP_VALUE
from treadle.engine.registry import Registry
from treadle.engine.wait.wait_result import (
    WITH_GROUP_VALUE,
    ValueSource,
    decode_group_value,
    value_source,
)
from treadle.errors import DecodeError, class_name, path_text
from treadle.item import (
    GROUP_TYPE,
    NEVER,
    Attempt,
    Chunk,
    GroupState,
    GroupSummary,
    ItemState,
    Recorded,
    StepRecord,
)
from treadle.item_facts import DeadMark
from treadle.logs.lines import error_text
from treadle.logs.masking import MASK
from treadle.records import AttemptLog

from .declared_steps import check_step, declared_steps
from .steps import progress_of, read_step, step_state

INSTANTS: Final = frozenset(("queued_at", "due_at", "claimed_at", "started_at", "ended_at", "deadline"))
LEFT_OUT: Final = frozenset(("options", "input", "result", "history", "waiting_for", "after", "headers"))
LARGEST_EXACT: Final = 2**53
"""Programs that read numbers of JSON as floats read larger integers wrongly."""


class Values:
    """What items and groups hold, as JSON values without secrets: `app.values`. reveal: with their secrets.
    See `treadle.operate.item_json`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def arguments(self, state: ItemState) -> Mapping[str, Any]:
        """The arguments of an item as its handler would get them, by name. `DecodeError` if the code here
        cannot read them, `UnknownWorkError` if it does not have the type."""
        registry = self._registry
        return registry.find(state.type).decode_input(state.input, registry.codec)

    def input(self, state: ItemState, *, reveal: bool = False) -> tuple[object, str]:
        """The arguments of an item as a JSON value, read as a worker with this code would, and why that could
        not be done, or "". Without the code of its type, all of it is secret."""
        registry = self._registry
        if state.type == GROUP_TYPE:  # it has none
            return {}, ""
        type = registry.get(state.type)
        declared = registry.declared_types(state.type)
        if not (declared or reveal):
            return MASK, _unknown(state.type)
        try:
            value = (
                registry.codec.decode(state.input)
                if type is None
                else type.decode_input(state.input, registry.codec)
            )
            return _shown(registry, to_json(value), declared, reveal=reveal), ""
        except Exception as error:  # noqa: BLE001  a codec or an upcast of the user may raise anything
            return _stored(registry, state.input, declared, reveal=reveal), _why(
                error, declared, reveal=reveal
            )

    def result(self, state: ItemState, *, reveal: bool = False) -> tuple[object, str]:
        """The same for its result."""
        group = state.type in WITH_GROUP_VALUE
        return _read_value(self._registry, state.type, state.result, reveal=reveal, group=group)

    def group_value(self, group: GroupState, *, reveal: bool = False) -> tuple[object, str]:
        """The same for the value of a group, best as the store has it: `app.group(id, decode=False)`."""
        return _read_value(self._registry, group.type, group.value, reveal=reveal, group=True)

    def headers(self, state: ItemState, *, reveal: bool = False) -> dict[str, str]:
        """The headers of an item, also as the store has it."""
        headers = dict(state.headers or headers_of(state.options))
        return headers if reveal else self._registry.mask.masked(headers)

    def recorded(
        self, state: ItemState, recorded: Recorded, now: float, *, reveal: bool = False
    ) -> dict[str, Any]:
        """What an item has recorded, for programs: its steps, its progress, how many signals of each
        name are unread, and how many chunks its stream has. `recorded`: as `Backend.steps` returns it."""
        progress = progress_of(recorded)
        return {
            "steps": [self._step(state, each, now, reveal) for each in recorded.kept],
            "progress": None
            if progress is None
            else {**msgspec.structs.asdict(progress), "at": iso(recorded.progress_at)},
            "mailbox": recorded.mailbox,
            "chunks": recorded.chunks,
        }

    def _step(self, state: ItemState, step: StepRecord, now: float, reveal: bool) -> dict[str, Any]:
        read = functools.partial(read_step, step, self._registry, state.type)
        value, problem = self._untyped(state, None if step.kind == "failure" else step.value, read, reveal)
        fields = msgspec.structs.asdict(step_state(step, value, now))
        fields |= {"at": iso(step.at), "until": iso(step.until)}
        return {**fields, "unreadable": problem} if problem else fields

    def check_steps(self, state: ItemState, recorded: Recorded) -> Iterator[tuple[str, str]]:
        """The steps that an item has recorded, each with why the code here cannot go on with it, or "". Known
        is what the source of its handler tells: see `treadle.operate.declared_steps`."""
        registry, type = self._registry, self._registry.get(state.type)
        handler = None if type is None else registry.handler(type)
        declared = [] if handler is None else declared_steps(handler.fn)
        for step in recorded.kept:
            try:
                problem = check_step(step, declared, registry, state.type)
            except Exception as error:  # noqa: BLE001  as above
                problem = why_not(error)
            yield step.name, problem

    def chunk(self, state: ItemState, chunk: Chunk, *, reveal: bool = False) -> dict[str, Any]:
        """A chunk of the stream of an item, for programs: as the store has it, or as a client has read it."""
        data, codec = chunk.value, self._registry.codec_of(state.type)
        value, problem = self._untyped(
            state, data, lambda: codec.decode(data) if isinstance(data, bytes) else data, reveal
        )
        fields = {"number": chunk.number, "at": iso(chunk.at), "value": value}
        return {**fields, "unreadable": problem} if problem else fields

    def _untyped(
        self, state: ItemState, data: object, read: Callable[[], object], reveal: bool
    ) -> tuple[object, str]:
        """A value of which only the code of the handler has the type. Secret are the names that tell so, and
        what the arguments and the result of the work type mark."""
        if data is None:
            return None, ""
        types = self._registry.declared_types(state.type)
        declared = [each for names in types for each in names.values()]
        if not (types or reveal):
            return MASK, _unknown(state.type)
        try:
            return _shown(self._registry, to_json(read()), declared, reveal=reveal), ""
        except Exception as error:  # noqa: BLE001  as above
            stored = data if isinstance(data, bytes) else b""
            return _stored(self._registry, stored, declared, reveal=reveal), _why(
                error, declared, reveal=reveal
            )

    def item(self, state: ItemState, *, history: bool = False, reveal: bool = False) -> dict[str, Any]:
        """An item for programs. `history` and `waiting_for` are there only if asked for: a list has
        neither."""
        fields: dict[str, Any] = {}
        for name in state.__struct_fields__:
            if name not in LEFT_OUT and (name != "store" or state.store):
                value = getattr(state, name)
                fields[name] = iso(value) if name in INSTANTS else value
        if state.due_at >= NEVER:
            fields["due_at"] = None
        fields["after"] = names_json(state.after)
        fields["headers"] = self.headers(state, reveal=reveal)
        fields["input"], bad_input = self.input(state, reveal=reveal)
        fields["result"], bad_result = self.result(state, reveal=reveal)
        if bad_input or bad_result:
            fields["unreadable"] = "; ".join(
                f"{what}: {why}" for what, why in (("input", bad_input), ("result", bad_result)) if why
            )
        if history:
            fields["waiting_for"] = names_json(state.waiting_for)
            fields["history"] = [attempt_json(each) for each in state.history]
        return fields

    def group(self, group: GroupState, *, reveal: bool = False) -> dict[str, Any]:
        """A group for programs: the names of `GroupState`."""
        value, problem = self.group_value(group, reveal=reveal)
        fields: dict[str, Any] = {
            "id": group.id,
            "tenant": group.tenant,
            "type": group.type,
            "open": group.open,
            "failed": group.failed,
            "ended_at": iso(group.ended_at),
            "contributed": group.contributed,
            "final": group.final,
            "version": group.version,
            "value": value,
            "deaths": [ref_json(each) for each in group.deaths],
            "cancelled": None if group.cancelled is None else ref_json(group.cancelled),
            "outer": group.outer,
        }
        return {**fields, "unreadable": f"value: {problem}"} if problem else fields


def _read_value(
    registry: Registry, type: str, data: object, *, reveal: bool, group: bool
) -> tuple[object, str]:
    if data is None:
        return None, ""
    source = ValueSource(type, True, b"")
    if group:  # decoded, it names no type
        source = value_source(type, data) if isinstance(data, bytes) else ValueSource("", True, b"")
    types = registry.declared_types(source.type)
    declared = [each["return" if source.is_result else GROUP_VALUE] for each in types]
    if not (declared or reveal):
        return MASK, _unknown(source.type)
    if not isinstance(data, bytes):  # a client has decoded it
        return _shown(registry, to_json(data), [*declared, data.__class__], reveal=reveal), ""
    try:
        value = decode_group_value(registry, type, data) if group else registry.read_result(type, data)
        return _shown(registry, to_json(value), declared, reveal=reveal), ""
    except Exception as error:  # noqa: BLE001  as above
        return _stored(registry, data, declared, reveal=reveal), _why(error, declared, reveal=reveal)


def _unknown(type: str) -> str:
    """Why a value is masked as a whole."""
    gone = f"the code of {type!r} is not here" if type else "the type of the member that gave it is not known"
    return f"{gone}, so all of it is masked"


def _shown(registry: Registry, value: object, declared: Sequence[Any], *, reveal: bool) -> object:
    return value if reveal else registry.mask.masked(value, *declared)


def _stored(registry: Registry, data: bytes, declared: Sequence[Any], *, reveal: bool) -> object:
    """A value that this code cannot read, as it is stored. If its type has secrets: only those arguments that
    have none. What has another name today may be one."""
    hides = not reveal and holds_secret(*declared)
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return MASK if hides else {"$base64": base64.b64encode(data).decode()}
    if not hides:
        return _shown(registry, value, declared, reveal=reveal)
    if not isinstance(value, dict) or not all(isinstance(each, Mapping) for each in declared):
        return MASK
    fields = cast("dict[str, object]", value)
    harmless = {
        name for name in fields if all(name in each and not holds_secret(each[name]) for each in declared)
    }
    return registry.mask.masked({name: each if name in harmless else MASK for name, each in fields.items()})


def _why(error: Exception, declared: Sequence[Any], *, reveal: bool) -> str:
    """Why a value cannot be read. An error may quote what was read."""
    if not reveal and holds_secret(*declared):
        path = path_text(error.path if isinstance(error, DecodeError) else "$")
        return f"{class_name(error)} at {path}: what it says is not shown, because the type has secrets"
    return why_not(error)


def log_json(log: AttemptLog) -> dict[str, Any]:
    """What an attempt has logged, for programs."""
    lines = [{**msgspec.structs.asdict(line), "at": iso(line.at)} for line in log.lines]
    return {"attempt": log.attempt, "left_out": log.left_out, "lines": lines}


def exact_json(value: Any) -> Any:
    """A JSON value with large integers as texts: not all programs read them exactly."""
    if isinstance(value, dict):
        return {name: exact_json(each) for name, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [exact_json(each) for each in cast("Sequence[Any]", value)]
    if isinstance(value, int) and abs(value) > LARGEST_EXACT:
        return str(value)
    return value


def why_not(error: Exception) -> str:
    """Why a value cannot be read: what a codec or an upcast of the user, or treadle's own, has raised."""
    return str(error) if isinstance(error, DecodeError) else error_text(error)


# -- JSON ----------------------------------------------------------------------------------------------


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    return {**msgspec.structs.asdict(attempt), "at": iso(attempt.at)}


def names_json(names: Iterable[str]) -> list[str]:
    """The names in `after`. A whole group is `group:ID`."""
    return [
        f"group:{name}" if isinstance(name, GroupRef) else str(name) for name in shown_names(tuple(names))
    ]


def ref_json(item: ItemState) -> dict[str, Any]:
    """Which item, and how it stands: for lists inside other objects."""
    return {
        "id": item.id,
        "tenant": item.tenant,
        "type": item.type,
        "status": item.status,
        "reason": item.reason,
        "error": item.error,
    }


def group_summary_json(group: GroupSummary) -> dict[str, Any]:
    """A group, or a workflow, for programs: the names of `GroupSummary`, as the state of work by HTTP has
    them."""
    return {
        "id": group.id,
        "tenant": group.tenant,
        "type": group.type,
        "outcome": group.outcome,
        "done": group.done,
        "total": group.total,
        "open": group.open,
        "failed": group.failed,
        "capped": group.capped,
        "queued_at": iso(group.queued_at),
        "ended_at": iso(group.ended_at),
        "death": None if group.death is None else ref_json(group.death),
        **({"store": group.store} if group.store else {}),
    }


def member_json(item: ItemState) -> dict[str, Any]:
    """A member of a group or a workflow, with what it comes from and what it waits for."""
    return {
        **ref_json(item),
        "group_id": item.group_id,
        "parent": item.parent,
        "after": names_json(item.after),
    }


def mark_json(mark: DeadMark) -> dict[str, Any]:
    """A mark for programs: the names of `DeadMark`."""
    return {
        "mark": mark.mark,
        "type": mark.type,
        "error_type": mark.error_type,
        "error": mark.error,
        "count": mark.count,
        "capped": mark.capped,
        "oldest_queued_at": iso(mark.oldest_queued_at),
        "last_at": iso(mark.last_at),
        "sample": mark.sample,
        "tenant": mark.tenant,
        "releases": [
            {
                "release": each.release,
                "count": each.count,
                "first_at": iso(each.first_at),
                "began_at": iso(each.began_at),
            }
            for each in mark.releases
        ],
        **({"stores": mark.stores} if mark.stores else {}),
    }
