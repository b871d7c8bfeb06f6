"""Declared types: a decoded value has exactly that type, and a value of another type is refused."""

import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import Path, PurePosixPath
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from treadle.codec import Shape, default_codec
from treadle.codec.bad_value import BadValue
from treadle.errors import DecodeError, DefinitionError, EncodeError

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(Enum):
    RED = "r"
    BLUE = "b"


class Level(IntEnum):
    LOW = 1


class Kind(StrEnum):
    A = "a"


@dataclass
class Point:
    x: int
    y: float = 0.0


@dataclass
class Tree:
    value: Any
    children: list["Tree"] = field(default_factory=list)


@dataclass
class Loose:
    name: str
    meta: dict[str, Any]
    anything: Any = None


@dataclass
class Box(Generic[T]):
    inside: T


@dataclass
class Strict:
    data: bytes
    when: datetime


class Order(msgspec.Struct):
    id: int
    lines: list[Point] = []
    note: str | None = None


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str
    extra_data: Any


class Cat(msgspec.Struct, tag=True):
    name: str
    extra: Any = None


class Dog(msgspec.Struct, tag=True):
    name: str
    extra: Any = None


class Row(msgspec.Struct, array_like=True):
    a: int
    b: Any


class Movie(TypedDict):
    title: str
    year: NotRequired[int]
    extra: NotRequired[Any]


class Coordinates(NamedTuple):
    lat: float
    lon: float
    label: Any = None


class User(pydantic.BaseModel):
    name: str
    born: date
    tags: set[str] = set()
    score: float = 0.0


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    full_name: str = pydantic.Field(alias="fullName")
    when: datetime


class Other(pydantic.BaseModel):
    name: str


@dataclass
class Account:
    owner: User
    path: Path


MOMENT = datetime(2026, 3, 1, 12, 30, 0, 5, tzinfo=UTC)
ANCIENT = datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=9, seconds=21)))

