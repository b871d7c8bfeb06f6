"""treadle. Worker: treadle worker after:app. Program: python after.py"""

import os
from typing import Literal

from treadle import Context, Result, Retry, Treadle, work
from treadle.flow_control import FailureInfo


def only_connections(error: Exception, info: FailureInfo) -> Literal["retry", "abort"]:
    return "retry" if isinstance(error, ConnectionError) else "abort"


@work(retry=Retry(attempts=4, base=0.1), on_failure=only_connections)
def charge(ctx: Context, order: int, cents: int) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} charged at attempt {ctx.attempt}"


@work
def remind(customer: str) -> str:
    return f"{customer} reminded"


@work
def price(item: str) -> int:
    return 100 * len(item)


@work
def total(ctx: Context) -> int:
    return sum(ctx.sync.results(price))


@work
def basket(ctx: Context, items: list[str]) -> Result[None, int]:
    return ctx.queue([price(item) for item in items]).next(total())


app = Treadle(
    os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0"), work=[charge, remind, price, total, basket]
)


def main() -> None:
    print(app.sync.enqueue(charge(7, cents=500)).result(timeout=60))
    print(app.sync.enqueue(remind("ada"), delay=0.2, expires_in=60).result(timeout=60))
    print("total", app.sync.enqueue(basket(["lamp", "chair"])).group(timeout=60))


if __name__ == "__main__":
    main()
    app.sync.close()
