"""The default codec: a decoded value equals the encoded one, or EncodeError names what could not be
encoded."""

import contextlib
import math
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from time import process_time
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from treadle.codec import Codec, JsonCodec, check_size, default_codec
from treadle.codec.tags import MAX_DEPTH
from treadle.errors import DecodeError, EncodeError, PayloadTooLarge, RemoteError, path_text

NAIVE = datetime(2026, 3, 1, 12, 30, 0, 5)  # noqa: DTZ001  these three are naive on purpose
LAST = datetime.max  # noqa: DTZ901
FIRST = datetime.min  # noqa: DTZ901

encode, decode = default_codec.encode, default_codec.decode


def same(left: Any, right: Any) -> bool:
    """Equal and of the same types at every level. NaN equals itself, and -0.0 does not equal 0.0."""
    if type(left) is not type(right):
        return False
    match left:
        case float():
            return struct.pack("d", left) == struct.pack("d", right) or (left != left and right != right)
        case complex():
            return same(left.real, right.real) and same(left.imag, right.imag)
        case list() | tuple():
            return len(left) == len(right) and all(map(same, left, right))
        case dict():
            return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
        case Decimal():
            return str(left) == str(right)
        case _:
            return bool(left == right)


Pair = namedtuple("Pair", "a b")


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Size(Enum):
    SMALL = "s"


class MixedIn(str, Enum):  # noqa: UP042  the older form, whose str() differs
    ONE = "one"


@dataclass
class Point:
    x: int


class Model(msgspec.Struct):
    x: int


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (None, b"null"),
        (True, b"true"),
        (1, b"1"),
        (1.0, b"1.0"),
        (-0.0, b"-0.0"),
        ("a", b'"a"'),
        ("\x00 🐎 \u2028", '"\\u0000 🐎 \u2028"'.encode()),
        ([1, [2.5, None]], b"[1,[2.5,null]]"),
        ({"a": {"b": []}}, b'{"a":{"b":[]}}'),
        (2**53, b"9007199254740992"),
        (0.12345678901234568, b"0.12345678901234568"),
    ],
)
def test_plain_json_is_written_plainly(value: Any, wire: bytes) -> None:
    assert encode(value) == wire
    assert same(decode(wire), value)


@pytest.mark.parametrize(
    ("value", "kind", "wire"),
    [
        (datetime(2026, 3, 1, 12, 30, tzinfo=UTC), "datetime", "2026-03-01T12:30:00+00:00"),
        (NAIVE, "datetime", "2026-03-01T12:30:00.000005"),
        (date(2026, 3, 1), "date", "2026-03-01"),
        (time(12, 30, tzinfo=UTC), "time", "12:30:00+00:00"),
        (timedelta(days=-1, microseconds=1), "timedelta", [-1, 0, 1]),
        (Decimal("1.10"), "Decimal", "1.10"),
        (UUID(int=1), "UUID", "00000000-0000-0000-0000-000000000001"),
        (b"\x00\xff", "bytes", "AP8="),
        ({1}, "set", [1]),
        (frozenset({1}), "frozenset", [1]),
        ((1, "a"), "tuple", [1, "a"]),
        (2**53 + 1, "int", "9007199254740993"),
        (-(10**30), "int", "-1000000000000000000000000000000"),
        (1 - 2j, "complex", [1.0, -2.0]),
        (math.inf, "float", "inf"),
        (-math.inf, "float", "-inf"),
        (math.nan, "float", "nan"),
        ({1: "a", None: "b"}, "dict", [[1, "a"], [None, "b"]]),
        ({"$treadle": 1}, "dict", [["$treadle", 1]]),
    ],
)
def test_other_types_are_tagged(value: Any, kind: str, wire: Any) -> None:
    assert msgspec.json.decode(encode(value)) == {"$treadle": kind, "value": wire}
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        {"$treadle": "datetime", "value": "2026-03-01"},
        {"$treadle": "nonsense", "value": 1},
        {"$treadle": {"$treadle": {"$treadle": 0}}},
        [{"$treadle": "set", "value": [{"$treadle": 1}]}],
        {"$treadle": datetime(2026, 1, 1, tzinfo=UTC)},
        "$treadle",
        ['"$treadle"', {"value": "$treadle"}],
        {"a": "$treadle", "b": (1,)},
        {("$treadle", 1): {2: {3: 4}}},
    ],
)
def test_user_data_that_looks_like_a_tag_is_data(value: Any) -> None:
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize(
    "value",
    [
        [(1, 2), {"a": {3}}, [(), set(), frozenset(), b"", {}]],
        {"deep": [{"er": ({"still": [Decimal("NaN")]},)}]},
        {frozenset({(1, 2)}): {date(2026, 1, 1): None}},
        {True: 1, False: 0},
        {1: "int", "1": "str", 1.5: "float"},
        [2**53, 2**53 + 1, 2**63, 2**64, -(2**64), 10**400],
        [1e16, 123456789012345680.0, 5e-324, 1.7976931348623157e308, -0.0],
        [time(1, 2, 3, 4, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))],
        [timedelta.max, timedelta.min, LAST, FIRST, date.max, date.min],
        [Decimal("1E+999999"), Decimal("-Infinity"), Decimal("0E-20")],
        datetime(1900, 1, 1, tzinfo=timezone(timedelta(minutes=9, seconds=21))),
        complex(math.nan, -0.0),
        [complex(math.inf, -math.inf)],
        "\x00\x1f\x7f\u0085\ufeff\U0010ffff",
    ],
)
def test_nested_and_extreme_values_round_trip(value: Any) -> None:
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize("digits", [4_299, 4_301, 5_000, 50_000])
def test_integers_of_any_length_round_trip(digits: int) -> None:
    for value in (10**digits, -(10**digits)):
        assert decode(encode([value])) == [value]


