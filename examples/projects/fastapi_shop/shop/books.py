"""The work of every night: what the shop took in on the day before."""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from sqlalchemy import Date, cast, func, select
from treadle import Context, Schedule, Work, work

from shop.models import Day, Order, Session

PLACE = ZoneInfo("Europe/Paris")


@work(name="books.close_day")
async def close_day(ctx: Context, day: date) -> int:
    """Write down the turnover of a day. Returns it in cents."""
    placed_on = cast(func.timezone(PLACE.key, Order.placed_at), Date)
    async with ctx.transaction(session=Session) as session:
        query = select(func.count(), func.coalesce(func.sum(Order.cents), 0))
        found = await session.execute(query.where(Order.status == "shipped", placed_on == day))
        orders, cents = found.one()
        await session.merge(Day(day=day, orders=orders, cents=cents))
    return cents


def yesterday() -> Work[int, int]:
    return close_day(datetime.now(PLACE).date() - timedelta(days=1))


CLOSING = Schedule("close the day", cron="0 3 * * *", tz=PLACE.key, run=yesterday, catch_up="one")
"""At three in the morning, once in the whole fleet. A night that was missed is made up for."""
