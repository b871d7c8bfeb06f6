"""treadle. Worker: treadle worker after:app. Program: python after.py"""

import os

from treadle import Context, Result, Retry, Treadle, work


@work(retry=Retry(attempts=4, base=0.1))
def charge(ctx: Context, order: int, cents: int) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} charged at attempt {ctx.attempt}"


@work
def ship(ctx: Context, order: int) -> str:
    return f"{ctx.sync.result_of(charge)}, shipped"


@work(name="checkout", queue="orders")
def checkout(ctx: Context, order: int) -> Result[None, str]:
    return ctx.queue(charge(order, cents=500)).next(ship(order), delay=0.2)


app = Treadle(os.environ.get("STORE_URL", "postgresql://127.0.0.1/shop"), work=[charge, ship, checkout])


def main() -> None:
    handle = app.sync.enqueue(checkout(7), key="order-7", key_scope="any")
    again = app.sync.enqueue(checkout(7), key="order-7", key_scope="any")
    print("the same workflow:", again.id == handle.id)
    print(handle.group(timeout=60))


if __name__ == "__main__":
    main()
    app.sync.close()