EXAMPLES: list[tuple[Any, Any]] = [
    (int, 5),
    (int, 10**30),
    (int, 10**5000),
    (float, 1.5),
    (float, math.inf),
    (float | None, -math.inf),
    (float | None, None),
    (bool, True),
    (str, "a\x00🐎"),
    (None, None),
    (bytes, b"\x00\xff"),
    (bytearray, bytearray(b"ab")),
    (complex, 1 + 2j),
    (datetime, MOMENT),
    (datetime, MOMENT.replace(tzinfo=None)),
    (datetime, ANCIENT),
    (datetime | None, ANCIENT),
    (date, date(2026, 1, 1)),
    (time, time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=7)),
    (Path, Path("/tmp/x")),
    (PurePosixPath, PurePosixPath("a/b")),
    (IPv4Address, IPv4Address("10.0.0.1")),
    (Fraction, Fraction(1, 3)),
    (ZoneInfo, ZoneInfo("Europe/Paris")),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Kind, Kind.A),
    (UserId, UserId(3)),
    (Literal["a", 1], 1),
    (Literal["a", 1], "a"),
    (list[int], [1, 2]),
    (list[int], [2**53 + 1, 2**64]),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (Sequence[int], [1]),
    (Mapping[str, int], {"a": 1}),
    (dict[str, int], {"a": 1, "$treadle": 2}),
    (dict[int, str], {1: "a"}),
    (dict[date, Decimal], {date(2026, 1, 1): Decimal(1)}),
    (dict[UUID, Colour], {UUID(int=1): Colour.BLUE}),
    (dict[tuple[int, int], str], {(1, 2): "a"}),
    (dict[str, float], {"a": math.inf, "b": 1.0}),
    (list[float | None], [None, math.inf, -0.0]),
    (Optional[Point], None),  # noqa: UP045
    (Optional[Point], Point(1)),  # noqa: UP045
    (Point, Point(1, 2.5)),
    (list[Point], [Point(1), Point(2, math.inf)]),
    (dict[str, Point], {"$treadle": Point(1)}),
    (tuple[Point, Order], (Point(1), Order(1, [Point(2)]))),
    (Order, Order(1, [Point(1)], "x")),
    (Movie, {"title": "T"}),
    (Movie, {"title": "T", "year": 1999, "extra": (1, {2})}),
    (Coordinates, Coordinates(1.5, 2.5)),
    (Coordinates, Coordinates(1.5, 2.5, {"a": (1,)})),
    (Any, {"a": (1, {2}), "t": MOMENT}),
    (object, [(1,)]),
    (list, [(1,), {2}]),
    (dict, {1: (2,), "$treadle": 3}),
    (list[Any], [MOMENT, b"x", (1,)]),
    (dict[str, Any], {"when": MOMENT, "$treadle": "set", "value": [1]}),
    (dict[int, Any], {1: MOMENT}),
    (set[Any], {1, "a", (2, 3)}),
    (tuple[int, Any], (1, {MOMENT})),
    (tuple[Any, ...], (1, {2})),
    (Loose, Loose("n", {"t": MOMENT, "s": {1}}, (1, 2))),
    (list[Loose], [Loose("n", {}, b"x")]),
    (Loose | None, Loose("n", {"a": (1,)})),
    (Tree, Tree((1,), [Tree({2}, [Tree(None)])])),
    (Box[int], Box(1)),
    (Box[Any], Box({1})),
    (Renamed, Renamed("a", {1})),
    (Cat | Dog, Dog("rex", (1,))),
    (list[Cat | Dog], [Cat("a"), Dog("b", {2})]),
    (Row, Row(1, (2,))),
    (Strict, Strict(b"x", MOMENT)),
    (User, User(name="a", born=date(2000, 1, 1), tags={"x"}, score=math.inf)),
    (list[User], [User(name="a", born=date(2000, 1, 1))]),
    (dict[str, User] | None, {"$treadle": User(name="a", born=date(2000, 1, 1))}),
    (Aliased, Aliased(fullName="a", when=MOMENT)),
    (Account, Account(User(name="a", born=date(2000, 1, 1)), Path("x"))),
    (Annotated[int, msgspec.Meta(gt=0)], 5),
    (Annotated[dict[str, Any], msgspec.Meta(description="free")], {"a": (1,)}),
    (Annotated[Point | Order, "a note"], Point(1)),
    (dict[str, Any] | tuple[Any, ...], ({1},)),
    (Any | None, (1,)),
    (Point | Order, Order(1)),
    (Point | Order | None, None),
    (Point | Order | None, Point(1)),
    (list[Point | Order], [Point(1), Order(2)]),
    (dict[str, tuple[Point | Loose, ...]], {"a": (Loose("n", {"t": MOMENT}), Point(1))}),
    (str | UUID, UUID(int=1)),
    (str | UUID, "00000000-0000-0000-0000-000000000001"),
    (str | datetime, MOMENT),
    (str | Kind, Kind.A),
    (str | Kind, "a"),
    (bytes | str, b"abcd"),
    (bytes | str, "abcd"),
    (list[int] | tuple[int, ...], (1, 2)),
    (date | datetime, MOMENT),
    (User | Other, Other(name="a")),
    (User | int, 5),
    (dict[str, Any] | Point, Point(1)),
    (dict[str, Any] | Point, {"x": (1,)}),
    (dict[str, Any] | list[Any] | None, [(1,)]),
    (datetime | dict[str, Any], MOMENT),
    (Colour | dict[str, Any], Colour.RED),
    (int | str, 5),
    (int | float, 5.0),
    (ValueError | None, None),
]


def label(value: Any) -> str:
    try:
        return repr(value)[:60]
    except ValueError:
        return "long"


@pytest.mark.parametrize(("tp", "value"), EXAMPLES, ids=label)
def test_values_come_back_as_declared(tp: Any, value: Any) -> None:
    shape = Shape.for_type(tp)
    back = shape.decode(shape.encode(value))
    assert type(back) is type(value)
    assert back == value
    assert shape.check(value) == value


def test_nan_and_none_round_trip_as_optional_float() -> None:
    shape = Shape.for_type(list[float | None])
    first, second = shape.decode(shape.encode([math.nan, None]))
    assert math.isnan(first)
    assert second is None


class Word(str): ...


