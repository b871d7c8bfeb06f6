"""Headers: what may be one, and how levels and parents add up."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.base.headers import MAX_BYTES, MAX_HEADERS, check_headers, headers_of, trace_id_of
from treadle.errors import InputError
from treadle.options import check_options, resolve


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("request", "must map names to texts"),
        ([("request", "r-1")], "must map names to texts"),
        ({"a": "1", "request": 1}, r"headers\['request'\]=1 must be a str, not int: write str"),
        ({"request": None}, "must be a str, not NoneType"),
        ({1: "r-1"}, "must be a str"),
        ({"": "r-1"}, "must not be empty"),
        ({"a\nb": "r-1"}, "control characters"),
        ({"n" * 256: "r-1"}, "longer than 255 bytes"),
        ({"request": "\ud800"}, "lone surrogates"),
        ({str(n): "" for n in range(MAX_HEADERS + 1)}, "at most 64"),
        ({"request": "x" * MAX_BYTES}, "at most 8,192"),
        ({"request": "é" * (MAX_BYTES // 2)}, "at most 8,192"),
    ],
)
def test_bad_headers_are_refused_by_name(given: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as raised:
        check_options({"headers": given}, "enqueue")
    assert raised.value.parameters == ("headers",)


def test_headers_are_copied() -> None:
    given = {"request": "line one\nline two", "empty": ""}
    checked = check_headers(given, "headers")
    given["request"] = "changed"
    assert checked == {"request": "line one\nline two", "empty": ""}


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([{}], None),
        ([{"headers": None}], None),
        ([{"headers": {"a": "1"}}, {}], {"a": "1"}),
        ([{"headers": {"a": "1", "b": "1"}}, {"headers": {"b": "2"}}], {"a": "1", "b": "2"}),
        ([{"headers": {"a": "1"}}, {"headers": {}}], {}),
        ([{"headers": {"a": "1"}}, {"headers": None}], {"a": "1"}),
    ],
)
def test_a_stronger_level_adds_its_headers(levels: list[dict[str, Any]], expected: object) -> None:
    assert resolve(*levels).headers == expected


FORGED = b'{"headers":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}'


def test_the_trace_is_not_read_from_headers() -> None:
    assert trace_id_of(FORGED) is None
    assert trace_id_of(FORGED.replace(b"headers", b"trace")) == "0af7651916cd43dd8448eb211c80319c"
    assert trace_id_of(b'{"trace":{"traceparent":"x"}}') is None
    assert trace_id_of(b'{"trace":') is None


@pytest.mark.parametrize("options", [b"", b"{}", b"not json", b'{"headers": 1}', b"[" * 100_000])
def test_options_without_headers_have_none(options: bytes) -> None:
    assert headers_of(options) == {}
