"""The work.

run -> [ page -> page -> ... ]  -> report
           |       |
        measure measure ...         in processes
           |       |
         save    save               some at a time, in one transaction
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from treadle import Context, Result, work

from pipeline import results
from pipeline.logs import Summary, merge, summarize

PAGE = 20
"""How many files are queued at a time. Ten thousand at once would be one large step."""


@dataclass
class Found:
    """What was found in a file, and where to save it."""

    out: str
    path: str
    summary: Summary


@work.batch(name="pipeline.save", size=50, max_wait=0.05)
def save(found: list[Found]) -> list[None]:
    """Save what was found in up to 50 files, in one transaction."""
    for out in {each.out for each in found}:
        results.save_all(Path(out), [(each.path, each.summary) for each in found if each.out == out])
    return [None] * len(found)


@work(name="pipeline.measure", run_in="process", timeout=600)
def measure(ctx: Context, path: str, out: str) -> Result[None, None]:
    """The heavy part, in a process: there is one for each processor. A crash of it costs one attempt."""
    return ctx.queue(save(Found(out, path, summarize(Path(path)))))


@work(name="pipeline.page")
def page(ctx: Context, logs: str, out: str, after: str = "") -> Result[None, None]:
    """Queue some files, and the page that comes after them."""
    names = sorted(file.name for file in Path(logs).iterdir() if file.name > after)[:PAGE]
    if not names:
        return ctx.void()
    files = [measure(f"{logs}/{name}", out) for name in names]
    return ctx.queue(files, page(logs, out, after=names[-1]))


@work(name="pipeline.report")
def report(out: str) -> Summary:
    """Write the report: a new file that takes the place of the old one, so that it is never half written."""
    total = merge(results.read_all(Path(out)))
    draft = Path(out) / "report.json.new"
    draft.write_text(json.dumps(asdict(total), indent=2) + "\n")
    draft.replace(Path(out) / "report.json")
    return total


@work(name="pipeline.run")
def run(ctx: Context, logs: str, out: str) -> Result[None, Summary | None]:
    """Measure all files of a directory, then write the report: when the last of them is saved."""
    results.clear(Path(out))
    return ctx.group(page(logs, out)).next(report(out))
