"""A real PgBouncer in transaction mode, if it is installed (Debian: `apt-get install pgbouncer`)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from tests.support.unprivileged import give, identity

SETTINGS = """
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = transaction
default_pool_size = {servers}
max_client_conn = 500
logfile = {log}
"""


def installed() -> str | None:
    """Where the program is."""
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")


@contextmanager
def pgbouncer(url: str, directory: Path, servers: int = 3) -> Generator[str]:
    """The URL of a PgBouncer with `servers` connections to the server at `url`."""
    parts = urlsplit(url)
    where = parse_qs(parts.query)
    user, port = parts.username or "postgres", _free_port()
    users, settings, log = (directory / name for name in ("users", "settings.ini", "log"))
    users.write_text(f'"{user}" ""\n')
    settings.write_text(
        SETTINGS.format(
            host=where["host"][0], port=where["port"][0], listen=port, users=users, servers=servers, log=log
        )
    )
    give(directory)
    process = subprocess.Popen(
        [installed() or "pgbouncer", settings], **identity(), stderr=subprocess.DEVNULL
    )
    try:
        _wait_until_open(port, process)
        yield f"postgresql://{quote(user)}@127.0.0.1:{port}{parts.path}?sslmode=disable"
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("PgBouncer does not start")
