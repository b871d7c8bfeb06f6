"""Forms: the fields that a visitor has sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request

from treadle.errors import InputError
from treadle.operate.filters import read_start

MOST_BYTES: Final = 1_000_000
MOST_FIELDS: Final = 5_000
READ_SECONDS: Final = 30.0
"""For the whole form. A form that is sent more slowly is refused."""


class Form:
    """The fields of a form. A field may have several values."""

    def __init__(self, values: Mapping[str, list[str]]) -> None:
        self._values = values

    def get(self, name: str, default: str = "") -> str:
        """The value of a field, without surrounding blanks."""
        found = self._values.get(name)
        return found[0].strip() if found else default

    def text(self, name: str) -> str:
        """The value of a field as it was typed, with line breaks as Python writes them."""
        found = self._values.get(name)
        return found[0].replace("\r\n", "\n") if found else ""

    def all(self, name: str) -> list[str]:
        """All values of a field that are not empty."""
        return [value for value in self._values.get(name, ()) if value]

    def has(self, name: str) -> bool:
        return name in self._values

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """All fields and values."""
        return [(name, value) for name, values in self._values.items() for value in values]


async def read_form(request: Request) -> Form:
    """The form of a request: fields of HTML, or one object of JSON. `InputError` if it is neither."""
    form: Form | None = getattr(request.state, "form", None)
    if form is None:
        form = request.state.form = await _read(request)
    return form


async def _read(request: Request) -> Form:
    try:
        async with asyncio.timeout(READ_SECONDS):
            body = await _read_body(request)
    except (TimeoutError, ClientDisconnect):
        raise InputError("the form did not arrive whole") from None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json":
        return Form(_of_json(bytes(body)))
    values: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError as error:
        raise InputError(f"the form cannot be read: {error}") from None
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return Form(values)


async def _read_body(request: Request) -> bytearray:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise InputError(f"the form is larger than {MOST_BYTES:,} bytes")
    return body


def _of_json(body: bytes) -> dict[str, list[str]]:
    try:
        fields = msgspec.json.decode(body, type=dict[str, str | bool | int | float | list[str] | None])
    except msgspec.DecodeError as error:
        raise InputError(
            f"the request is no JSON object of texts, numbers and lists of texts: {error}"
        ) from None
    return {name: _texts(value) for name, value in fields.items() if value is not None and value is not False}


def _texts(value: str | bool | float | list[str]) -> list[str]:
    if isinstance(value, list):
        return value
    return ["1" if value is True else str(value)]


LONGEST_NUMBER: Final = 100


def read_instant(text: str, field: str, now: float) -> float:
    """Epoch seconds: `now`, from now on (`5m`), or an instant, in UTC unless it says otherwise."""
    if text == "now":
        return now
    try:
        return read_start(text[:LONGEST_NUMBER].removeprefix("+"), now, field)
    except InputError:
        problem = "must be now, a time from now such as 5m or 2h, or an instant such as 2030-01-31 09:00"
        raise InputError.of(field, text, problem) from None


def read_whole(text: str, field: str) -> int:
    try:
        return int(text[:LONGEST_NUMBER])
    except ValueError:
        raise InputError.of(field, text, "must be a whole number") from None


def read_json(text: str, field: str) -> Any:
    """A JSON value."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{field} is no JSON: {error}", parameters=(field,)) from None