class Count(int): ...


class Share(float): ...


@dataclass
class Subclassed:
    text: str
    count: int
    share: float


def test_subclasses_of_scalars_are_encoded_as_their_base_class() -> None:
    shape = Shape.for_type(Subclassed)
    back = shape.decode(shape.encode(Subclassed(Word("a"), Count(2), Share(1.5))))
    assert [type(each) for each in vars(back).values()] == [str, int, float]
    assert back == Subclassed("a", 2, 1.5)


def test_an_exception_may_be_declared() -> None:
    shape = Shape.for_type(ValueError)
    assert str(shape.decode(shape.encode(ValueError("x")))) == "x"


def test_declared_types_are_encoded_as_plain_json() -> None:
    shape = Shape.for_type(Strict)
    assert shape.encode(Strict(b"x", MOMENT)) == b'{"data":"eA==","when":"2026-03-01T12:30:00.000005Z"}'
    assert Shape.for_type(list[Point]).encode([Point(1)]) == b'[{"x":1,"y":0.0}]'


MISMATCHES: list[tuple[Any, Any, str, str]] = [
    (int, "1", "$", "int"),
    (int, 1.0, "$", "int"),
    (int, True, "$", "int"),
    (float, "1.5", "$", "float"),
    (float, True, "$", "float"),
    (str, 1, "$", "str"),
    (str, b"a", "$", "str"),
    (str, Colour.RED, "$", "str"),
    (bool, 1, "$", "bool"),
    (bytes, "abcd", "$", "bytes"),
    (datetime, "2026-03-01T12:30:00Z", "$", "datetime"),
    (date, MOMENT, "$", "date"),
    (timedelta, 5, "$", "duration"),
    (Decimal, 1, "$", "decimal"),
    (UUID, "00000000-0000-0000-0000-000000000001", "$", "uuid"),
    (Path, 5, "$", "Path"),
    (complex, "1", "$", "complex"),
    (None, 1, "$", "null"),
    (list[int], ["a"], "$[...]", "int"),
    (list[int], "ab", "$", "array"),
    (set[int], {"a"}, "$[...]", "int"),
    (tuple[int, str], (1, 2), "$[1]", "str"),
    (tuple[int, str], (1,), "$", "length 2"),
    (dict[str, int], {"a": "b"}, "$[...]", "int"),
    (dict[str, int], {1: 1}, "$", "str"),
    (dict[int, int], {"1": 1}, "$", "int"),
    (Literal["a"], "b", "$", "b"),
    (Colour, "x", "$", "x"),
    (Point, Point("a"), "$.x", "int"),  # type: ignore[arg-type]
    (list[Point], [Point(1), Point("a")], "$[1].x", "int"),  # type: ignore[arg-type]
    (Point, {"x": "a"}, "$.x", "int"),
    (Point, Order(1), "$", "object"),
    (Strict, Strict("abcd", MOMENT), "$.data", "bytes"),  # type: ignore[arg-type]
    (Strict, Strict(b"x", "2026-03-01T12:30:00Z"), "$.when", "datetime"),  # type: ignore[arg-type]
    (Order, Order("1"), "$.id", "int"),  # type: ignore[arg-type]
    (Order, Order(1, [Point(1, "y")]), "$.lines[0].y", "float"),  # type: ignore[arg-type]
    (Coordinates, Coordinates("a", 1), "$[0]", "float"),  # type: ignore[arg-type]
    (Movie, {"year": 1}, "$", "title"),
    (Movie, {"title": 1}, "$.title", "str"),
    (Loose, Loose(1, {}), "$.name", "str"),  # type: ignore[arg-type]
    (Tree, Tree(1, [Tree(2, [Point(1)])]), "$.children", "Tree|object|value"),  # type: ignore[list-item]
    (User, {"name": 1, "born": "x"}, "$", "born"),
    (User, Point(1), "$", "User|valid"),
    (Annotated[int, msgspec.Meta(gt=0)], 0, "$", "> 0|>= 1"),
    (Point | Order, 5, "$", "Point | .*Order"),
    (list[Point | Order], [Point(1), 5], "$[1]|$[...]", "Point"),
    (str | UUID, 5, "$", "str | .*UUID"),
    (ValueError, KeyError("k"), "$", "ValueError"),
]


