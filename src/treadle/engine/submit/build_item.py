"""Build items: turn a Work and its options into an Item, the form in which a store takes new work.

The engine needs the retry policy, the timeout and the compensation again when the item is claimed. They are
stored as `ItemOptions`, but only where they differ from those of the type: a worker has the options of the
type in its code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec.structs import astuple
from typing_extensions import TypeIs

from treadle.backend import Backend
from treadle.base.timing import MAX_DURATION
from treadle.codec import check_size, unreadable
from treadle.codec.tags import MARK
from treadle.define.condition import AtLeast, GroupRef, SubmittedGroup, need, stored_name
from treadle.define.dependency import DEPENDENCY
from treadle.define.option_checks import Compensation, SubmittedId
from treadle.define.work import Work, failure_parameter, is_work, undo_parameter
from treadle.define.work_type import arguments_of, computed_options
from treadle.engine.registry import AnyType, Registry
from treadle.engine.settings import Settings
from treadle.errors import DecodeError, InputError, PayloadTooLarge, UnsupportedError
from treadle.item import DEFAULT_QUEUE, Counting, Item, KeyPolicy, Lease, StepRecord
from treadle.options import Input, Resolved, resolve
from treadle.retry import Retry

Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=MAX_DURATION)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class StoredRetry(msgspec.Struct, frozen=True):
    """The retry policy that is stored with an item, without `attempts` and without code."""

    base: Seconds
    factor: Seconds
    max: Seconds
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)]
    max_losses: _Count | None
    max_deferrals: _Count | None = None

    @classmethod
    def of(cls, retry: Retry) -> StoredRetry:
        return cls(retry.base, retry.factor, retry.max, retry.jitter, retry.max_losses, retry.max_deferrals)

    def over(self, base: Retry) -> Retry:
        """The policy of the item. base: that of its type."""
        return Retry(
            base.attempts,
            self.base,
            self.factor,
            self.max,
            self.jitter,
            base.backoff,
            self.max_losses,
            self.max_deferrals,
        )


class LineOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of a compensation that decide where and when it runs."""

    queue: str = DEFAULT_QUEUE
    lane: str = ""
    priority: int = 0
    attempts: int | None = 3
    delay: float = 0.0
    run_at: float | None = None
    expires_in: float | None = None
    deadline: float | None = None
    key: str | None = None
    key_scope: Literal["open", "any"] | float = "open"
    workflow: str | None = None
    workflow_type: str | None = None


class Compensating(msgspec.Struct, frozen=True, omit_defaults=True):
    """The compensation to submit if the item dies."""

    type: str
    input: bytes | None = None
    """None: the handler gets the `Failure`, as its only argument, `parameter`."""
    parameter: str = ""
    unstarted: bool = False
    """Submit it also if no attempt of the item began."""
    line: LineOptions | msgspec.UnsetType = msgspec.UNSET
    """The options of the compensation itself, for a worker that does not know its type."""


