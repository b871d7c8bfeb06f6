"""SQLAlchemy: sessions in the transaction of a handler, and events after the commit of a session."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import JSON, ForeignKey, create_engine, event, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
    relationship,
    scoped_session,
    sessionmaker,
)

from tests.engine.kit import PATIENCE, Seen
from treadle import Context, InputError, Retry, Treadle, UnsupportedError, WorkFailed, work
from treadle.events import Queued

ONCE = Retry(attempts=1)


class Base(DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customer"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    extra: Mapped[dict[str, Any]] = mapped_column(JSON().with_variant(JSONB(), "postgresql"), default=dict)
    orders: Mapped[list[Order]] = relationship(lazy="selectin")


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int] = mapped_column(ForeignKey("customer.id"))


@work(name="confirm")
async def confirm(order: int) -> int:
    return order


def driver_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


def create_tables(url: str) -> None:
    engine = create_engine(driver_url(url, "psycopg"))
    Base.metadata.create_all(engine)
    engine.dispose()


@pytest.fixture
def shop_url(warm_url: str) -> str:
    """A database with the tables of the user, and those of treadle."""
    create_tables(warm_url)
    return warm_url


@pytest.fixture(params=["asyncpg", "psycopg"])
async def engine(request: pytest.FixtureRequest, shop_url: str) -> AsyncGenerator[AsyncEngine]:
    engine = create_async_engine(driver_url(shop_url, request.param))
    yield engine
    await engine.dispose()


# -- in the transaction of a handler -----------------------------------------------------------------------


async def test_a_session_is_in_the_transaction_of_the_handler(shop_url: str, engine: AsyncEngine) -> None:
    """The engine's own driver does not matter."""
    maker = async_sessionmaker(engine)

    @work(name="order", retry=Retry(attempts=2, base=0, jitter=0))
    async def order(ctx: Context, name: str) -> int:
        async with ctx.transaction(session=maker) as session:
            customer = Customer(name=name, extra={"vip": [1, None]}, orders=[Order(), Order()])
            session.add(customer)
            await session.flush()
            await app.enqueue(confirm(customer.id), tx=session)
        if ctx.attempt == 1:
            raise ConnectionError("after the block")
        return customer.id  # it is not expired

    async with Treadle(shop_url, work=[order, confirm]) as app:
        handle = await app.enqueue(order("ada"))
        first = await handle.result(PATIENCE)
        async with maker() as session:
            (customer,) = (await session.scalars(select(Customer))).all()
            assert (customer.id, customer.name, len(customer.orders)) == (first, "ada", 2)
            assert customer.extra == {"vip": [1, None]}
        confirmed = (await app.list(type="confirm")).items
        assert len(confirmed) == 1, "that of the first attempt was rolled back"


async def test_a_session_reads_json_and_leaves_the_connection_as_it_was(shop_url: str) -> None:
    """The codecs of asyncpg belong to its connection, which other handlers use."""
    maker = async_sessionmaker[AsyncSession]()

    @work(name="read")
    async def read(ctx: Context) -> Any:
        async with ctx.transaction(session=maker) as session:
            session.add(Customer(name="bob", extra={"a": {"b": 1}}))
            await session.flush()
            session.expire_all()
            return (await session.scalars(select(Customer))).one().extra

    @work(name="raw")
    async def raw(ctx: Context) -> str:
        async with ctx.transaction() as tx:
            return str(await tx.fetchval("select extra from customer"))

    async with Treadle(shop_url, work=[read, raw]) as app:
        assert await app.enqueue(read()).result(PATIENCE) == {"a": {"b": 1}}
        for _ in range(4):
            assert await app.enqueue(raw()).result(PATIENCE) == '{"a": {"b": 1}}'


async def test_commit_and_rollback_of_a_session_are_savepoints(shop_url: str) -> None:
    maker = async_sessionmaker[AsyncSession](expire_on_commit=False)

    @work(name="several")
    async def several(ctx: Context) -> list[str]:
        async with ctx.transaction(session=maker) as session:
            session.add(Customer(name="ada"))
            await session.commit()
            session.add(Customer(name="ada"))
            with pytest.raises(IntegrityError):
                await session.flush()
            await session.rollback()
            async with session.begin_nested():
                session.add(Customer(name="bob"))
            return list((await session.scalars(select(Customer.name).order_by(Customer.name))).all())

    async with Treadle(shop_url, work=[several]) as app:
        assert await app.enqueue(several()).result(PATIENCE) == ["ada", "bob"]