@pytest.mark.parametrize(("tp", "value", "path", "problem"), MISMATCHES, ids=label)
def test_a_value_of_another_type_is_refused(tp: Any, value: Any, path: str, problem: str) -> None:
    shape = Shape.for_type(tp)
    with pytest.raises(BadValue, match=problem) as refused:
        shape.check(value)
    with pytest.raises(EncodeError, match=problem) as not_encoded:
        shape.encode(value)
    assert any(not_encoded.value.path.startswith(each.replace("[...]", "[")) for each in path.split("|"))
    assert refused.value.path == not_encoded.value.path


def test_integers_are_accepted_as_floats_and_dicts_as_classes() -> None:
    assert repr(Shape.for_type(float).check(1)) == "1.0"
    assert Shape.for_type(Point).check({"x": 1}) == Point(1)
    assert Shape.for_type(User).check({"name": "a", "born": "2000-01-01"}).born == date(2000, 1, 1)
    assert Shape.for_type(set[int]).check([1, 1]) == {1}


@pytest.mark.parametrize(
    ("tp", "data", "path"),
    [
        (int, b'"1"', "$"),
        (int, b"{", "$"),
        (int, b"", "$"),
        (Point, b'{"y":1}', "$"),
        (Point, b'{"x":"a"}', "$.x"),
        (list[Point], b'[{"x":1},{"x":null}]', "$[1].x"),
        (datetime, b'"yesterday"', "$"),
        (Colour, b'"x"', "$"),
        (User, b'{"name":"a","born":"never"}', "$"),
        (Path, b"5", "$"),
        (Loose, b'{"name":1,"meta":{}}', "$.name"),
        (Loose, b'{"name":"a","meta":{"x":{"$treadle":"date","value":"never"}}}', "$.meta.x"),
        (Point | Order, b'["Other",{}]', "$"),
        (Point | Order, b'["Point"]', "$"),
        (Point | Order, b'["Point",{"x":"a"}]', "$"),
        (Point | Order, b"5", "$"),
        (complex, b"5", "$"),
        (float, b'{"$treadle":"float","value":"abc"}', "$"),
    ],
)
def test_bytes_of_another_type_raise_decode_error(tp: Any, data: bytes, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        Shape.for_type(tp).decode(data)
    assert caught.value.path.startswith(path)


@dataclass
class Touchy:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise LookupError("no such x")


def test_a_constructor_that_raises_gives_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="no such x"):
        Shape.for_type(Touchy).decode(b'{"x":-1}')


@settings(max_examples=examples(200), deadline=None)
@given(
    st.binary(max_size=80),
    st.sampled_from([int, list[int], Point, Loose, User, Cat | Dog, Point | Order, Any]),
)
def test_arbitrary_bytes_raise_nothing_but_decode_error(data: bytes, tp: Any) -> None:
    try:
        Shape.for_type(tp).decode(data)
    except DecodeError as error:
        str(error).encode()


@pytest.mark.parametrize(
    ("tp", "value", "path"),
    [
        (dict[str, Any], {"a": [object()]}, "$.a[0]"),
        (Loose, Loose("n", {"k": object()}), "$.meta.k"),
        (Loose, Loose("n", {}, Point(1)), "$.anything"),
        (list[Any], [Colour.RED], "$[0]"),
        (str, "\ud800", "$"),
        (Point | Loose, Loose("n", {"k": object()}), "$[1].meta.k"),
        (Tree, Tree(1, [Tree(object())]), "$.children[0].value"),
    ],
)
def test_a_value_that_cannot_be_encoded_is_refused_by_path(tp: Any, value: Any, path: str) -> None:
    with pytest.raises(EncodeError) as caught:
        Shape.for_type(tp).encode(value)
    assert caught.value.path == path


def test_a_value_inside_itself_is_refused() -> None:
    loop = Tree(1)
    loop.children.append(loop)
    with pytest.raises(EncodeError, match="nested"):
        Shape.for_type(Tree).encode(loop)


