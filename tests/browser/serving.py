"""A web app on a real port: uvicorn on an event loop in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette


@contextmanager
def background_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="site")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def listening(web: Starlette, loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Serve a web app on a free port. Yields its origin."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(web, log_level="warning", lifespan="off", ws="none"))
        serving = asyncio.run_coroutine_threadsafe(server.serve(sockets=[listener]), loop)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            # At once: streams of events have no end of their own.
            server.should_exit = server.force_exit = True
            serving.result(30)
