"""Mistakes of a first program: each error names the mistake and the remedy."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from django.db import transaction
from sqlalchemy.ext import asyncio as async_sqlalchemy
from sqlalchemy.orm import sessionmaker

from treadle import Client, Context, InputError, MemoryBackend, Treadle, work
from treadle.codec import default_codec
from treadle.errors import DefinitionError
from treadle.store.user_transaction import check_tx, engine_of


@work
async def add(a: int, b: int = 0) -> int:
    return a + b


class Plain:
    """Neither a dataclass nor a model."""


class PlainCodec:
    def encode(self, value: Any) -> bytes:
        return default_codec.encode(None)

    def decode(self, data: bytes) -> Any:
        return Plain()


# -- the backend -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Treadle, Client])
@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (None, "backend=None is no backend: is the variable for its URL set? Leave it out for memory://"),
        (5, "backend=5 must be a URL, as in 'sqlite:///work.db', or a Backend"),
        (Path("work.db"), "is a path: write 'sqlite:///work.db'"),
        (MemoryBackend, "is a class: call it, as in MemoryBackend(...)"),
        ("sqlite:work.db", "write sqlite:///work.db (three slashes, four for an absolute path)"),
        ("sqlite:/var/work.db", "write sqlite:////var/work.db (three slashes, four for an absolute path)"),
        ("sqlite://work.db", "has a host, and SQLite has none: write sqlite:///work.db (three slashes)"),
        ("memory", "write memory://"),
        ("postgres:db", "write postgresql://user@host/database"),
        ("postgresql+pg8000://u:secret@h/db", "write postgresql:, since treadle has its own driver"),
        ("work.db", "use memory://, sqlite:///file.db, postgresql://... or redis://..."),
    ],
)
def test_what_is_not_a_backend(make: Any, backend: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make(backend)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


# -- definitions -------------------------------------------------------------------------------------------


def test_a_method_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Mailer\.send is a method, and a call has no 'self'"):

        class Mailer:
            @work
            async def send(self, to: str) -> None: ...

    with pytest.raises(TypeError, match="a class method needs a class"):

        class Other:
            @work  # type: ignore[arg-type]
            @classmethod
            async def send(cls, to: str) -> None: ...


def test_a_context_that_does_not_come_first_is_refused() -> None:
    with pytest.raises(TypeError, match="takes its Context as 'ctx': it must come first"):

        @work
        async def send(to: str, ctx: Context) -> None: ...


@work(name="takes plain")
async def takes_plain(a: int, plain: list[Plain]) -> int:
    return a


@work(name="returns plain")
async def returns_plain(a: int) -> Plain:
    return Plain()


@work(name="knows plain", codec=PlainCodec())
async def knows_plain(plain: Plain) -> Plain:
    return plain


@work(name="others")
async def others(a: complex, b: object, c: ValueError, d: Any, e: Path) -> Exception | None:
    return None


@pytest.mark.parametrize(
    ("type", "what"), [(takes_plain, "the parameter 'plain' has"), (returns_plain, "the result has")]
)
def test_a_plain_class_as_annotation_is_refused_when_it_is_registered(type: Any, what: str) -> None:
    message = f"{what} the class Plain, whose instances cannot be stored: make it a dataclass"
    with pytest.raises(DefinitionError, match=re.escape(message)):
        Treadle(work=[type])
    with pytest.raises(DefinitionError, match=re.escape(message)):
        Client().register(type)


def test_a_plain_class_that_the_codec_knows_is_allowed() -> None:
    Treadle(work=[knows_plain, others])
    Treadle(work=[takes_plain, returns_plain], codec=PlainCodec())


def test_an_annotation_that_cannot_be_resolved_yet_is_checked_at_a_later_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def later(a: DefinedLater) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    type = work(name="later")(later)
    Treadle(work=[type])
    monkeypatch.setitem(globals(), "DefinedLater", Plain)
    with pytest.raises(DefinitionError, match="has the class Plain"):
        Treadle(work=[type])
    monkeypatch.setitem(globals(), "DefinedLater", int)
    Treadle(work=[type])


async def test_a_plain_class_without_registration_is_refused_at_the_enqueue() -> None:
    app = Treadle()
    with pytest.raises(ValueError, match=r"plain\[0\]: Plain has no form in JSON.*make a class of yours"):
        await app.enqueue(takes_plain(1, [Plain()]))


# -- submitting --------------------------------------------------------------------------------------------


async def test_a_work_is_not_awaited() -> None:
    with pytest.raises(TypeError, match=r"`await app\.enqueue\(add\(\.\.\.\)\)\.result\(\)` submits it"):
        await add(1)  # type: ignore[misc]
    with pytest.raises(TypeError, match="a Work is not awaited"):
        await asyncio.gather(add(1))  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["enqueue", "delay", "apply_async"])
def test_a_work_type_does_not_submit(name: str) -> None:
    with pytest.raises(AttributeError, match=r"submit a call of it, as in `await app\.enqueue\(add\("):
        getattr(add, name)
    with pytest.raises(AttributeError, match=r"a work type has no attribute 'colour'$"):
        _ = add.colour  # type: ignore[attr-defined]


def test_a_work_has_no_result() -> None:
    with pytest.raises(AttributeError, match=r"nothing is submitted yet; `handle = await app\.enqueue"):
        add(1).result()  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:enqueue.*never awaited:RuntimeWarning")
def test_an_enqueue_that_is_not_awaited_has_no_id() -> None:
    with pytest.raises(AttributeError, match=r"`handle = await app\.enqueue\(\.\.\.\)` has \.id"):
        _ = Treadle().enqueue(add(1)).id  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: add, "not the work type 'tests.unit.test_mistakes.add' itself: call it, as in add(...)"),
        (lambda: add.fn(1), "not a coroutine of add: decorate add with @work"),
        (lambda: add.fn, "not the function add: decorate it with @work"),
        (lambda: [add(1)], "not several of them: use enqueue_many"),
        (lambda: 5, "enqueue takes a Work, as in enqueue(add(1, 2)), not 5"),
    ],
)
async def test_what_is_not_a_work_cannot_be_enqueued(given: Any, message: str) -> None:
    app = Treadle()
    with pytest.raises(TypeError, match=re.escape(message)):
        app.enqueue(given())
    with pytest.raises(TypeError, match=r"not (the|a|several|5)"):
        await app.enqueue_many([given()])
    with pytest.raises(TypeError, match=re.escape(message)):
        await asyncio.to_thread(lambda: app.sync.enqueue(given()))
    with pytest.raises(TypeError, match="takes a list of works"):
        await app.enqueue_many(add(1))  # type: ignore[arg-type]


# -- tx= ---------------------------------------------------------------------------------------------------

CONNECTION = sqlite3.connect(":memory:")
ENGINE = sqlalchemy.create_engine("sqlite://")
ASYNC_ENGINE = async_sqlalchemy.create_async_engine("postgresql+asyncpg://localhost/none")


async def connect() -> None: ...


class Pooled(asyncpg.Pool):  # type: ignore[type-arg]
    def __init__(self) -> None:
        pass

    def __del__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("tx", "message"),
    [
        (lambda: ENGINE, "is an engine, which has no transaction: pass a connection"),
        (lambda: ASYNC_ENGINE, "is an engine, which has no transaction: pass a connection"),
        (lambda: sessionmaker(ENGINE), "makes sessions: pass one of them"),
        (lambda: async_sqlalchemy.async_sessionmaker(ASYNC_ENGINE), "makes sessions: pass one of them"),
        (lambda: ENGINE.connect().begin(), "is a transaction: pass its connection"),
        (ENGINE.begin, "is a context manager that was not entered"),
        (Pooled, "is a pool: pass a connection that you have acquired"),
        (CONNECTION.cursor, "is a cursor: pass its connection"),
        (transaction.atomic, "is a transaction: pass `django.db.connection`"),
        (lambda: contextlib.nullcontext, "must be a connection that is in a transaction"),
        (lambda: "sqlite:///work.db", "must be a connection that is in a transaction"),
        (lambda: True, "must be a connection that is in a transaction"),
        (connect, "is a coroutine: await it first"),
    ],
)
async def test_what_is_not_a_connection_is_refused_with_every_backend(tx: Any, message: str) -> None:
    app = Treadle()
    with pytest.raises(InputError, match=re.escape(message)):
        app.enqueue(add(1), tx=tx())


class FakeMySql:
    __module__ = "pymysql.connections"


@pytest.mark.parametrize(
    ("connection", "engine"),
    [
        (lambda: CONNECTION, "SQLite"),
        (ENGINE.connect, "SQLite"),
        (lambda: async_sqlalchemy.AsyncSession(ASYNC_ENGINE), "PostgreSQL"),
        (FakeMySql, "MySQL"),
        (object, None),
    ],
)
def test_the_engine_of_a_connection(connection: Any, engine: str | None) -> None:
    assert engine_of(connection()) == engine


def test_a_connection_is_taken_as_it_is() -> None:
    for connection in (CONNECTION, object()):
        assert check_tx(connection, "tx") is connection


async def test_a_connection_of_another_engine_is_refused_by_sqlite(tmp_path: Path) -> None:
    async with Client(f"sqlite:///{tmp_path}/work.db") as client:
        with pytest.raises(InputError, match=r"is a connection to MySQL, and the items of this app are"):
            await client.enqueue(add(1), tx=FakeMySql())
        with (
            ENGINE.connect() as connection,
            pytest.raises(InputError, match=r"is to memory, not to .*work\.db"),
        ):
            await client.enqueue(add(1), tx=connection)


def test_a_url_as_a_transaction_shows_no_password() -> None:
    app = Treadle()
    with pytest.raises(InputError) as caught:
        app.enqueue(add(1, 2), tx="postgresql://me:secret@host/db")
    assert "secret" not in str(caught.value)
