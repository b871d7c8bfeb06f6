"""How a type checker sees replaced handlers, and sessions in handlers. Checked, never run."""

from typing import TYPE_CHECKING, Any, assert_type

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from treadle import Context, Result, Treadle, work
from treadle.item import ItemState
from treadle.testing import assert_enqueued, enqueued

app = Treadle()
AsyncMaker = async_sessionmaker[AsyncSession]()
Maker = sessionmaker[Session]()


@work
async def add(a: int, b: int) -> int:
    return a + b


@work
async def flow(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue(add(n, n))


async def fake(a: int, b: int) -> int:
    return 0


def plain_fake(ctx: Context, a: int, b: int) -> Result[int]:
    return ctx.result(0)


async def fake_flow(ctx: Context, n: int) -> Result[None, int]:
    return ctx.queue(add(n, n))


app.replace(add, fake)
app.replace(add, plain_fake)
app.replace(add, lambda a, b: a - b)
app.replace(flow, fake_flow)


async def wrong(a: int) -> int:
    return a


async def wrong_result(a: int, b: int) -> str:
    return ""


if TYPE_CHECKING:
    app.replace(add, wrong)  # type: ignore[call-overload, arg-type, unused-ignore]  # pyright: ignore[reportCallIssue, reportArgumentType]
    app.replace(add, wrong_result)  # type: ignore[call-overload, arg-type, unused-ignore]  # pyright: ignore[reportCallIssue, reportArgumentType]


@work
async def in_session(ctx: Context) -> None:
    async with ctx.transaction(session=AsyncMaker) as session:
        assert_type(session, AsyncSession)
    async with ctx.transaction() as connection:
        assert_type(connection, Any)


@work
def in_plain_session(ctx: Context) -> None:
    with ctx.sync.transaction(session=Maker) as session:
        assert_type(session, Session)
    with ctx.sync.transaction() as connection:
        assert_type(connection, Any)


async def look() -> None:
    assert_type(await enqueued(app, add, a=1), list[ItemState])
    assert_type(await assert_enqueued(app, add(1, 2)), ItemState)