async def test_a_session_that_fails_undoes_everything(shop_url: str) -> None:
    """Also what it committed itself. The error of the last flush fails the attempt."""
    maker = async_sessionmaker[AsyncSession]()

    @work(name="twice", retry=ONCE)
    async def twice(ctx: Context) -> None:
        async with ctx.transaction(session=maker) as session:
            session.add(Customer(name="ada"))
            await session.commit()
            await ctx.claim("key")
            session.add(Customer(name="ada"))

    @work(name="look")
    async def look(ctx: Context) -> tuple[int, bool]:
        async with ctx.transaction(session=maker) as session:
            return len((await session.scalars(select(Customer))).all()), await ctx.claim("key")

    async with Treadle(shop_url, work=[twice, look]) as app:
        with pytest.raises(WorkFailed, match="IntegrityError"):
            await app.enqueue(twice()).result(PATIENCE)
        assert await app.enqueue(look()).result(PATIENCE) == (0, True)


async def test_a_handler_that_times_out_in_its_session_is_rolled_back(shop_url: str) -> None:
    maker = async_sessionmaker[AsyncSession]()

    @work(name="slow", timeout=0.1, retry=ONCE)
    async def slow(ctx: Context) -> None:
        async with ctx.transaction(session=maker) as session:
            session.add(Customer(name="ada"))
            await session.flush()
            await asyncio.Event().wait()

    @work(name="count")
    async def count(ctx: Context) -> int:
        async with ctx.transaction(session=maker) as session:
            return len((await session.scalars(select(Customer))).all())

    async with Treadle(shop_url, work=[slow, count]) as app:
        with pytest.raises(WorkFailed, match="timeout"):
            await app.enqueue(slow()).result(PATIENCE)
        assert await app.enqueue(count()).result(PATIENCE) == 0


def test_a_plain_function_has_a_session_too(shop_url: str) -> None:
    """Of a sync engine, in a thread, on the connection of asyncpg."""
    engine = create_engine(driver_url(shop_url, "psycopg"))
    maker = sessionmaker(engine)

    @work(name="order", retry=Retry(attempts=2, base=0, jitter=0))
    def order(ctx: Context, name: str) -> list[int]:
        with ctx.sync.transaction(session=maker) as session:
            session.add(Customer(name=name, extra={"n": ctx.attempt}, orders=[Order(), Order()]))
            session.commit()
            customer = session.scalars(select(Customer)).one()
            app.sync.enqueue(confirm(customer.id), tx=session)
            orders = [each.id for each in customer.orders]
        if ctx.attempt == 1:
            raise ConnectionError("after the block")
        return [customer.extra["n"], len(orders)]

    app = Treadle(shop_url, work=[order, confirm])
    with app.sync:
        assert app.sync.enqueue(order("ada")).result(PATIENCE) == [2, 2]
        assert len(app.sync.list(type="confirm").items) == 1
    with maker() as session:
        assert [each.name for each in session.scalars(select(Customer))] == ["ada"]
    engine.dispose()


# -- on SQLite ---------------------------------------------------------------------------------------------


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    Base.metadata.create_all(engine)
    engine.dispose()
    return tmp_path / "shop.db"


@pytest.mark.parametrize("kind", ["loop", "thread"])
async def test_a_session_on_sqlite(sqlite_file: Path, kind: str) -> None:
    engine = create_engine(f"sqlite:///{sqlite_file}")
    maker = sessionmaker(engine)

    def fill(ctx: Context, session: Session) -> None:
        session.add(Customer(name="ada", extra={"n": ctx.attempt}, orders=[Order()]))
        session.commit()
        session.add(Customer(name="ada"))
        with pytest.raises(IntegrityError):
            session.flush()
        session.rollback()

    if kind == "loop":

        @work(name="order", retry=Retry(attempts=2, base=0, jitter=0))
        async def order(ctx: Context) -> int:
            async with ctx.transaction(session=maker) as session:
                fill(ctx, session)
                await app.enqueue(confirm(1), tx=session)
            return 1 // (ctx.attempt - 1)

    else:

        @work(name="order", retry=Retry(attempts=2, base=0, jitter=0))
        def order(ctx: Context) -> int:
            with ctx.sync.transaction(session=maker) as session:
                fill(ctx, session)
                app.sync.enqueue(confirm(1), tx=session)
            return 1 // (ctx.attempt - 1)

    async with Treadle(f"sqlite+pysqlite:///{sqlite_file}", work=[order, confirm]) as app:
        assert await app.enqueue(order()).result(PATIENCE) == 1
        assert len((await app.list(type="confirm")).items) == 1
    with maker() as session:
        assert [(each.name, each.extra) for each in session.scalars(select(Customer))] == [("ada", {"n": 2})]
    engine.dispose()


