"""Calls are bound as Python binds them, validated by the annotations, encoded and decoded."""

from __future__ import annotations

import functools
import inspect
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum, Flag
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import Unpack

from tests.support.tiers import examples
from treadle.codec import Arguments, Parameter, Shape
from treadle.define.signature import resolve_annotation
from treadle.errors import DecodeError, DefinitionError, EncodeError, InputError

if TYPE_CHECKING:
    from nowhere import Hidden

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class Point:
    x: int
    y: float = 0.0


@dataclass
class Line:
    start: Point
    end: Point


class Options(TypedDict, total=False):
    size: int
    colour: str


def add(a: int, b: int) -> int:
    return a + b


def greet(name: str, greeting: str = "hello", *, times: int = 1) -> str:
    return f"{greeting} {name}" * times


def strict(a: int, b: int = 2, /, c: int = 3) -> tuple[int, ...]:
    return (a, b, c)


def gather(first: int, *rest: int, scale: float = 1.0, **named: str) -> tuple[Any, ...]:
    return (first, rest, scale, named)


def untyped(a, b=None):  # type: ignore[no-untyped-def]
    return (a, b)


def mixed(a: int, meta: dict[str, Any], when: datetime | None = None) -> tuple[Any, ...]:
    return (a, meta, when)


def draw(line: Line, label: str | UUID = "") -> tuple[Any, ...]:
    return (line, label)


def unpacked(**options: Unpack[Options]) -> dict[str, Any]:
    return dict(options)


def nothing() -> None: ...


def arguments_of(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    skip_first: bool = False,
    scope: dict[str, Any] | None = None,
) -> Arguments:
    found = list(inspect.signature(fn).parameters.values())[skip_first:]
    return Arguments(
        name or fn.__qualname__,
        [
            Parameter(each.name, resolve_annotation(fn, each.name, scope), each.default, each.kind)
            for each in found
        ],
    )


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (add, (1, 2), {}),
    (add, (1,), {"b": 2}),
    (add, (), {"b": 2, "a": 1}),
    (add, (2**64, -(10**30)), {}),
    (greet, ("a",), {}),
    (greet, ("a", "b"), {"times": 3}),
    (greet, (), {"name": "$treadle", "times": 2}),
    (strict, (1,), {}),
    (strict, (1, 5), {"c": 4}),
    (strict, (1,), {"c": 4}),
    (strict, (1, 5, 6), {}),
    (gather, (1,), {}),
    (gather, (1, 2, 3), {"scale": 2.5, "other": "x"}),
    (gather, (1,), {"rest": "a name of its own", "named": "and this"}),
    (gather, (), {"first": 1, "$treadle": "odd name"}),
    (untyped, (1, "a"), {}),
    (untyped, ((1, {2}),), {"b": {"when": MOMENT}}),
    (mixed, (1, {"t": MOMENT, "s": {1}}), {}),
    (mixed, (1, {}, MOMENT), {}),
    (draw, (Line(Point(1), Point(2, 3.5)),), {}),
    (draw, (Line(Point(1), Point(2)), UUID(int=3)), {}),
    (draw, (Line(Point(1, math.inf), Point(2)),), {"label": "x"}),
    (unpacked, (), {"size": 1}),
    (nothing, (), {}),
]


@pytest.mark.parametrize(("fn", "args", "kwargs"), CALLS)
def test_a_decoded_call_equals_the_call(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    arguments = arguments_of(fn)
    bound = arguments.bind(args, kwargs)
    back = arguments.decode(arguments.encode(bound))
    assert back == bound
    stored_args, stored_kwargs = arguments.call(back)
    assert fn(*stored_args, **stored_kwargs) == fn(*args, **kwargs)


@pytest.mark.parametrize(("fn", "args", "kwargs"), CALLS)
def test_binding_gives_the_same_arguments_as_python(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert arguments_of(fn).bind(args, kwargs) == inspect.signature(fn).bind(*args, **kwargs).arguments


@pytest.mark.parametrize(("fn", "args", "kwargs"), CALLS)
def test_bound_arguments_can_be_bound_again_by_name(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    arguments = arguments_of(fn)
    bound = arguments.bind(args, kwargs)
    assert arguments.bind_names(bound) == bound


WRONG_CALLS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], tuple[str, ...], str]] = [
    (add, (1,), {}, ("b",), "missing parameter 'b'"),
    (add, (), {}, ("a", "b"), "missing parameters 'a', 'b'"),
    (add, (1, 2, 3), {}, (), "takes 2 positional arguments, 3 were given"),
    (add, (1,), {"a": 1, "b": 2}, ("a",), "'a' is given twice"),
    (add, (1, 2), {"c": 3}, ("c",), "unknown parameter 'c'"),
    (greet, ("a",), {"time": 3}, ("time",), "unknown parameter 'time': did you mean 'times'?"),
    (greet, ("a", "b", 3), {}, (), "takes 2 positional"),
    (strict, (), {"a": 1}, ("a",), "unknown parameter 'a'"),
    (nothing, (1,), {}, (), "takes 0 positional"),
    (add, (1, "2"), {}, ("b",), "parameter 'b': Expected `int`, got `str`"),
    (add, (1, 2.0), {}, ("b",), "Expected `int`, got `float`"),
    (add, (True, 2), {}, ("a",), "Expected `int`, got `bool`"),
    (gather, (1, 2, "x"), {}, ("rest",), "'rest': Expected `int`, got `str` .at rest.1.."),
    (gather, (1,), {"other": 1}, ("named",), "'named': Expected `str`"),
    (mixed, (1, {1: 2}), {}, ("meta",), "Expected `str`"),
    (mixed, (1, {}, "2026-03-01T00:00:00Z"), {}, ("when",), "datetime"),
    (
        draw,
        (Line(Point("x"), Point(1)),),
        {},
        ("line",),
        r"'line': Expected `int`, got `str` .at line.start.x",
    ),
    (draw, (Line(Point(1), Point(1)), 5), {}, ("label",), "str | UUID"),
    (unpacked, (), {"size": "big"}, ("options",), "Expected `int`"),
]


