"""Codec, cron, cursors and names with arbitrary input."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.tiers import examples
from treadle import next_after
from treadle.backend import Backend
from treadle.backends.memory import MemoryBackend
from treadle.backends.postgres import PostgresBackend
from treadle.backends.redis import RedisBackend
from treadle.backends.sqlite import SqliteBackend
from treadle.codec import default_codec
from treadle.errors import CronError, DecodeError, InputError
from treadle.item import Filter, Item, Submission

MANY = settings(max_examples=int(os.environ.get("TREADLE_FUZZ_EXAMPLES", examples(300))), deadline=None)
FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))

marks = st.sampled_from(
    ('{"$treadle":', '"value":', "[", "{", "}", "]", ",", '"', "1e400", "-0", "null", "\\u")
)


@MANY
@given(
    st.one_of(st.binary(max_size=300), st.lists(marks, max_size=30).map(lambda some: "".join(some).encode()))
)
@example(b"[" * 20_000)
@example(b'{"a":' * 20_000)
@example(b"1" * 6_000)
@example(b'{"$treadle":"bytes","value":1}')
@example(b'{"$treadle":"datetime","value":"never"}')
@example(b'{"$treadle":"int","value":"' + b"9" * 6_000 + b'"}')
@example(b'{"$treadle":"decimal","value":"1e999999999999"}')
@example(b'{"$treadle":["x"],"value":null}')
@example(b'"\\ud800"')
def test_any_bytes_decode_or_raise_decode_error(data: bytes) -> None:
    try:
        default_codec.decode(data)
    except DecodeError:
        return


@MANY
@given(st.text(alphabet="0123456789*/,-LW#? ?@JANMONa\x00", max_size=40))
@example("0 0 31 2 *")
@example("* * * * * *")
@example("*/0 * * * *")
@example("99999999999999999999 * * * *")
def test_any_cron_text_parses_or_raises_cron_error(text: str) -> None:
    try:
        next_after(text, 1_700_000_000.0, "UTC")
    except CronError:
        return


NAMES = (
    "'; drop table items; --",
    '"; delete from treadle.items; --',
    "a' or '1'='1",
    "%",
    "_",
    "\\",
    "$1",
    ":name",
    "?",
    "{}",
    "x" * 255,
    "😀",
    "treadle:schedule",
)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"])
async def test_names_may_contain_sql(kind: str, request: pytest.FixtureRequest) -> None:
    """An item is found by its own names and by no others, in every field that holds a name."""
    backend, directory = _backend(kind, request)
    await backend.open()
    try:
        for name in NAMES:
            item = Item(
                id=name, type=name, input=b"", tenant=name, queue=name, lane=name, key=name, workflow=name
            )
            await backend.submit([Submission((item,))])
        for name in NAMES:
            (state,) = await backend.get([name], tenant=name)
            assert state is not None
            assert (state.type, state.queue, state.lane, state.workflow) == (name,) * 4
            for field in ("tenant", "type", "queue", "workflow", "group_id", "key"):
                page = await backend.list(Filter(**{field: name}))
                assert [one.id for one in page.items] == [name], field
        assert len((await backend.list(Filter())).items) == len(NAMES)
    finally:
        await backend.close()
        if directory is not None:
            shutil.rmtree(directory)


@FEW
@given(cursor=st.text(max_size=40))
@example("0")
@example("-1")
@example("99999999999999999999999")
@example("'; drop table items; --")
@example("\x00")
async def test_any_cursor_is_accepted_or_raises_input_error(cursor: str) -> None:
    backend = MemoryBackend()
    try:
        await backend.list(Filter(), cursor=cursor)
    except InputError:
        return


def _backend(kind: str, request: pytest.FixtureRequest) -> tuple[Backend, Path | None]:
    if kind == "memory":
        return MemoryBackend(), None
    if kind == "sqlite":
        directory = Path(tempfile.mkdtemp())
        return SqliteBackend(directory / "work.db"), directory
    if kind == "redis":
        return RedisBackend(request.getfixturevalue("valkey_url")), None
    return PostgresBackend(request.getfixturevalue("prepared_url")), None
