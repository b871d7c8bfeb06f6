"""A real NATS server for tests, from a wheel: no installation, no root, no network."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.support.process import wait_until_ended


def start(run: Path) -> str:
    """Start the server of a run. Returns its URL."""
    server = NatsServer(run / "nats")
    server.start()
    return server.url


def stop(run: Path) -> None:
    """Stop the servers of a run that are running."""
    for home in run.glob("nats*"):
        if home.is_dir():
            NatsServer(home).kill()


class NatsServer:
    """A server that can be killed, and started again on the same port. `config`: lines of its file."""

    def __init__(self, home: Path, config: str = "") -> None:
        self.home = home
        self._config = config

    @property
    def port(self) -> int:
        return int((self.home / "port").read_text())

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers. Another server may have taken the port meanwhile."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(5):
            if not (self.home / "port").exists():
                (self.home / "port").write_text(str(_free_port()))
            if self._started():
                return
            (self.home / "port").unlink()
        raise RuntimeError(f"NATS did not start:\n{(self.home / 'log').read_text()}")

    def _started(self) -> bool:
        (self.home / "nats.conf").write_text(f'host: "127.0.0.1"\nport: {self.port}\n{self._config}\n')
        with (self.home / "log").open("ab") as log:
            process = subprocess.Popen(
                [_program(), "-c", str(self.home / "nats.conf")],
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.home / "pid").write_text(str(process.pid))
        deadline = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
                if link.recv(4) == b"INFO":
                    process.returncode = 0  # it runs on: no warning when this object goes
                    return True
            time.sleep(0.01)
        return False

    def kill(self) -> None:
        """End it at once."""
        process = self._process()
        if process is None:
            return
        process.send_signal(signal.SIGKILL)
        wait_until_ended(process)
        with suppress(ChildProcessError):  # another process may have started it
            os.waitpid(process.pid, os.WNOHANG)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def _process(self) -> psutil.Process | None:
        try:
            process = psutil.Process(int((self.home / "pid").read_text()))
            # The pid may belong to another process by now.
            is_ours = "nats-server" in process.name() and Path(process.cwd()) == self.home.resolve()
            return process if is_ours else None
        except (OSError, ValueError, psutil.Error):
            return None


def _free_port() -> int:
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        found: int = link.getsockname()[1]
        return found


def _program() -> str:
    """The wheel has only the program, beside the interpreter."""
    program = Path(sys.executable).parent / "nats-server"
    if not program.exists():
        raise RuntimeError("no NATS: run `make test`, or set TREADLE_TEST_NATS to a URL")
    return str(program)