class StoredUndo(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a step is undone."""

    wanted: Compensating
    """Without an input: the handler gets an `Undo`."""
    value: bytes = b""
    """The value of the step, for the `Undo`, by the codec of the app: who settles the death may not know the
    type."""


class ItemOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options that an item sets itself. Unset: those of its type."""

    retry: StoredRetry | msgspec.UnsetType = msgspec.UNSET
    timeout: Seconds | msgspec.UnsetType | None = msgspec.UNSET
    on_dead: Compensating | msgspec.UnsetType | None = msgspec.UNSET
    compensates: bool = False
    """It adds nothing to the group's value, nor does what it queues: it is the compensation of a dead item,
    was queued by one, or closes a group that other works follow."""
    headers: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """What the item carries for its users. Unset: none, or those of its parent. See
    `treadle.base.headers`."""
    trace: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Where the item came from, in the words of `treadle.handler.telemetry`."""


LeaseTo: TypeAlias = Callable[[str, str, str], str | None]
"""For `skip_queue`: gives the worker that starts an item of a type, a queue and a tenant at once."""
NO_OPTIONS = ItemOptions()
NO_NEED: tuple[int, Counting] = (0, "success")
_decoder = msgspec.json.Decoder(ItemOptions)
_undos = msgspec.json.Decoder(StoredUndo)
_encoder = msgspec.json.Encoder()


def read_undo(step: StepRecord) -> StoredUndo:
    """How a step is undone that has an undo."""
    return _undos.decode(step.undo or b"")


def read_stored(data: bytes) -> ItemOptions:
    """The stored options of an item. `DecodeError` if they cannot be read."""
    if not data:
        return NO_OPTIONS
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError(f"its options cannot be read: {unreadable(error).problem}") from error


def encode_stored(options: ItemOptions) -> bytes:
    """The options of an item as they are stored. Nothing if there are none."""
    return b"" if options == NO_OPTIONS else _encoder.encode(options)


class ItemBuilder:
    """on_first: called with each type once, before the first item of it is built."""

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        backend: Backend,
        on_first: Callable[[AnyType], None],
    ) -> None:
        self._registry = registry
        self._on_first = on_first
        self._backend = backend
        self._settings = settings
        self._bases: dict[AnyType, Resolved] = {}
        self._usual: dict[AnyType, tuple[Any, ...]] = {}
        """The `usual_fields` of its items, by type, for a submission without options."""

    def base(self, type: AnyType) -> Resolved:
        """The options of every Work of the type, unless it sets its own."""
        base = self._bases.get(type)
        if base is None:
            self._on_first(type)
            base = self._bases[type] = resolve(
                {
                    "retry": self._settings.retry,
                    "on_dead_unstarted": self._settings.on_dead_unstarted,
                },
                type.options,
            )
        return base

    def item(
        self,
        work: Work[Any, Any],
        options: Mapping[str, Any],
        *,
        tenant: str,
        parent: Lease | None = None,
        lease_to: LeaseTo | None = None,
    ) -> Item:
        """Build the item of a Work. options: checked already. lease_to: gives a worker for `skip_queue`."""
        type = self._registry.type_of(work)
        if options or (parent is not None and (parent.workflow or parent.workflow_type)):
            return self._build(work, type, options, tenant, parent, lease_to)
        usual = self._usual.get(type)
        if usual is not None:  # two thirds of the time that _build takes
            return Item(work.id, work.type, self._encode_input(type, work.input), tenant, *usual)
        item = self._build(work, type, options, tenant, parent, lease_to)
        if not self._varies(type, options):
            self._usual[type] = usual_fields(item)
        return item

    def items(
        self,
        works: Sequence[Work[Any, Any]],
        options: Mapping[str, Any],
        *,
        tenant: str,
        lease_to: LeaseTo | None = None,
    ) -> tuple[tuple[Item, ...], bool]:
        """Build the items of works with the same options. And: are they alike? See `Submission`."""
        if works and (alike := self._items_alike(works, options, tenant)) is not None:
            return alike, True
        return tuple([self.item(work, options, tenant=tenant, lease_to=lease_to) for work in works]), False

    def _items_alike(
        self, works: Sequence[Work[Any, Any]], options: Mapping[str, Any], tenant: str
    ) -> tuple[Item, ...] | None:
        """The items of works of one type. None if there are other types, or if items of the type vary."""
        first = works[0]
        type = self._registry.type_of(first)
        if self._varies(type, options):
            return None
        if options:
            fields = usual_fields(self._build(first, type, options, tenant, None, None))
        else:
            self.item(first, options, tenant=tenant)
            fields = self._usual[type]
        return build_alike(works, type, self._settings, tenant, fields)

    def check_nested(self, what: str) -> None:
        """Raise UnsupportedError if the backend has no nested groups. `what` needs them."""
        if "nested" not in self._backend.capabilities:
            advice = f"{what} needs it; use ctx.queue and ids in after=, or another backend"
            raise UnsupportedError("nested", type(self._backend).__name__, "groups in groups", advice=advice)

    def _varies(self, type: AnyType, options: Mapping[str, Any]) -> bool:
        """Whether items of this type, with these options, differ in more than id and input."""
        if type is DEPENDENCY or type.options.get("options") is not None:
            return True
        resolved = resolve({}, options, base=self.base(type)) if options else self.base(type)
        return resolved.skip_queue or resolved.unique

    def check_total(self, items: Sequence[Item], what: str, *, alike: bool = False) -> None:
        """Raise PayloadTooLarge if these items are too large to be stored in one step. alike: their options
        are the same."""
        size = total_bytes(items, alike=alike)
        if size > self._settings.max_submission:
            advice = "submit them in portions, or raise max_submission"
            raise PayloadTooLarge(what, size, self._settings.max_submission, advice)

    def _build(
        self,
        work: Work[Any, Any],
        type: AnyType,
        options: Mapping[str, Any],
        tenant: str,
        parent: Lease | None,
        lease_to: LeaseTo | None,
    ) -> Item:
        base = self.base(type)
        resolved = resolve(computed_options(type, work.input), options, base=base)
        required, counting = (
            need(resolved.when, len(resolved.after)) if resolved.after else _no_need(resolved)
        )
        worker = None
        if lease_to is not None and resolved.skip_queue and _starts_now(resolved):
            worker = lease_to(work.type, resolved.queue, tenant)
        after, must_exist = self._split_after(resolved.after) if resolved.after else ((), ())
        key = self._unique_key(type, work) if resolved.unique else resolved.key
        if resolved.key_policy != "existing":
            self._check_policy(resolved, options, key)
        elif options.get("debounce_max") is not None:
            raise _no_debounce(options)
        # Positional, in the order of the fields: keyword arguments take four times as long.
        return Item(
            work.id,
            work.type,
            self._encode_dependency(work, options, tenant)
            if type is DEPENDENCY
            else self._encode_input(type, work.input),
            tenant,
            resolved.queue,
            resolved.lane,
            resolved.priority,
            resolved.retry.attempts,
            resolved.delay,
            resolved.run_at,
            resolved.expires_in,
            resolved.deadline,
            None,
            resolved.workflow or (parent.workflow if parent else None),
            resolved.workflow_type or (parent.workflow_type if parent else None),
            after,
            required,
            counting,
            key,
            resolved.key_scope,
            b"" if resolved is base and base.on_dead is None else self._encode_options(resolved, base),
            type.options.get("keep", self._settings.keep),
            self._settings.keep_dead,
            worker,
            must_exist,
            None,
            False,
            True,
            resolved.key_policy,
            resolved.debounce_max,
        )

    def _split_after(self, after: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names to wait for, and those of them that were submitted before."""
        if set(map(type, after)) == {str}:
            return after, ()
        if any(isinstance(id, GroupRef) for id in after):
            self.check_nested("group() in after=")
        submitted = (id for id in after if isinstance(id, SubmittedId | SubmittedGroup))
        return tuple(map(stored_name, after)), tuple(map(stored_name, submitted))

    def _unique_key(self, type: AnyType, work: Work[Any, Any]) -> str:
        if type is DEPENDENCY:
            raise InputError(
                "a dependency has no arguments: give it a key=, not unique=", parameters=("unique",)
            )
        return unique_key(type, work.input)

    def _check_policy(self, resolved: Resolved, options: Mapping[str, Any], key: str | None) -> None:
        """Refuse a key policy that the store does not have, or that has no effect."""
        if key is None and options.get("key_policy") is not None:
            problem = "needs key= or unique=True: the item has no key"
            raise InputError.of("key_policy", resolved.key_policy, problem)
        if options.get("debounce_max") is not None and resolved.key_policy != "debounce":
            raise _no_debounce(options)
        if key is not None and "updates" not in self._backend.capabilities:
            name = self._backend.__class__.__name__
            raise UnsupportedError("updates", name, f"key_policy={resolved.key_policy!r}")

    def _encode_input(self, type: AnyType, input: dict[str, Any]) -> bytes:
        settings = self._settings
        data = type.encode_input(input, settings.codec)
        if data.__class__ is not bytes or len(data) > settings.max_payload:
            check_size(data, settings.max_payload, "the input of", type.name)
        return data

    def _encode_dependency(
        self, dependency: Work[Any, Any], options: Mapping[str, Any], tenant: str
    ) -> bytes:
        """Encode the works of a `dependency` as items: its worker may not know their types."""
        on, when = dependency.input["on"], dependency.input["when"]
        if options.get("after", on) != on:
            raise InputError("a dependency waits for `on` alone: it takes no after=", parameters=("after",))
        # Not those of a handle: the works are submitted much later, when `on` may be gone.
        names = tuple(GroupRef(id) if isinstance(id, GroupRef) else str(id) for id in on)
        blocked = {"after": names, "when": when} if on else {}
        items = tuple(self.item(work, blocked, tenant=tenant) for work in dependency.input["queue"])
        data = _encoder.encode(items)
        check_size(data, self._settings.max_payload, "a dependency, with its works,")
        return data

    def _encode_options(self, resolved: Resolved, base: Resolved) -> bytes:
        retry = resolved.retry
        stored = ItemOptions(
            retry=msgspec.UNSET if retry is base.retry else StoredRetry.of(retry),
            timeout=msgspec.UNSET if resolved.timeout == base.timeout else resolved.timeout,
            # Always stored if there is one: the worker that settles the item may not have its type.
            on_dead=self.compensating(resolved, base.on_dead),
            headers=msgspec.UNSET if resolved.headers is None else dict(resolved.headers),
        )
        return encode_stored(stored)

    def compensating(
        self, resolved: Resolved, default: Compensation | None
    ) -> Compensating | msgspec.UnsetType | None:
        """What is stored about the compensation of an item with these options."""
        wanted = resolved.on_dead
        if wanted is None:
            return msgspec.UNSET if default is None else None
        return self._compensating(wanted, resolved.on_dead_unstarted)

    def undo(self, undo: AnyType, value: Any, data: bytes) -> bytes:
        """What is stored about the undo of a step. data: the value, by the codec of the app."""
        parameter, takes_undo = undo_parameter(undo)
        if takes_undo:
            return _encoder.encode(StoredUndo(self._compensating(undo, False), data))
        return _encoder.encode(StoredUndo(self._compensating(undo.from_input({parameter: value}), False)))

    def _compensating(self, wanted: Any, unstarted: bool) -> Compensating:
        if is_work(wanted):
            type, parameter = self._registry.type_of(wanted), ""
            input = self._encode_input(type, wanted.input)
            line = line_options(resolve(computed_options(type, wanted.input), base=self.base(type)))
        else:
            type, input = cast("AnyType", wanted), None
            parameter, line = failure_parameter(type), line_options(self.base(type))
        return Compensating(type.name, input, parameter, unstarted, line)


def line_options(resolved: Resolved) -> LineOptions | msgspec.UnsetType:
    line = LineOptions(
        resolved.queue,
        resolved.lane,
        resolved.priority,
        resolved.retry.attempts,
        resolved.delay,
        resolved.run_at,
        resolved.expires_in,
        resolved.deadline,
        resolved.key,
        resolved.key_scope,
        resolved.workflow,
        resolved.workflow_type,
    )
    return msgspec.UNSET if line == LineOptions() else line


SILENT = _encoder.encode(ItemOptions(compensates=True))
"""The stored options of an item that has none of its own, and adds nothing to the value of its group."""


def not_contributing(item: Item) -> Item:
    """The same item, which adds nothing to the value of its group. Nor does what it queues. It changes no
    earlier item with its key: that one would take its options over, and may be one that adds to a value."""
    options = SILENT
    if item.options:
        options = _encoder.encode(msgspec.structs.replace(read_stored(item.options), compensates=True))
    policy: KeyPolicy = "error" if item.key_policy == "error" else "existing"
    return msgspec.structs.replace(
        item, contributes=False, options=options, key_policy=policy, debounce_max=None
    )


def retry_of(stored: ItemOptions, base: Retry) -> Retry:
    """The retry policy of an item: its own, or that of its type."""
    return base if stored.retry is msgspec.UNSET else stored.retry.over(base)


def timeout_of(stored: ItemOptions, base: float | None) -> float | None:
    return base if stored.timeout is msgspec.UNSET else stored.timeout


def _no_need(resolved: Resolved) -> tuple[int, Counting]:
    """The condition of an item that waits for no other. A number of ends without items is a mistake."""
    if isinstance(resolved.when, AtLeast):
        raise InputError.of("when", resolved.when, "needs after=: there is nothing to wait for")
    return NO_NEED


def _no_debounce(options: Mapping[str, Any]) -> InputError:
    return InputError.of("debounce_max", options["debounce_max"], "needs key_policy='debounce'")


def _starts_now(resolved: Resolved) -> bool:
    return not (resolved.delay or resolved.run_at or resolved.after)


_DEFAULTS: Final = astuple(Item("", "", b""))[4:]
_input: Final = attrgetter("input")
_options: Final = attrgetter("options")


def usual_fields(item: Item) -> tuple[Any, ...]:
    """The fields of an item after its tenant, without those at the end that have their defaults: with them,
    making an item takes a third longer."""
    fields = astuple(item)[4:]
    count = len(fields)
    while count and fields[count - 1] == _DEFAULTS[count - 1]:
        count -= 1
    return fields[:count]


def build_alike(
    works: Sequence[Work[Any, Any]], type: AnyType, settings: Settings, tenant: str, fields: tuple[Any, ...]
) -> tuple[Item, ...] | None:
    """Build the items of works of this type that differ only in their ids and inputs, as most do that are
    submitted together. All get these `usual_fields`. None if a work has another type."""
    name, definition = works[0].type, works[0].definition
    encode, codec = arguments_of(type).encode, type.options.get("codec", settings.codec)
    limit = settings.max_payload
    items: list[Item] = []
    for id, called, input, defined in map(astuple, works):  # attributes of a Work take three times as long
        if defined is not definition or called != name:
            return None
        data = encode(input, codec)
        if data.__class__ is not bytes or len(data) > limit:
            check_size(data, limit, "the input of", name)
        items.append(Item(id, name, data, tenant, *fields))
    return tuple(items)


def total_bytes(items: Sequence[Item], *, alike: bool) -> int:
    """The bytes of all inputs and options. alike: the options are the same."""
    inputs = sum(map(len, map(_input, items)))
    return inputs + (len(items) * len(items[0].options) if alike else sum(map(len, map(_options, items))))


_sorted_encoder = msgspec.json.Encoder(order="sorted")


def unique_key(type: AnyType, input: Input) -> str:
    """The key of a `unique` item: a hash of its type and arguments, the same in every process. EncodeError if
    they cannot be written.

    The default codec writes the arguments: one that encrypts would never write the same bytes twice. Dict
    keys and the members of sets are put in order first.
    """
    tree = msgspec.json.decode(arguments_of(type).encode(input))
    written = _sorted_encoder.encode([type.name, _without_order(input, tree)])
    return f"unique:{hashlib.sha256(written).hexdigest()[:40]}"


def _without_order(value: object, tree: object) -> object:
    """The tree that a value was written as, with the members of sets in order."""
    if isinstance(value, set | frozenset):
        return _sorted_lists(tree)
    if (
        _is_dict(value)
        and _is_dict(tree)
        and tree.get(MARK) == "dict"
        and _is_list(pairs := tree.get("value"))
    ):
        # A dict whose keys are no text is written as a list of pairs.
        parts = map(_without_order, value.items(), pairs)
        return {**tree, "value": sorted(parts, key=_sorted_encoder.encode)}
    if _is_dict(tree):
        return {name: _without_order(_part(value, name), part) for name, part in tree.items()}
    if _is_list(tree) and _is_sequence(value) and len(value) == len(tree):
        return list(map(_without_order, value, tree))
    return tree


def _part(value: object, name: str) -> object:
    return value.get(name) if _is_dict(value) else getattr(value, name, None)


def _sorted_lists(tree: object) -> object:
    """The tree of a set: its members may be sets too."""
    if _is_list(tree):
        return sorted(map(_sorted_lists, tree), key=_sorted_encoder.encode)
    if _is_dict(tree):
        return {name: _sorted_lists(part) for name, part in tree.items()}
    return tree


def _is_dict(value: object) -> TypeIs[dict[str, object]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeIs[list[object]]:
    return isinstance(value, list)


def _is_sequence(value: object) -> TypeIs[list[object] | tuple[object, ...]]:
    return isinstance(value, list | tuple)