async def test_an_async_session_on_sqlite(sqlite_file: Path) -> None:
    pytest.importorskip("aiosqlite")
    engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_file}")
    maker = async_sessionmaker(engine)

    @work(name="order", retry=Retry(attempts=2, base=0, jitter=0))
    async def order(ctx: Context) -> int:
        async with ctx.transaction(session=maker) as session:
            session.add(Customer(name="ada", orders=[Order()]))
            await session.commit()
            await app.enqueue(confirm(1), tx=session)
        return 1 // (ctx.attempt - 1)

    async with Treadle(f"sqlite+aiosqlite:///{sqlite_file}", work=[order, confirm]) as app:
        assert await app.enqueue(order()).result(PATIENCE) == 1
        assert len((await app.list(type="confirm")).items) == 1
    async with maker() as session:
        assert len((await session.scalars(select(Customer))).all()) == 1
    await engine.dispose()


@pytest.mark.parametrize("give", ["session", "connection", "scoped"])
async def test_a_submit_in_a_session_on_sqlite(sqlite_file: Path, give: str) -> None:
    engine, seen = create_engine(f"sqlite:///{sqlite_file}"), Seen()
    maker = sessionmaker(engine)
    session: Any = scoped_session(maker, scopefunc=lambda: 1) if give == "scoped" else maker()

    def tx() -> Any:
        return session.connection() if give == "connection" else session

    async with Treadle(f"sqlite:///{sqlite_file}", work=[confirm], on_event=seen, poll_interval=60) as app:
        handle = await app.enqueue(confirm(1), tx=tx())  # nothing was changed before
        session.rollback()
        assert await app.get(handle) == [None]
        session.add(Customer(name="ada"))
        session.flush()
        handle = await app.enqueue(confirm(2), tx=tx())
        assert seen.of(Queued) == []
        session.commit()
        assert await handle.result(PATIENCE) == 2
        assert [each.id for each in seen.of(Queued)] == ([] if give == "connection" else [handle.id])
    session.close()
    engine.dispose()


@pytest.mark.parametrize("give", ["session", "connection", "driver"])
async def test_a_submit_in_an_async_session_on_sqlite(sqlite_file: Path, give: str) -> None:
    pytest.importorskip("aiosqlite")
    engine, seen = create_async_engine(f"sqlite+aiosqlite:///{sqlite_file}"), Seen()
    async with (
        Treadle(f"sqlite:///{sqlite_file}", work=[confirm], on_event=seen, poll_interval=60) as app,
        AsyncSession(engine) as session,
    ):
        session.add(Customer(name="ada"))
        await session.flush()
        connection = await session.connection()
        driver = (await connection.get_raw_connection()).driver_connection
        used: Any = {"session": session, "connection": connection, "driver": driver}[give]
        handle = await app.enqueue(confirm(1), tx=used)
        await session.rollback()
        assert await app.get(handle) == [None]
        session.add(Customer(name="bob"))
        await session.flush()
        handle = await app.enqueue(confirm(2), tx=session)
        await session.commit()
        assert await handle.result(PATIENCE) == 2
        assert [each.id for each in seen.of(Queued)] == [handle.id]
    await engine.dispose()


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("maker", "problem"),
    [
        (sessionmaker(create_engine("postgresql+psycopg://")), "makes sessions on PostgreSQL"),
        (async_sessionmaker(create_async_engine("postgresql+asyncpg://")), "makes sessions on PostgreSQL"),
        (create_engine("sqlite://"), "must be a sessionmaker"),
        (dict, "must be a sessionmaker"),
    ],
)
async def test_what_makes_no_session_of_this_database_is_refused(
    sqlite_file: Path, maker: Any, problem: str
) -> None:
    @work(name="wrong", retry=ONCE)
    async def wrong(ctx: Context) -> None:
        with pytest.raises(InputError, match=problem):
            async with ctx.transaction(session=maker):
                raise AssertionError

    async with Treadle(f"sqlite:///{sqlite_file}", work=[wrong]) as app:
        await app.enqueue(wrong()).result(PATIENCE)


async def test_a_session_that_blocks_is_refused_on_the_loop(shop_url: str) -> None:
    @work(name="blocks", retry=ONCE)
    async def blocks(ctx: Context) -> None:
        with pytest.raises(InputError, match="use async_sessionmaker"):
            async with ctx.transaction(session=sessionmaker[Session]()):
                raise AssertionError

    @work(name="awaits", retry=ONCE)
    def awaits(ctx: Context) -> None:
        with (
            pytest.raises(InputError, match="use sessionmaker"),
            ctx.sync.transaction(session=async_sessionmaker[AsyncSession]()),
        ):
            raise AssertionError

    async with Treadle(shop_url, work=[blocks, awaits]) as app:
        await app.enqueue(blocks()).result(PATIENCE)
        await app.enqueue(awaits()).result(PATIENCE)


async def test_memory_has_no_sessions() -> None:
    @work(name="plain", retry=ONCE)
    async def plain(ctx: Context) -> None:
        with pytest.raises(UnsupportedError):
            async with ctx.transaction(session=sessionmaker[Session]()):
                raise AssertionError

    async with Treadle(work=[plain]) as app:
        await app.enqueue(plain()).result(PATIENCE)