def test_an_aware_datetime_keeps_its_instant_and_offset_but_not_its_zone_name() -> None:
    value = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Paris"))
    back = decode(encode(value))
    assert (back, back.utcoffset()) == (value, timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (Colour.RED, "red"),
        (MixedIn.ONE, "one"),
        (Level.LOW, 1),
        (Pair(1, 2), (1, 2)),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (Counter("aa"), {"a": 2}),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        ([Colour.RED, (Level.LOW,)], ["red", (1,)]),
        ({Colour.RED: (1,)}, {"red": (1,)}),
    ],
)
def test_subclasses_come_back_as_their_base_class(value: Any, back: Any) -> None:
    result = decode(encode(value))
    assert result == value
    assert same(result, back)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 3),
        KeyError("k"),
        OSError(2, "no file"),
        ZeroDivisionError(),
        ExceptionGroup("g", [ValueError("x")]),
    ],
)
def test_builtin_exceptions_round_trip(error: Exception) -> None:
    back = decode(encode({"error": error}))["error"]
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert repr(back.args) == repr(error.args)


def test_other_exceptions_come_back_as_remote_error() -> None:
    back = decode(encode(msgspec.ValidationError("no")))
    assert isinstance(back, RemoteError)
    assert (back.error_type, back.error) == ("msgspec.ValidationError", "no")
    again = decode(encode(back))
    assert (again.error_type, again.error) == ("msgspec.ValidationError", "no")


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (SystemExit(3), "SystemExit"),
        (ValueError(object()), "ValueError"),
        (ValueError("\ud800"), "ValueError"),
        (Unprintable(), f"{__name__}.Unprintable"),
    ],
)
def test_every_exception_can_be_encoded(error: BaseException, error_type: str) -> None:
    back = decode(encode(error))
    assert isinstance(back, RemoteError)
    assert back.error_type == error_type