@pytest.mark.parametrize(("fn", "args", "kwargs", "parameters", "message"), WRONG_CALLS)
def test_a_wrong_call_is_refused_by_parameter(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    parameters: tuple[str, ...],
    message: str,
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        arguments_of(fn, name="my.work").bind(args, kwargs)
    assert caught.value.parameters == parameters
    assert caught.value.work_type == "my.work"
    assert str(caught.value).startswith("my.work: ")


def test_arguments_by_name_are_refused_by_name_too() -> None:
    arguments = arguments_of(add)
    with pytest.raises(InputError, match="unknown parameter 'c'"):
        arguments.bind_names({"a": 1, "b": 2, "c": 3})
    with pytest.raises(InputError, match="missing parameter 'b'"):
        arguments.bind_names({"a": 1})
    with pytest.raises(InputError, match="Expected `int`"):
        arguments.bind_names({"a": 1, "b": "2"})


def test_a_gap_before_a_positional_argument_is_filled_with_the_default() -> None:
    def fn(a: int, b: int = 20, c: int = 30, /) -> tuple[int, ...]:
        return (a, b, c)

    arguments = arguments_of(fn)
    args, kwargs = arguments.call(arguments.bind_names({"a": 1, "c": 3}))
    assert fn(*args, **kwargs) == (1, 20, 3)


def test_defaults_are_not_stored() -> None:
    arguments = arguments_of(greet)
    assert arguments.bind(("a",), {}) == {"name": "a"}
    assert arguments.encode({"name": "a"}) == b'{"name":"a"}'


def test_a_default_need_not_be_of_the_declared_type() -> None:
    def fn(a: int = object()) -> Any:  # type: ignore[assignment]
        return a

    arguments = arguments_of(fn)
    args, kwargs = arguments.call(arguments.decode(arguments.encode(arguments.bind((), {}))))
    assert fn(*args, **kwargs) is fn()


def test_the_context_is_not_part_of_a_call() -> None:
    def handler(ctx: Hidden, a: int) -> int:
        return a

    arguments = arguments_of(handler, skip_first=True)
    assert arguments.bind((1,), {}) == {"a": 1}
    assert [each.name for each in arguments.parameters] == ["a"]


def test_parameters_may_be_written_out() -> None:
    arguments = Arguments("embed", [Parameter("text", str)])
    assert arguments.bind(("hello",), {}) == {"text": "hello"}
    with pytest.raises(InputError, match="embed: parameter 'text'"):
        arguments.bind((1,), {})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"[1,2]",
        b"{}",
        b'{"a":1}',
        b'{"a":1,"b":2,"c":3}',
        b'{"a":1,"b":"2"}',
        b'{"a":1,"b":null}',
        b'{"a":1,"b":{"$treadle":"set","value":[]}}',
        b'{"$treadle":"dict","value":[["a",1]]}',
        b"\xff",
    ],
)
def test_bytes_of_another_call_raise_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        arguments_of(add).decode(data)


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_but_decode_error(data: bytes) -> None:
    for fn in (add, mixed, untyped, gather):
        try:
            arguments_of(fn).decode(data)
        except DecodeError as error:
            str(error).encode()


