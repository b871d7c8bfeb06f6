"""treadle. Worker: treadle worker after:app. Program: python after.py"""

import os

from treadle import Context, Result, Retry, Treadle, work


@work(retry=Retry(attempts=4, base=0))
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
def with_tax(ctx: Context) -> int:
    cents = ctx.sync.result_of(price)
    return cents + cents // 5


@work
def taxed_price(ctx: Context, item: str) -> Result[None, int]:
    return ctx.queue(price(item)).next(with_tax())


@work
def total(ctx: Context) -> int:
    return sum(ctx.sync.results(price))


@work
def basket(ctx: Context, items: list[str]) -> Result[None, int]:
    return ctx.queue([price(item) for item in items]).next(total())


app = Treadle(
    os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0"),
    work=[charge, remind, price, with_tax, taxed_price, total, basket],
)


def main() -> None:
    print(app.sync.enqueue(charge(7, cents=500)).result(timeout=60))
    print(app.sync.enqueue(remind("ada"), delay=0.2).result(timeout=60))
    print("with tax", app.sync.enqueue(taxed_price("lamp")).group(timeout=60))
    print("total", app.sync.enqueue(basket(["lamp", "chair"])).group(timeout=60))


if __name__ == "__main__":
    main()
    app.sync.close()
