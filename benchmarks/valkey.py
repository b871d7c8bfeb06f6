"""One command to a Valkey server, without a client library."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import hiredis


def command(url: str, *parts: str | int) -> object:
    """Carry out a command, and return its answer."""
    address = urlsplit(url)
    with socket.create_connection(
        (address.hostname or "127.0.0.1", address.port or 6379), timeout=60
    ) as link:
        link.sendall(hiredis.pack_command(parts))
        reader = hiredis.Reader(encoding="utf-8", errors="replace")
        while (answer := reader.gets()) is False:
            reader.feed(link.recv(65536))
    if isinstance(answer, Exception):
        raise answer
    return answer


def server_pid(url: str) -> int:
    found = str(command(url, "INFO", "server"))
    return int(next(line for line in found.splitlines() if line.startswith("process_id:")).partition(":")[2])
