"""The demo: forty documents are read, embedded in batches, and reported on. Some reads fail and are retried.

    make demo

Everything is in one SQLite file. Press Ctrl-C in the middle and run it again: it continues.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any, TypedDict, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from treadle import Context, Handle, Result, Retry, Treadle, WorkFailed, WorkType, work
from treadle.doers import balanced
from treadle.events import Event, Failed, Started, Succeeded

FILE = Path(".demo/work.db")
KINDS = ("memo", "letter", "invoice", "note")
DOCUMENTS = [f"{kind}-{number:02}.txt" for number in range(1, 11) for kind in KINDS]


class Page(TypedDict):
    name: str
    words: int


class Summary(TypedDict):
    words: int
    vectors: int
    longest: list[Page]


# ------------------------------------------------------------------------------------------------ the work


@work(retry=Retry(attempts=10, base=0.2, max=1.0))
async def read(name: str) -> Page:
    """Reading is slow and sometimes fails."""
    await asyncio.sleep(random.uniform(0.1, 0.8))
    if random.random() < 0.25:
        raise ConnectionError(f"{name}: the connection was reset")
    return {"name": name, "words": random.randint(200, 2000)}


@work.batch(size=10, max_wait=0.2, doer=balanced(2))
async def embed(names: list[str]) -> list[list[float]]:
    """One call for many documents, as models prefer it."""
    await asyncio.sleep(0.7)
    return [[round(random.random(), 3) for _ in range(3)] for _ in names]


@work
async def report(ctx: Context, pages: list[str]) -> Summary:
    """Runs once, when every document is embedded."""
    read_pages: list[Page] = await ctx.results(pages)
    vectors = await ctx.results(embed)
    longest = sorted(read_pages, key=lambda page: page["words"], reverse=True)[:5]
    return {"words": sum(page["words"] for page in read_pages), "vectors": len(vectors), "longest": longest}


@work
async def digest(ctx: Context, names: list[str]) -> Result[None, Page | list[float] | Summary]:
    """Fan out, embed the texts, fan in."""
    pages = [read(name) for name in names]
    return ctx.queue(pages).next([embed(name) for name in names]).next(report([page.id for page in pages]))


# ------------------------------------------------------------------------------------ what one sees of it


class View:
    """A bar for each step with its running and retried items, and the last failures."""

    def __init__(self) -> None:
        self.failures: list[Failed] = []
        self.done: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._retried: Counter[str] = Counter()
        columns = (
            "[bold]{task.description:8}",
            "[cyan]{task.fields[running]}",
            "[yellow]{task.fields[retried]}",
        )
        name, running, retried = map(TextColumn, columns)
        self._bars = Progress(name, BarColumn(36), MofNCompleteColumn(), running, retried)
        totals: dict[WorkType[..., Any, Any], int] = {read: len(DOCUMENTS), embed: len(DOCUMENTS), report: 1}
        self._tasks = {
            step.name: self._bars.add_task(step.__name__, total=total, running="", retried="")
            for step, total in totals.items()
        }

    def see(self, event: Event) -> None:
        match event:
            case Started(type=type):
                self._running[type] += 1
            case Succeeded(type=type):
                self._running[type] -= 1
                self.done[type] += 1
            case Failed(type=type):
                self._running[type] -= 1
                self._retried[type] += event.will_retry
                self.failures.append(event)
            case _:
                pass

    def __rich__(self) -> Group:
        for name, task in self._tasks.items():
            running, retried = self._running[name], self._retried[name]
            self._bars.update(
                task,
                completed=self.done[name],
                running=f"{running} running" if running else "",
                retried=f"{retried} tried again" if retried else "",
            )
        lines = [Text(f"  ↻ {each.error} (attempt {each.attempt})", "dim") for each in self.failures[-3:]]
        return Group(self._bars, *lines)


def show_result(console: Console, summary: Summary, failures: int) -> None:
    table = Table("the longest", "words", box=None, padding=(0, 2), header_style="bold")
    table.columns[1].justify = "right"
    for page in summary["longest"]:
        table.add_row(page["name"], f"{page['words']:,}")
    console.print(table)
    total = f"{len(DOCUMENTS)} documents, {summary['words']:,} words, {summary['vectors']} vectors"
    console.print(f"\n[green]Done:[/] {total}. {failures} attempts failed on the way, and nothing was lost.")


# ------------------------------------------------------------------------------------------------- running


async def already_done(app: Treadle, handle: Handle[None, object]) -> Counter[str]:
    """The documents that an earlier run has finished."""
    page = await app.list(status="success", group_id=handle.group_id, limit=1000)
    return Counter(item.type for item in page.items)


async def main() -> int:
    FILE.parent.mkdir(exist_ok=True)
    console = Console(highlight=False)
    console.print(f"[bold]treadle[/]: {len(DOCUMENTS)} documents: read, embed, report. All of it in {FILE}.")
    view = View()
    app = Treadle(
        f"sqlite:///{FILE}",
        work=[read, embed, report, digest],
        doer=balanced(8),
        on_event=view.see,
        log_failures=False,  # the view shows them
    )
    # Until the item has ended, a second run with the same key finds it.
    handle = await app.enqueue(digest(DOCUMENTS), key="demo")
    view.done = await already_done(app, handle)
    console.print(
        "[green]An earlier run was stopped; this one goes on where it was.[/]\n"
        if handle.existing
        else "Press Ctrl-C in the middle, and run it again.\n"
    )
    try:
        with Live(view, console=console, refresh_per_second=12):
            async with app:
                summary = cast("Summary", await handle.group())
    except WorkFailed as error:
        console.print(f"[red]failed:[/] {error}")
        return 1
    except asyncio.CancelledError:
        console.print("\n[yellow]Stopped in the middle.[/] Nothing is lost: run it again, and it goes on.")
        return 130
    console.print()
    show_result(console, summary, len(view.failures))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except KeyboardInterrupt:
        sys.exit(130)