@dataclass
class Ambiguous:
    either: Point | Order


class Mixed(Enum):
    A = 1
    B = "b"


@pytest.mark.parametrize("tp", [Ambiguous, list[Ambiguous], Mixed, Literal[b"x"], "NoSuchName"])
def test_a_type_that_cannot_be_stored_is_refused_when_declared(tp: Any) -> None:
    with pytest.raises(DefinitionError, match="cannot be stored"):
        Shape.for_type(tp)


def test_shapes_are_built_once() -> None:
    assert Shape.for_type(list[Point]) is Shape.for_type(list[Point])
    unhashable = Annotated[int, ["note"]]
    assert Shape.for_type(unhashable).decode(b"1") == 1


class Reversed:
    """A codec of the user, around the default one."""

    def encode(self, value: Any) -> bytes:
        return default_codec.encode(value)[::-1]

    def decode(self, data: bytes) -> Any:
        return default_codec.decode(data[::-1])


@pytest.mark.parametrize(("tp", "value"), EXAMPLES, ids=label)
def test_declared_types_round_trip_with_a_codec_of_the_user(tp: Any, value: Any) -> None:
    shape = Shape.for_type(tp)
    data = shape.encode(value, Reversed())
    back = shape.decode(data, Reversed())
    assert (type(back), back) == (type(value), value)


class Watching:
    """A codec that keeps the value that it gets."""

    def __init__(self) -> None:
        self.seen: Any = None

    def encode(self, value: Any) -> bytes:
        self.seen = value
        return b""

    def decode(self, data: bytes) -> Any:
        return self.seen


def test_a_codec_of_the_user_gets_plain_json_values_for_declared_types() -> None:
    codec = Watching()
    Shape.for_type(Strict).encode(Strict(b"x", MOMENT), codec)
    assert codec.seen == {"data": "eA==", "when": "2026-03-01T12:30:00.000005Z"}
    Shape.for_type(Loose).encode(Loose("n", {"t": MOMENT}, (1,)), codec)
    assert codec.seen == {"name": "n", "meta": {"t": MOMENT}, "anything": (1,)}


@pytest.mark.usefixtures("processes")
def test_pydantic_is_imported_only_if_it_is_used() -> None:
    import subprocess

    code = (
        "import sys, dataclasses, treadle.codec as c\n"
        "P = dataclasses.make_dataclass('P', [('x', int)])\n"
        "s = c.Shape.for_type(list[P]); assert s.decode(s.encode([P(1)])) == [P(1)]\n"
        "sys.exit('pydantic' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=50)


def test_types_of_the_same_name_in_a_union_are_distinguished() -> None:
    namesake = msgspec.defstruct("Point", [("x", int)], module="elsewhere")
    shape = Shape.for_type(Point | namesake)
    assert type(shape.decode(shape.encode(namesake(1)))) is namesake
    assert type(shape.decode(shape.encode(Point(1)))) is Point


class Card(pydantic.BaseModel):
    owner: str
    pin: str = pydantic.Field(max_length=4)

    @pydantic.model_validator(mode="after")
    def check_owner(self) -> "Card":
        if self.owner == "nobody":
            raise ValueError("nobody owns it")
        return self


@pytest.mark.parametrize(
    ("tp", "stored", "told"),
    [
        (Card, {"owner": "nobody", "pin": "5678"}, "Card: Value error, nobody owns it"),
        (list[Card], [{"owner": "ann", "pin": "56789"}], "pin: String should have at most 4 characters"),
        (IPv4Address, "5678", "not a text for IPv4Address"),
    ],
)
def test_errors_about_values_do_not_quote_them(tp: Any, stored: Any, told: str) -> None:
    """They are stored and shown, and the values may be secret."""
    shape = Shape.for_type(tp)
    with pytest.raises(DecodeError) as decoding:
        shape.decode(default_codec.encode(stored))
    with pytest.raises(BadValue) as checking:
        shape.check(stored)
    for error in (decoding.value, checking.value):
        lines = "".join(traceback.format_exception(error))
        assert told in str(error)
        assert "5678" not in lines