@pytest.mark.parametrize(
    ("fn", "args", "path"),
    [
        (mixed, (1, {"k": [object()]}), "$.meta.k[0]"),
        (untyped, (1, Point(1)), "$.b"),
        (greet, ("\ud800",), "$.name"),
    ],
)
def test_an_argument_that_cannot_be_encoded_is_refused_by_path(
    fn: Callable[..., Any], args: tuple[Any, ...], path: str
) -> None:
    arguments = arguments_of(fn)
    with pytest.raises(EncodeError) as caught:
        arguments.encode(arguments.bind(args, {}))
    assert caught.value.path == path


def test_arguments_that_were_not_validated_are_refused_at_encode() -> None:
    with pytest.raises(EncodeError, match=r"Expected one of `str \| UUID`") as caught:
        arguments_of(draw).encode({"line": Line(Point(1), Point(2)), "label": 5})
    assert caught.value.path == "$.label"


def test_a_parameter_that_cannot_be_stored_is_refused_when_declared() -> None:
    @dataclass
    class Ambiguous:
        either: Point | Line

    def fn(good: int, bad: Any) -> None: ...

    fn.__annotations__["bad"] = list[Ambiguous]
    with pytest.raises(DefinitionError, match=r"my.work: parameter 'bad': .* cannot be stored"):
        arguments_of(fn, name="my.work")


class Recorder:
    def __init__(self) -> None:
        self.stored: Any = None

    def encode(self, value: Any) -> bytes:
        self.stored = value
        return b"x"

    def decode(self, data: bytes) -> Any:
        return self.stored