@pytest.mark.parametrize(
    ("value", "path", "hint"),
    [
        (object(), "$", "object has no form in JSON"),
        ({"a": [1, object()]}, "$.a[1]", "object"),
        ({"a b": {"c": {1: object()}}}, "$['a b'].c[1]", "object"),
        ((1, {2: {"x": object()}}), "$[1][2].x", "object"),
        ({(1, object()): 1}, "$[(1, <obje", "object"),
        ([Point(1)], "$[0]", "annotate"),
        ([Model(1)], "$[0]", "annotate"),
        ({"s": Size.SMALL}, "$.s", "annotate"),
        (["a\ud800"], "$[0]", "surrogate"),
        ({"\udfff": 1}, "$['\\udfff']", "surrogate"),
        ([time(1, tzinfo=ZoneInfo("Europe/Paris"))], "$[0]", "offset"),
        ({"f": encode}, "$.f", "no form"),
        ([iter([])], "$[0]", "no form"),
        ([range(3)], "$[0]", "no form"),
    ],
)
def test_a_value_that_cannot_be_encoded_is_refused_by_path(value: Any, path: str, hint: str) -> None:
    with pytest.raises(EncodeError, match=hint) as caught:
        encode(value)
    assert caught.value.path.startswith(path)
    assert str(caught.value).startswith(f"cannot encode {path_text(caught.value.path)}: ")
    assert "$" not in str(caught.value)


def nested(depth: int, wrap: Any, inner: Any) -> Any:
    for _ in range(depth):
        inner = wrap(inner)
    return inner


WRAPS = {
    "list": lambda inner: [inner],
    "dict": lambda inner: {"k": inner},
    "tuple": lambda inner: (inner,),
    "pairs": lambda inner: {1: inner},
    "exception": ValueError,
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_the_depth_limit_is_the_same_for_every_container(wrap: Any) -> None:
    deepest = nested(MAX_DEPTH, wrap, 1)
    assert repr(decode(encode(deepest))) == repr(deepest)


@pytest.mark.parametrize("wrap", [WRAPS["list"], WRAPS["dict"], WRAPS["tuple"], WRAPS["pairs"]])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 900, 10_000])
def test_values_over_the_depth_limit_are_refused(wrap: Any, depth: int) -> None:
    with pytest.raises(EncodeError, match="nested"):
        encode(nested(depth, wrap, 1))


def test_many_flat_containers_are_not_over_the_depth_limit() -> None:
    value = [{"a": [[{}], "]]]", "[[["]} for _ in range(1_000)]
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "text", ["[" * 1_000_000, "[" * 500_000 + "]" * 500_000, '{"' * 300_000, "\\[" * 300_000]
)
def test_brackets_in_a_text_do_not_hold_the_loop_up(text: str) -> None:
    """One million of them took 0.9 s."""
    began = process_time()
    data = encode([text, [text]])
    took = process_time() - began
    assert decode(data) == [text, [text]]
    assert took < 0.3


def test_levels_are_counted_without_texts() -> None:
    deepest = nested(MAX_DEPTH - 1, WRAPS["list"], ["[" * 1000, '"]\\"' * 1000])
    assert decode(encode(deepest)) == deepest
    with pytest.raises(EncodeError, match="nested"):
        encode(nested(MAX_DEPTH, WRAPS["list"], ["[" * 1000]))


def test_a_value_inside_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EncodeError, match="inside itself"):
        encode(loop)


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000]
)
def test_deep_bytes_raise_only_decode_error(data: bytes) -> None:
    with contextlib.suppress(DecodeError):  # an interpreter with a larger stack may read them
        decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nul",
        b"NaN",
        b"1 2",
        b'"\xff"',
        b'"\\ud800"',
        b"1e400",
        b"\x80\x04\x95.",
        b'{"$treadle":"datetime","value":"yesterday"}',
        b'{"$treadle":"datetime","value":5}',
        b'{"$treadle":"set","value":[[1]]}',
        b'{"$treadle":"set","value":"abc"}',
        b'{"$treadle":"tuple","value":{}}',
        b'{"$treadle":"int","value":"zzz"}',
        b'{"$treadle":"int","value":1}',
        b'{"$treadle":"float","value":"1.5"}',
        b'{"$treadle":"Decimal","value":"one"}',
        b'{"$treadle":"UUID","value":[]}',
        b'{"$treadle":"bytes","value":"***"}',
        b'{"$treadle":"complex","value":[1]}',
        b'{"$treadle":"timedelta","value":[1e99,0,0]}',
        b'{"$treadle":"dict","value":[[[1],2]]}',
        b'{"$treadle":"dict","value":[1]}',
        b'{"$treadle":"exception","value":null}',
    ],
)
def test_bad_bytes_raise_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_the_decode_error_of_a_bad_tag_names_its_path() -> None:
    with pytest.raises(DecodeError, match="not a date") as caught:
        decode(b'{"a":[0,{"$treadle":"date","value":"x"}]}')
    assert caught.value.path == "$.a[1]"


