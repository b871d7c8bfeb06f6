"""An order and its confirmation mail are stored together or not at all. No outbox table and no second system.

The shop's own tables and treadle's are in one SQLite file. `tx=` makes a submit part of the shop's
transaction. `ctx.transaction()` makes a handler's writes part of its settlement.

Run it: python examples/transactional_outbox_sqlite.py
"""

import asyncio
import sqlite3

from treadle import Context, Treadle, work


@work(name="shop.confirm")
async def confirm(ctx: Context, order: int, customer: str) -> str:
    async with ctx.transaction() as db:
        # Committed together with the success of this item, so a second attempt never finds only one of them.
        db.execute("UPDATE orders SET state = 'confirmed' WHERE id = ?", (order,))
    return f"dear {customer}, your order {order} is on its way"


class OutOfStock(Exception):
    pass


async def place_order(app: Treadle, db: sqlite3.Connection, customer: str, item: str) -> str:
    """Return the id of the mail. Raise OutOfStock and change nothing if there is no stock."""
    db.execute("BEGIN IMMEDIATE")
    try:
        order = db.execute("INSERT INTO orders (customer, item) VALUES (?, ?)", (customer, item)).lastrowid
        assert order is not None
        handle = await app.enqueue(confirm(order, customer), tx=db)
        if not db.execute(
            "UPDATE stock SET count = count - 1 WHERE item = ? AND count > 0", (item,)
        ).rowcount:
            raise OutOfStock(item)
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
    return handle.id


async def main() -> None:
    db = sqlite3.connect("shop.db", isolation_level=None)
    db.executescript("""
        DROP TABLE IF EXISTS orders;
        DROP TABLE IF EXISTS stock;
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, item TEXT, state TEXT DEFAULT 'placed');
        CREATE TABLE stock (item TEXT PRIMARY KEY, count INTEGER);
        INSERT INTO stock VALUES ('lamp', 1);
    """)
    async with Treadle("sqlite:///shop.db", work=[confirm]) as app:
        mail = await place_order(app, db, "Ada", "lamp")
        print("mailed:", await app.handle(mail).result(timeout=5))
        try:
            await place_order(app, db, "Bob", "lamp")
        except OutOfStock as error:
            print(f"refused: no {error} left")
        print("orders:", db.execute("SELECT customer, item, state FROM orders").fetchall())
        print("mails: ", [(count.status, count.count) for count in await app.counts(ended=True)])
    db.close()


if __name__ == "__main__":
    asyncio.run(main())
