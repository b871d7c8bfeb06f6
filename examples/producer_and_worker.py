"""Two processes on one SQLite file: one submits work whose code it does not have, the other runs it.

python examples/producer_and_worker.py            # starts the worker too
python examples/producer_and_worker.py worker     # only the worker, until Ctrl-C
"""

import asyncio
import os
import signal
import sys

from treadle import Client, Treadle, work

STORE = "sqlite:///produced.db"


# Both processes have this declaration, for example in `shop/tasks.py`: a name and a signature, no code.
def _resize(path: str, width: int) -> str:
    raise NotImplementedError


resize = work.declare("images.resize", _resize)


async def run_worker() -> None:
    # Only the worker has this handler.
    @resize.handler
    def resize_with_a_large_library(path: str, width: int) -> str:
        return f"{path} is {width} pixels wide now, thanks to process {os.getpid()}"

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Treadle(STORE, work=[resize]):
        await stop.wait()  # the end of the block waits for handlers and releases the rest


async def produce() -> None:
    worker = await asyncio.create_subprocess_exec(sys.executable, __file__, "worker")
    try:
        async with Client(STORE, work=[resize]) as client:
            handle = await client.enqueue(resize("cat.jpg", width=200))
            print(f"process {os.getpid()} submitted {handle.id}")
            print(await handle.result(timeout=30))
            # By name, if the declaration cannot be shared.
            print(await client.enqueue("images.resize", {"path": "dog.jpg", "width": 64}).result(timeout=30))
    finally:
        worker.terminate()
        print("the worker ended with", await worker.wait())


if __name__ == "__main__":
    asyncio.run(run_worker() if sys.argv[1:] == ["worker"] else produce())