@pytest.mark.parametrize(
    "data",
    [
        b'{"$treadle":"new kind","value":1}',
        b'{"$treadle":5,"value":1}',
        b'{"$treadle":"set"}',
        b'{"$treadle":"set","value":[],"more":1}',
        b'{"$treadle":["set"],"value":[]}',
    ],
)
def test_json_with_unknown_tags_is_left_unchanged(data: bytes) -> None:
    assert decode(data) == msgspec.json.decode(data)


def test_decoding_an_exception_imports_and_calls_nothing() -> None:
    for name in ("os.system", "print", "eval", "BaseException", "SystemExit", "__import__", "type"):
        data = msgspec.json.encode(
            {"$treadle": "exception", "value": {"type": name, "message": "m", "args": ["x"]}}
        )
        assert isinstance(decode(data), RemoteError)


def test_of_duplicate_keys_the_last_wins() -> None:
    assert decode(b'{"a":1,"a":2}') == {"a": 2}


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.just("$treadle")
    | st.binary()
    | st.decimals()
    | st.uuids()
    | st.dates()
    | st.datetimes(
        timezones=st.none()
        | st.just(UTC)
        | st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
    )
    | st.times()
    | st.timedeltas()
)
HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.dates()
    | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
VALUES = st.recursive(
    SCALARS | st.sets(HASHABLE, max_size=4) | st.frozensets(HASHABLE, max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.just("$treadle"),
            inner,
            max_size=4,
        )
        | st.dictionaries(HASHABLE, inner, max_size=4)
    ),
    max_leaves=20,
)
KINDS = [
    "int",
    "float",
    "dict",
    "tuple",
    "set",
    "frozenset",
    "datetime",
    "date",
    "time",
    "timedelta",
    "Decimal",
    "UUID",
    "bytes",
    "complex",
    "exception",
]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["$treadle", "value"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.fixed_dictionaries(
            {
                "$treadle": st.sampled_from(KINDS),
                "value": inner,
            }
        )
    ),
    max_leaves=20,
)


@settings(max_examples=examples(300), deadline=None)
@given(VALUES)
@example(datetime(2000, 1, 1, tzinfo=timezone(timedelta(microseconds=1))))
@example(time(1, tzinfo=timezone(timedelta(microseconds=-999_999))))
def test_every_value_round_trips(value: Any) -> None:
    assert same(decode(encode(value)), value)


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode(errors="surrogatepass")))
@example(b"\xef\xbb\xbf1")
def test_arbitrary_bytes_raise_nothing_but_decode_error(data: bytes) -> None:
    try:
        decode(data)
    except DecodeError as error:
        str(error).encode()


@settings(max_examples=examples(300), deadline=None)
@given(JSON)
def test_arbitrary_tags_raise_nothing_but_decode_error(value: Any) -> None:
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        return
    try:
        decode(data)
    except DecodeError as error:
        str(error).encode()


def test_the_default_codec_satisfies_the_protocol() -> None:
    assert isinstance(default_codec, Codec)
    assert isinstance(JsonCodec(), Codec)


def test_check_size_refuses_more_than_the_limit() -> None:
    assert check_size(b"12345", 5, "the result") == b"12345"
    assert check_size(b"12345", None, "the result") == b"12345"
    with pytest.raises(PayloadTooLarge, match="the result takes 6 bytes, the limit is 5") as caught:
        check_size(b"123456", 5, "the result")
    assert (caught.value.size, caught.value.limit) == (6, 5)
