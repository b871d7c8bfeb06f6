"""treadle. Worker: treadle worker after:app. Program: python after.py"""

import itertools
import os

from treadle import Context, Retry, Step, Treadle, work

attempts = itertools.count(1)


def charge(order: int, cents: int) -> str:
    attempt = next(attempts)
    if attempt == 1:
        raise ConnectionError("the bank does not answer")
    return f"order {order}: {cents} charged at attempt {attempt}"


def ship(order: int, receipt: str) -> str:
    return f"{receipt}, shipped"


CHARGE = Step[str]("charge", retry=Retry(attempts=4, base=0.1))


@work(name="checkout", queue="orders")
def checkout(ctx: Context, order: int) -> str:
    receipt = ctx.sync.step(CHARGE, charge, order, cents=500)
    ctx.sync.sleep("pause", 0.2)
    return ctx.sync.step("ship", ship, order, receipt)


app = Treadle(os.environ.get("STORE_URL", "postgresql://127.0.0.1/shop"), work=[checkout])


def main() -> None:
    handle = app.sync.enqueue(checkout(7), key="order-7", key_scope="any")
    again = app.sync.enqueue(checkout(7), key="order-7", key_scope="any")
    print("the same workflow:", again.id == handle.id)
    print(handle.result(timeout=60))


if __name__ == "__main__":
    main()
    app.sync.close()