# -- after the commit of a session -------------------------------------------------------------------------


async def test_a_session_announces_what_it_has_committed(shop_url: str, engine: AsyncEngine) -> None:
    seen = Seen()
    async with Treadle(shop_url, work=[confirm], on_event=seen, notify=False, poll_interval=60) as app:
        async with AsyncSession(engine) as session:
            handle = await app.enqueue(confirm(1), tx=session)
            assert seen.of(Queued) == []
            await session.commit()
            assert [each.id for each in seen.of(Queued)] == [handle.id]
            assert await handle.result(PATIENCE) == 1, "woken without a notification and without a poll"
            await app.enqueue(confirm(2), tx=session)
            await session.rollback()
            (second,) = await app.enqueue_many([confirm(3)], tx=session)
            await session.commit()
            await app.enqueue(confirm(4), tx=session)
        assert [each.id for each in seen.of(Queued)] == [handle.id, second.id]
        assert seen.names(handle.id)[:2] == ["Queued", "Started"]


async def test_a_savepoint_that_is_rolled_back_is_not_announced(shop_url: str, engine: AsyncEngine) -> None:
    seen = Seen()
    async with Treadle(shop_url, work=[confirm], on_event=seen) as app:
        async with AsyncSession(engine) as session, session.begin():
            nested = await session.begin_nested()
            undone = await app.enqueue(confirm(1), tx=session)
            await nested.rollback()
            async with session.begin_nested():
                kept = await app.enqueue(confirm(2), tx=session)
            assert seen.of(Queued) == []
        assert (await seen.until(Queued, kept.id)).id == kept.id
        assert await app.get(undone) == [None]
        assert [each.id for each in seen.of(Queued)] == [kept.id]


async def test_a_session_that_has_joined_a_transaction_announces_nothing(shop_url: str) -> None:
    """Its commit is not the end of that transaction: the usual way to test with a database."""
    engine, seen = create_async_engine(driver_url(shop_url, "asyncpg")), Seen()
    async with Treadle(shop_url, work=[confirm], on_event=seen) as app, engine.connect() as connection:
        outer = await connection.begin()
        async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
            handle = await app.enqueue(confirm(1), tx=session)
            await session.commit()
        await outer.rollback()
        assert await app.get(handle) == [None]
        assert seen.of(Queued) == []
    await engine.dispose()


@pytest.mark.parametrize("scoped", [False, True])
def test_a_session_without_a_loop_announces_on_the_loop_of_the_app(shop_url: str, scoped: bool) -> None:
    engine, seen = create_engine(driver_url(shop_url, "psycopg")), Seen()
    make: Callable[[], Any] = sessionmaker(engine)
    app = Treadle(shop_url, work=[confirm], on_event=seen, notify=False, poll_interval=60)
    with app.sync:
        session = scoped_session(make) if scoped else make()  # type: ignore[arg-type]
        handle = app.sync.enqueue(confirm(1), tx=session)
        assert seen.of(Queued) == []
        session.commit()
        assert handle.result(PATIENCE) == 1
        assert [each.id for each in seen.of(Queued)] == [handle.id]
        session.close()
    engine.dispose()


async def test_a_session_is_not_kept_alive(shop_url: str) -> None:
    engine = create_async_engine(driver_url(shop_url, "asyncpg"))
    alive: list[int] = []

    @event.listens_for(Session, "after_commit")
    def commits(session: Any) -> None:
        alive.append(1)

    async with Treadle(shop_url, work=[confirm]) as app:
        for n in range(3):
            async with AsyncSession(engine) as session, session.begin():
                await app.enqueue(confirm(n), tx=session)
    from treadle.store import user_transaction

    del session
    gc.collect()
    assert len(user_transaction._pending) == 0
    event.remove(Session, "after_commit", commits)
    assert len(alive) == 3
    await engine.dispose()


# -- URLs --------------------------------------------------------------------------------------------------


async def test_the_url_of_an_engine_is_the_url_of_an_app(warm_url: str, tmp_path: Path) -> None:
    mark = "&" if "?" in warm_url else "?"
    for url in (
        driver_url(warm_url, "asyncpg") + f"{mark}prepared_statement_cache_size=0",
        driver_url(warm_url, "psycopg"),
        f"sqlite+aiosqlite:///{tmp_path / 'work.db'}",
    ):
        async with Treadle(url, work=[confirm]) as app:
            assert await app.enqueue(confirm(1)).result(PATIENCE) == 1


def test_an_unknown_driver_is_refused() -> None:
    with pytest.raises(InputError, match="write postgresql:, since treadle has its own driver"):
        Treadle("postgresql+pg8000://localhost/shop")
