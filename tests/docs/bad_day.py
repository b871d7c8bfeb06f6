"""Makes docs/bad-day.md: a session in a terminal, recorded from real commands, a real store and real workers.
The README shows two of its commands.

    python -m tests.docs.bad_day

A test runs the session again and compares it with the page. What differs from run to run is masked: ids,
times, and the numbers of orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from tests.cli.forks import Forked, common_server
from tests.docs.terminal import PATIENCE, PROJECT, terminal_env, type_command
from treadle import Client

PAGE = PROJECT / "docs" / "bad-day.md"
README = PROJECT / "README.md"
JSON_PART = "## The same for programs"

SHOP = """\
import asyncio
import sys
from pathlib import Path

from treadle import Retry, Treadle, work

RATES = {"DE": 4.90, "FR": 6.50}


@work(name="quote", retry=Retry(attempts=2, base=0.1))
async def quote(order: int, country: str) -> float:
    return RATES[country]


@work(name="invoice")
async def invoice(order: int) -> str:
    return f"invoice of order {order}"


@work(name="mail.confirm", retry=Retry(attempts=1))
async def confirm(order: int) -> None:
    if not Path("mail-server").exists():
        raise ConnectionError("mail.example.org refused the connection")


app = Treadle("sqlite:///shop.db", work=[quote, invoice, confirm])


async def place(orders: int) -> None:
    for n in range(orders):
        quoted = await app.enqueue(quote(n, ["DE", "FR", "CH"][n % 3]))
        await app.enqueue(invoice(n), after=[quoted])
        if n % 5 == 0:
            await app.enqueue(confirm(n))
    await app.close()


if __name__ == "__main__":
    asyncio.run(place(int(sys.argv[1])))
"""


class Run(NamedTuple):
    """A command. `{sample of TYPE}` in it is the id of a dead item."""

    command: str
    then_quiet: bool = False
    """Wait afterwards until all items have ended."""


STEPS: list[str | Run] = [
    """\
# A bad day
Everything below was typed into a terminal and recorded, against a SQLite file and real workers. A test runs
it again and compares. On PostgreSQL it looks the same. All commands and options are on the page of the
[command line](command-line.md).

The shop quotes the shipping of each order, writes an invoice once it knows the price, and sends a mail:
""",
    f"```python\n{SHOP}```",
    """
## Something is wrong
Thirty orders come in, and a worker runs.
""",
    Run("export TREADLE_APP=shop:app"),
    Run("python shop.py 30"),
    Run("treadle worker shop:app 2> worker.log &", then_quiet=True),
    Run('treadle status; echo "exit code $?"'),
    """
Problems come first, each with what to do about it. The exit code 4 means "not healthy": a monitor needs no
more than that. What has died, and of what?
""",
    Run("treadle dead"),
    """
Two causes. Items with the same mark died alike: the same type, the same error, the same place in the code.
The invoices could not run because their quotes had died, and have no row of their own. One of the quotes:
""",
    Run("treadle show {sample of quote}"),
    """
A `KeyError`: the shop has no rate for Switzerland. And why was an invoice not written?
""",
    Run("treadle why {sample of invoice}"),
    """
## The fix
The rate is added, and the worker is started anew: a deploy.
""",
    Run('sed -i \'s/"FR": 6.50/"FR": 6.50, "CH": 9.00/\' shop.py'),
    Run("kill %1"),
    Run("treadle worker shop:app 2> worker.log &", then_quiet=True),
    """
Now the dead quotes run again, but not all at once: three first, and the others only if those succeed. The
command shows what it is about to do, and asks.
""",
    Run("treadle dead requeue --type quote --canary 3", then_quiet=True),
    """
The invoices that had waited for the quotes were opened again with them. What is left are the mails:
""",
    Run("treadle dead"),
    f"""
{JSON_PART}
Every command takes `--json`: one object per line, with names that do not change. The mail server is up again.
""",
    Run("touch mail-server"),
    Run("treadle dead --json | jq -r '[.count, .type, .error_type, .error] | @tsv'"),
    """
Commands that change items read ids, or such lines, from standard input (`-`). So any program can choose the
items: here the orders before 20.
""",
    Run(
        "treadle list --status dead --json | jq -c 'select(.input.order < 20)' | "
        "treadle requeue - --canary 1 --json",
        then_quiet=True,
    ),
    """
