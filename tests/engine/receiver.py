"""A receiver of webhooks on loopback, for tests."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

SECRET = "correct horse battery"


class Receiver:
    """Keeps what it was sent. `answers` with this status, and keeps only what it has taken."""

    def __init__(self, port: int = 0) -> None:
        self.status = 204
        self.refused = 0
        self.location = ""
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self._came = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.receive({name.lower(): value for name, value in self.headers.items()}, body)
                self.send_response(receiver.status)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/hook/token-1234"

    def receive(self, headers: dict[str, str], body: bytes) -> None:
        with self._came:
            if self.status < 300:
                self.taken.append((headers, body))
            else:
                self.refused += 1
            self._came.notify_all()

    @property
    def messages(self) -> list[dict[str, Any]]:
        with self._came:
            return [msgspec.json.decode(body) for _, body in self.taken]

    @property
    def told(self) -> list[tuple[str, str]]:
        """What changed, and the kinds of the problems."""
        return [(each["change"], each["kind"]) for each in self.messages]

    def wait_for(self, count: int, seconds: float = 30.0) -> list[dict[str, Any]]:
        """The messages, when there are this many."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.taken) >= count, seconds), self.taken
        return self.messages

    def wait_for_refusals(self, count: int, seconds: float = 30.0) -> None:
        with self._came:
            assert self._came.wait_for(lambda: self.refused >= count, seconds)


@contextmanager
def receiving(port: int = 0) -> Generator[Receiver]:
    """A receiver that runs."""
    receiver = Receiver(port)
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()
