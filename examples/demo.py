"""The demo: forty documents are read (some fail, and are tried again), embedded in batches, and reported on.

    make demo

Everything is in one SQLite file. Press Ctrl-C in the middle and run it again: it goes on where it was.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path
from typing import TypedDict

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from treadle import Context, Handle, Result, Retry, Treadle, WorkFailed, work
from treadle.doers import balanced
from treadle.events import Event, Failed, Succeeded

FILE = Path(".demo/work.db")
DOCUMENTS = [f"{kind}-{number:02}.txt" for number in range(1, 11) for kind in ("memo", "letter", "report", "note")]


class Page(TypedDict):
    name: str
    words: int


@work(retry=Retry(attempts=6, base=0.2, max=1.0))
async def read(name: str) -> Page:
    """Reading is slow, and fails now and then."""
    await asyncio.sleep(random.uniform(0.1, 0.8))
    if random.random() < 0.25:
        raise ConnectionError(f"{name}: the connection was reset")
    return {"name": name, "words": random.randint(200, 2000)}


@work.batch(size=10, max_wait=0.2)
async def embed(names: list[str]) -> list[list[float]]:
    """One call for many documents: that is what models like."""
    await asyncio.sleep(0.5)
    return [[round(random.random(), 3) for _ in range(3)] for _ in names]


@work
async def report(ctx: Context, pages: list[str]) -> str:
    """Runs once, when every document has been embedded."""
    read_pages: list[Page] = await ctx.results(pages)
    vectors = await ctx.results(ctx.dependencies)
    words = sum(page["words"] for page in read_pages)
    longest = max(read_pages, key=lambda page: page["words"])
    return f"{len(read_pages)} documents, {words:,} words, {len(vectors)} vectors; longest: {longest['name']}"


@work
async def digest(ctx: Context, names: list[str]) -> Result[None, Page | list[float] | str]:
    """Fan out, embed what was read, fan in."""
    pages = [read(name) for name in names]
    return (
        ctx.queue(pages)
        .next([embed(name) for name in names])
        .next(report([page.id for page in pages]))
    )


class View:
    """What the terminal shows: a bar, a line per type, and the last failures."""

    def __init__(self, done: Counter[str]) -> None:
        self._done = done
        self._retries: Counter[str] = Counter()
        self._failures: list[str] = []
        self._bar = Progress(
            TextColumn("[bold]documents"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task: TaskID = self._bar.add_task("work", total=2 * len(DOCUMENTS) + 2)

    def see(self, event: Event) -> None:
        match event:
            case Succeeded(type=type):
                self._done[type] += 1
            case Failed(type=type, error=error):
                self._retries[type] += 1
                self._failures = [*self._failures[-2:], str(error)]
            case _:
                pass

    def __rich__(self) -> Group:
        self._bar.update(self._task, completed=sum(self._done.values()))
        table = Table("step", "done", "failed and tried again", box=None, pad_edge=False)
        for step in (digest, read, embed, report):
            retries = self._retries[step.name]
            table.add_row(step.__name__, str(self._done[step.name]), str(retries) if retries else "")
        failures = "\n".join(f"[yellow]retrying[/] {line}" for line in self._failures)
        return Group(self._bar, table, failures)


async def already_done(app: Treadle, handle: Handle[None, object]) -> Counter[str]:
    """What an earlier run has finished."""
    page = await app.list(status="success", group_id=handle.group_id, limit=1000)
    return Counter(item.type for item in page.items)


async def main() -> int:
    FILE.parent.mkdir(exist_ok=True)
    console = Console()
    view = View(Counter())
    app = Treadle(
        f"sqlite:///{FILE}",
        work=[read, embed, report, digest],
        doer=balanced(8),
        on_event=lambda event: view.see(event),
    )
    # The key makes it one piece of work, however often this is run, until it has ended.
    handle = await app.enqueue(digest(DOCUMENTS), key="demo")
    if handle.existing:
        console.print(f"[green]going on with[/] {handle.id}, which an earlier run began")
    view = View(await already_done(app, handle))
    try:
        with Live(view, console=console, refresh_per_second=12):
            async with app:
                summary = await handle.group()
    except WorkFailed as error:
        console.print(f"[red]failed:[/] {error}")
        return 1
    except asyncio.CancelledError:
        console.print("\n[yellow]stopped in the middle.[/] Nothing is lost: run it again and it goes on.")
        return 130
    console.print(result_table(str(summary)))
    return 0


def result_table(summary: str) -> Table:
    table = Table("the report", title="done")
    for line in summary.split("; "):
        table.add_row(line)
    return table


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except KeyboardInterrupt:
        sys.exit(130)