Two are left. With `--yes` nothing is counted and nothing is asked:
""",
    Run("treadle requeue --type mail.confirm --yes", then_quiet=True),
    Run('treadle status; echo "exit code $?"'),
    Run("kill %1"),
]


class Session:
    """A directory with a shop, a worker, and a terminal of 80 columns."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._worker: Forked | None = None
        self._samples: dict[str, str] = {}
        (directory / "shop.py").write_text(SHOP)
        self._env = terminal_env(directory)
        self._forks = common_server()

    def run(self, step: Run) -> list[str]:
        """What the terminal shows for a command: the prompt, the command, its output."""
        command = re.sub(r"\{sample of ([\w.]+)\}", lambda found: self._samples[found[1]], step.command)
        output = ""
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self._env[name] = value
        elif command == "kill %1":
            self.stop()
        elif command.endswith(" &"):
            words, _, log = command.removesuffix(" &").partition(" 2> ")
            with (self._directory / log).open("wb") as errors:
                self._worker = self._forks.start(
                    shlex.split(words), self._directory, self._env, errors=errors.fileno()
                )
        else:
            output = type_command(command, self._directory, self._env, self._forks)
        if step.then_quiet:
            asyncio.run(self._quiet())
        for found, shown in (
            (str(self._directory), "/srv/shop"),
            (str(PROJECT / "src"), "/srv/shop/.venv/lib/python3/site-packages"),
        ):
            output = output.replace(found, shown)
        output = re.sub(rf"\b{re.escape(socket.gethostname())}:\d+", "shop-1:4711", output)
        return [f"$ {command}", *(line.rstrip() for line in output.splitlines())]

    async def _quiet(self) -> None:
        """Wait until no item is open, and a worker is alive. Remember a dead item of each type."""
        async with Client(f"sqlite:///{self._directory / 'shop.db'}") as client:
            end = time.monotonic() + PATIENCE
            while (
                any(count.status != "dead" for count in await client.counts()) or not await client.workers()
            ):
                assert time.monotonic() < end, (self._directory / "worker.log").read_text()
                await asyncio.sleep(0.05)
            for mark in await client.backend.marks():
                self._samples[mark.type] = mark.sample

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.terminate()
            self._worker.wait(PATIENCE)
            self._worker = None


@contextlib.contextmanager
def session(directory: Path) -> Generator[Session]:
    made = Session(directory)
    try:
        yield made
    finally:
        made.stop()


def page(directory: Path) -> str:
    """The page, recorded now. Without the program jq it ends before the part that needs it."""
    parts: list[str] = []
    with session(directory) as terminal:
        for step in STEPS:
            if isinstance(step, Run):
                lines = "\n".join(terminal.run(step))
                if parts and parts[-1].startswith("```console"):
                    quiet = parts[-1].rpartition("\n$ ")[2].count("\n") == 1  # it has shown nothing
                    parts[-1] = f"{parts[-1].removesuffix('```')}{'' if quiet else chr(10)}{lines}\n```"
                else:
                    parts.append(f"```console\n{lines}\n```")
            else:
                if JSON_PART in step and shutil.which("jq") is None:
                    break
                parts.append(step.strip("\n"))
                if step.startswith("\n"):
                    parts[-1] = f"\n{parts[-1]}"
    return "\n".join(parts) + "\n"


_PLACE = re.compile(r"(<!-- recorded: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
_SHOWN = re.compile(r"^\$ (?:treadle status|treadle why)[^\n]*\n(?:(?!\$ |```)[^\n]*\n)*", re.MULTILINE)


def readme(text: str, page: str) -> str:
    """The README with the first `treadle status` and the first `treadle why` of the page."""
    first = {shown[:13]: shown.strip() for shown in reversed(_SHOWN.findall(page))}
    status, why = first["$ treadle sta"], first["$ treadle why"]
    return _PLACE.sub(lambda place: f"{place[1]}```console\n{status}\n\n{why}\n```\n{place[2]}", text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PAGE.write_text(page(Path(made)))
    README.write_text(readme(README.read_text(), PAGE.read_text()))
