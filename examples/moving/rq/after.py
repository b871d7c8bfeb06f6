"""treadle. Worker: treadle worker after:app. Program: python after.py"""

import os

from treadle import Context, Retry, Treadle, work


@work(retry=Retry(attempts=4, base=0), timeout=60)
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


app = Treadle(os.environ.get("STORE_URL", "redis://127.0.0.1:6379/0"), work=[charge, remind, price, total])


def main() -> None:
    print(app.sync.enqueue(charge(7, cents=500)).result(timeout=60))
    print(app.sync.enqueue(remind("ada"), delay=0.2).result(timeout=60))
    prices = app.sync.enqueue_many([price(item) for item in ("lamp", "chair")])
    print("total", app.sync.enqueue(total(), after=prices).result(timeout=60))


if __name__ == "__main__":
    main()
    app.sync.close()
