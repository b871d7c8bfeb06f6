"""Define a work type, submit items, wait for them. Everything is in one file, `quickstart.db`.

Run it: python examples/quickstart.py
"""

import asyncio
from dataclasses import dataclass

from treadle import Treadle, work


@dataclass
class Thumbnail:
    path: str
    width: int


@work
async def add(a: int, b: int) -> int:
    return a + b


@work
def shrink(path: str, width: int = 200) -> Thumbnail:
    """A sync handler. It runs in a thread."""
    return Thumbnail(path.replace(".jpg", f"-{width}.jpg"), width)


async def main() -> None:
    async with Treadle("sqlite:///quickstart.db", work=[add, shrink]) as app:
        # Submit and wait.
        total = await app.enqueue(add(1, 2)).result()
        print(f"1 + 2 = {total}")

        # Submit now, wait later. When `await` returns, the item is on disk.
        handle = await app.enqueue(shrink("cat.jpg", width=64))
        print(f"submitted {handle.id}")
        print(f"its value: {await handle.result()}")

        # Many items in one step.
        handles = await app.enqueue_many([add(n, n) for n in range(5)])
        print("doubles:", [await handle.result() for handle in handles])


if __name__ == "__main__":
    asyncio.run(main())