@pytest.mark.parametrize(("fn", "args", "kwargs"), CALLS)
def test_a_codec_of_ones_own(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    codec, arguments = Recorder(), arguments_of(fn)
    bound = arguments.bind(args, kwargs)
    assert arguments.decode(arguments.encode(bound, codec), codec) == bound


# Resolving annotations


def test_local_names_of_annotations_can_be_given() -> None:
    @dataclass
    class Local:
        x: int

    def fn(a: Local) -> None: ...

    with pytest.raises(DefinitionError, match=r"'Local' of 'a' in .* cannot be resolved"):
        arguments_of(fn)
    arguments = arguments_of(fn, scope=locals())
    assert arguments.decode(arguments.encode(arguments.bind((Local(1),), {}))) == {"a": Local(1)}


def test_an_unresolvable_annotation_is_refused_only_when_it_is_needed() -> None:
    def fn(a: int, b: Hidden) -> None: ...

    assert resolve_annotation(fn, "a") is int
    assert resolve_annotation(fn, "return") is type(None)
    with pytest.raises(DefinitionError, match=r"'Hidden' of 'b' .*import or define"):
        resolve_annotation(fn, "b")


def test_without_an_annotation_it_may_be_anything() -> None:
    assert resolve_annotation(untyped, "a") is Any
    assert resolve_annotation(untyped, "return") is Any
    assert resolve_annotation(functools.partial(add, 1), "b") is Any


def test_decorated_functions_keep_their_annotations() -> None:
    @functools.wraps(add)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return add(*args, **kwargs)

    arguments = arguments_of(wrapper)
    assert arguments.bind((1, 2), {}) == {"a": 1, "b": 2}
    with pytest.raises(InputError, match="Expected `int`"):
        arguments.bind((1, "2"), {})


def test_an_annotation_that_cannot_be_hashed() -> None:
    arguments = Arguments("f", [Parameter("n", Annotated[int, ["a", "note"]])])
    assert arguments.bind((1,), {}) == {"n": 1}
    with pytest.raises(InputError, match="'n'"):
        arguments.bind(("1",), {})


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_plain_parameters_take_their_own_type_alone(value: Any) -> None:
    """Where nothing is to be converted there is a short way: it takes no more than the long one."""
    arguments = Arguments("f", [Parameter("n", int)])
    with pytest.raises(InputError, match="'n'"):
        arguments.bind((value,), {})
    assert arguments.bind((2**80,), {}) == arguments.bind((), {"n": 2**80}) == {"n": 2**80}


def test_a_subclass_of_a_plain_type_is_converted() -> None:
    class Name(str):
        __slots__ = ()

    bound = Arguments("f", [Parameter("name", str)]).bind((Name("x"),), {})
    assert bound == {"name": "x"}


# ------------------------------------------------------------------- collections of the standard library


@dataclass
class Tally:
    votes: Counter[str]
    order: OrderedDict[int, datetime]


REBUILT: list[tuple[Any, Any]] = [
    (OrderedDict, OrderedDict(b=1, a=MOMENT)),
    (OrderedDict[str, int], OrderedDict(b=1, a=2)),
    (OrderedDict[int, UUID], OrderedDict({2: UUID(int=2), 1: UUID(int=1)})),
    (Counter, Counter({"a": 2, 3: 1})),
    (Counter[str], Counter("abca")),
    (deque, deque([1, "a", MOMENT])),
    (deque[set[int]], deque([{1}, {2}])),
    (list[OrderedDict[str, datetime]], [OrderedDict(a=MOMENT)]),
    (OrderedDict[str, Any] | None, OrderedDict(a={1, 2})),
    (Tally, Tally(Counter("aa"), OrderedDict({2: MOMENT}))),
]


def of_type(tp: Any) -> Arguments:
    return Arguments("count", [Parameter("x", tp)])


@pytest.mark.parametrize(("tp", "value"), REBUILT, ids=[str(tp) for tp, _ in REBUILT])
def test_collections_read_back_as_declared(tp: Any, value: Any) -> None:
    arguments = of_type(tp)
    back = arguments.decode(arguments.encode(arguments.bind((value,), {})))["x"]
    assert (back, type(back)) == (value, type(value))


class Rights(Flag):
    READ = 1
    WRITE = 2


class Level(Enum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    level: Level
    n: int


NUMBERED: list[tuple[Any, Any]] = [
    (Rights, Rights.READ),
    (Rights, Rights.READ | Rights.WRITE),
    (Rights | None, Rights.WRITE),
    (Level, Level.HIGH),
    (list[Level], [Level.LOW, Level.HIGH]),
    (dict[str, Level | None], {"a": Level.LOW, "b": None}),
    (dict[Level, int], {Level.LOW: 1}),
    (tuple[Level, int], (Level.LOW, 1)),
    (set[Level], {Level.HIGH}),
    (Pair, Pair(Level.LOW, 3)),
    (Level | str, Level.HIGH),
    (tuple[Any, list[Level]], ("text", [Level.HIGH])),
]


@pytest.mark.parametrize(("tp", "value"), NUMBERED, ids=[f"{tp} {value}" for tp, value in NUMBERED])
def test_enums_and_flags_with_numbers_read_back(tp: Any, value: Any) -> None:
    """They were refused: "Expected `int`, got `Level`"."""
    arguments = of_type(tp)
    back = arguments.decode(arguments.encode(arguments.bind((value,), {})))["x"]
    assert (back, type(back)) == (value, type(value))
    shape = Shape.for_type(tp)
    assert shape.decode(shape.encode(value)) == value


def test_a_member_of_another_enum_is_refused() -> None:
    with pytest.raises(InputError, match="parameter 'x': Expected `int`, got `Level`"):
        of_type(Rights).bind((Level.LOW,), {})


@pytest.mark.parametrize("tp", [defaultdict, defaultdict[str, int], list[defaultdict[str, int]]])
def test_a_defaultdict_is_refused_when_the_work_is_made(tp: Any) -> None:
    """Its factory cannot be stored. It was accepted, and dead at the worker: `undecodable`."""
    with pytest.raises(DefinitionError, match="its factory is code"):
        of_type(tp)


def test_a_bounded_deque_is_refused_when_the_work_is_made() -> None:
    with pytest.raises(InputError, match="parameter 'x': a deque with a maxlen"):
        of_type(deque[int]).bind((deque([1], maxlen=3),), {})


@pytest.mark.parametrize("wrong", [{"a": "text"}, {1: 1}, [1], "text"], ids=["value", "key", "list", "str"])
def test_collections_are_validated(wrong: Any) -> None:
    with pytest.raises(InputError, match="parameter 'x'"):
        of_type(OrderedDict[str, int]).bind((wrong,), {})


def test_a_collection_of_dataclasses_is_refused_when_it_is_written() -> None:
    arguments = of_type(deque[Point])
    with pytest.raises(EncodeError, match="Point can only be read back where it is declared"):
        arguments.encode(arguments.bind((deque([Point(1)]),), {}))


class OwnDict(dict[str, int]):
    """Written as a dict, and not rebuilt."""


def test_a_class_that_does_not_read_back_is_refused_when_it_is_written() -> None:
    """A worker could not decode it."""
    arguments = of_type(OwnDict | None)
    assert arguments.decode(arguments.encode(arguments.bind((None,), {}))) == {"x": None}
    with pytest.raises(EncodeError, match="would not read back"):
        arguments.encode(arguments.bind((OwnDict(a=1),), {}))


def test_json_values_are_bound_as_what_they_stand_for() -> None:
    arguments = Arguments("f", [Parameter("day", date), Parameter("count", int, 1)])
    assert arguments.bind_json({"day": "2030-01-31"}) == {"day": date(2030, 1, 31)}
    for wrong, problem in (
        ({"day": "soon"}, r"f: parameter 'day': Invalid"),
        ({"count": 2}, r"f: missing parameter 'day'"),
        ({"day": "2030-01-31", "cuont": 1}, r"f: unknown parameter 'cuont'.*count"),
        ({"day": "2030-01-31", "count": "1"}, r"f: parameter 'count': Expected `int`"),
    ):
        with pytest.raises(InputError, match=problem):
            arguments.bind_json(wrong)
