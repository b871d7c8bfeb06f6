"""`make bench`: all benchmarks, as tables and a JSON file. `python -m benchmarks --quick verbs` for a
first look."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import (
    chart,
    cost,
    crawl,
    dashboard,
    engine,
    fleet,
    goals,
    large_tables,
    loops,
    notify,
    operate,
    processes,
    recording,
    retention,
    running,
    tracing,
    verbs,
)
from benchmarks.measure import Figure, machine, ratio, shown
from benchmarks.stores import KINDS, Stores, stores

RESULTS = Path(__file__).parent / "results"
console = Console()

USUAL = ("verbs", "backlog", "group", "crawl", "engine", "fleet", "cost", "running", "processes", "tracing")
LONG = ("notify", "depth", "churn", "retention", "loops", "operate", "dashboard", "statistics")
QUICK = ("engine", "fleet", "cost")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    default = f"default: all but {', '.join(LONG)}"
    parser.add_argument("what", nargs="*", choices=[*USUAL, *LONG, []], help=default)
    parser.add_argument("--quick", action="store_true", help="about a minute, small sizes")
    parser.add_argument("--seconds", type=float, default=20.0, help="of mixed load (processes)")
    parser.add_argument("--ended", type=count, default=5_000_000, help="ended items, as 10M (depth)")
    parser.add_argument("--ready", type=count, default=1_000_000, help="ready items, as 1M (depth)")
    parser.add_argument("--rate", type=count, default=10_000, help="items per second, as 10k (retention)")
    parser.add_argument("--keep", type=float, default=60.0, help="seconds (retention)")
    parser.add_argument("--minutes", type=float, default=10.0, help="for how long (retention)")
    parser.add_argument("--on", action="append", choices=KINDS, help="only these backends")
    given = parser.parse_args()
    what = given.what or list(QUICK if given.quick else USUAL)
    kinds = tuple(given.on or KINDS)
    console.print(f"[bold]treadle[/] on {machine()}")
    with stores(kinds) as opened:
        results = asyncio.run(run(opened, what, kinds, given))
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{time.strftime('%Y-%m-%d-%H%M%S')}.json"
    path.write_text(json.dumps({"machine": machine(), **results}, indent=2))
    console.print(f"written to {path}")
    kept = goals.rows(results)
    if kept:
        console.print(goals_table(kept))
        path.with_suffix(".svg").write_text(chart.svg(kept, machine()))
        console.print(f"and {path.with_suffix('.svg')}")


def count(text: str) -> int:
    """A number, as 10M or 10k."""
    factor = {"k": 1_000, "M": 1_000_000}.get(text[-1:], 1)
    return int(float(text.rstrip("kM")) * factor)


def goals_table(rows: list[goals.Row]) -> Table:
    table = Table("what must be", "at least, at most", "found", "", title="promises")
    for row in rows:
        table.add_row(row.case, *row.shown, "" if row.share >= 1 else "[red]not reached[/]")
    return table


async def run(
    opened: Stores, what: list[str], kinds: tuple[str, ...], given: argparse.Namespace
) -> dict[str, Any]:
    results: dict[str, Any] = {}
    quick: bool = given.quick
    seconds: float = given.seconds
    if "verbs" in what:
        figures = await verbs.verbs(opened, kinds, 5_000 if quick else 50_000, 1 if quick else 3)
        results["verbs"] = {kind: {f.name: f.values for f in each} for kind, each in figures.items()}
        console.print(figures_table(figures, "raw verbs"))
    if "backlog" in what:
        results["backlog"] = await backlogs(opened, kinds, quick)
    if "group" in what:
        results["group"] = await groups(opened, kinds)
    if "crawl" in what:
        results["crawl"] = await crawls(opened, kinds, quick)
    if "engine" in what:
        measured = await engine.engine(opened, kinds, 2_000 if quick else 20_000, 1 if quick else 3)
        results["engine"] = {kind: {f.name: f.values for f in each} for kind, each in measured.items()}
        console.print(figures_table(measured, "the engine"))
    if "fleet" in what:
        measured = await fleet.fleet(opened, kinds, 5_000 if quick else 50_000, 1 if quick else 5)
        results["fleet"] = {kind: {f.name: f.values for f in each} for kind, each in measured.items()}
        console.print(figures_table(measured, "workers in separate processes"))
    if "cost" in what:
        measured = await cost.cost(opened, kinds, 3.0 if quick else 20.0, 1)
        results["cost"] = {kind: {f.name: f.values for f in each} for kind, each in measured.items()}
        console.print(figures_table(measured, "the cost of a worker"))
    if "tracing" in what:
        measured = await tracing.tracing(opened, kinds, 2_000 if quick else 20_000, 3 if quick else 5)
        results["tracing"] = {kind: {f.name: f.values for f in each} for kind, each in measured.items()}
        console.print(figures_table(measured, "the cost of traces, processor time per item"))
    if "running" in what:
        results["running"] = await run_quality(opened, kinds, quick)
    if "processes" in what:
        results["processes"] = await together(opened, kinds, quick, min(seconds, 10.0) if quick else seconds)
    if "depth" in what and "postgres" in kinds:
        results["depth"] = await depths(opened, given.ready, given.ended, quick)
    if "churn" in what and "postgres" in kinds:
        results["churn"] = await churned(opened, quick)
    if "retention" in what and "postgres" in kinds:
        results["retention"] = await retained(opened, given.rate, given.keep, given.minutes * 60)
    if "notify" in what and "postgres" in kinds:
        results["notify"] = await notified(opened, quick)
    if "operate" in what:
        results["operate"] = await operated(opened, kinds, quick)
    if "statistics" in what:
        results["statistics"] = await statistics_costs(opened, kinds, quick)
    if "loops" in what:
        measured = await loops.loops(opened, kinds, 2_000 if quick else 20_000, 3 if quick else 9)
        results["loops"] = {kind: {f.name: f.values for f in each} for kind, each in measured.items()}
        console.print(figures_table(measured, "asyncio and uvloop, processor time per item"))
    if "dashboard" in what:
        results["dashboard"] = await dashboards(opened, kinds, quick)
    return results


def figures_table(figures: dict[str, list[Figure]], title: str) -> Table:
    table = Table("backend", "case", "median (low-high)", "of the floor", title=title)
    for kind, each in figures.items():
        floors = {f.name.removeprefix("floor: "): f for f in each if f.name.startswith("floor: ")}
        for figure in each:
            floor = floors.get(figure.name) or (floors.get("a task each") if figure.unit == "/s" else None)
            ratio = "" if floor is None else f"{figure.median / floor.median:.2f}"
            table.add_row(kind, figure.name, f"{figure} {figure.unit}", ratio)
        table.add_section()
    return table


async def backlogs(opened: Stores, kinds: tuple[str, ...], quick: bool) -> dict[str, Any]:
    small, large = 1_000, 100_000 if quick else 1_000_000
    results: dict[str, Any] = {}
    table = Table(
        "backend", "waiting", "p50 ms", "p95 ms", "p50 ratio", title="claim of 100, by number of ready items"
    )
    for kind in kinds:
        one = await verbs.backlog(opened, kind, [small, large])
        lanes = await verbs.backlog(opened, kind, [10_000, large], lanes=10_000)
        other = {large: await verbs.parked(opened, kind, large)}
        results[kind] = {"one lane": one, "10,000 lanes": lanes, "parked": other}
        for shape, figures in results[kind].items():
            base = one[small][0] if shape == "parked" else next(iter(figures.values()))[0]
            for size, (p50, p95) in figures.items():
                table.add_row(kind, f"{size:,} ({shape})", f"{p50:.2f}", f"{p95:.2f}", f"{p50 / base:.2f}")
        table.add_section()
    console.print(table)
    return results


async def depths(opened: Stores, ready: int, ended: int, quick: bool) -> dict[str, Any]:
    sizes, ended = ([1_000, 10_000], 100_000) if quick else ([1_000, ready], ended)
    figures = await large_tables.depth(opened, sizes, ended, 2.0 if quick else 10.0)
    table = Table("verb", "items", "p50 ms", "p95 ms", "p50 ratio", title="PostgreSQL, large")
    first = next(iter(figures.values()))
    for verb in first:
        for name, times in figures.items():
            p50, p95 = times[verb]
            table.add_row(verb, name, f"{p50:.2f}", f"{p95:.2f}", f"{p50 / first[verb][0]:.2f}")
        table.add_section()
    console.print(table)
    return figures


async def retained(opened: Stores, rate: int, keep: float, seconds: float) -> dict[str, Any]:
    found = await retention.retention(opened, rate, keep, seconds, max(1.0, seconds / 20))
    title = f"{rate:,} items a second, each kept for {keep:g} s, PostgreSQL"
    table = Table("second", "submitted/s", "open", "ended", "MB", "dead rows", "late, s", title=title)
    for each in found:
        table.add_row(
            f"{each['seconds']:.0f}",
            shown(each["submitted"] / each["seconds"]),
            *(f"{each[name]:,.0f}" for name in ("open", "ended", "megabytes", "dead")),
            f"{max(0.0, each['late']):.1f}",
        )
    console.print(table)
    growth = retention.growth(found, keep)
    if growth is not None:
        console.print(f"the size at the end is {growth:.2f} of that when the first items had been pruned")
    return {"rows": found, "growth": growth}


async def churned(opened: Stores, quick: bool) -> list[dict[str, Any]]:
    seconds, window = (20.0, 5.0) if quick else (240.0, 60.0)
    windows = await large_tables.churn(opened, seconds, window)
    table = Table(
        "from second", "claim p50 ms", "p95 ms", "of the first", "items/s", title="churn, PostgreSQL"
    )
    for n, each in enumerate(windows):
        ratio = each["p50"] / windows[0]["p50"]
        table.add_row(
            f"{n * window:.0f}",
            f"{each['p50']:.2f}",
            f"{each['p95']:.2f}",
            f"{ratio:.2f}",
            shown(each["items/s"]),
        )
    console.print(table)
    return windows


async def notified(opened: Stores, quick: bool) -> dict[str, Any]:
    found = await notify.notify(opened, 50 if quick else 500)
    table = Table("wake-ups by", "p50", "p99", title="an idle worker in another process starts, PostgreSQL")
    for name, each in found.items():
        table.add_row(name, f"{each['p50']:.2f} ms", f"{each['p99']:.2f} ms")
    console.print(table)
    return found


async def operated(opened: Stores, kinds: tuple[str, ...], quick: bool) -> dict[str, Any]:
    ended, waiting = (20_000, 10_000) if quick else (operate.ENDED, operate.OPEN)
    found = await operate.operate(opened, kinds, ended, waiting, 20 if quick else operate.CALLS)
    title = f"reads for operators, {ended:,} ended and {waiting:,} open items"
    table = Table("backend", "read", "p50 ms", "p95 ms", "p50, draining", "p95, draining", title=title)
    for kind, each in found.items():
        alone, beside = each.values()
        for name, pair in alone.items():
            table.add_row(kind, name, *(f"{value:.1f}" for value in (*pair, *beside.get(name, ()))))
        table.add_section()
    console.print(table)
    return {} if quick else found


async def dashboards(opened: Stores, kinds: tuple[str, ...], quick: bool) -> dict[str, Any]:
    ended, waiting = (20_000, 10_000) if quick else (operate.ENDED, operate.OPEN)
    found = await dashboard.pages(opened, kinds, ended, waiting, 5 if quick else dashboard.CALLS)
    title = f"pages of the dashboard, {ended:,} ended and {waiting:,} open items"
    table = Table("backend", "page", "p50 ms", "p95 ms", "reads", title=title)
    for kind, (each, reads) in found.items():
        for name, (p50, p95, of_page) in each.items():
            table.add_row(kind, name, f"{p50:.1f}", f"{p95:.1f}", f"{of_page:g}")
        table.add_row(
            kind, f"{dashboard.TABS} tabs of the overview, reads per second", f"{reads:.2f}", "", ""
        )
        table.add_section()
    console.print(table)
    return {} if quick else {kind: {**each, "reads": reads} for kind, (each, reads) in found.items()}


async def statistics_costs(opened: Stores, kinds: tuple[str, ...], quick: bool) -> dict[str, Any]:
    count, times = (5_000, 5) if quick else (10_000, 61)
    table = Table("backend", "", "on, median", "off, median", "ratio of pairs: quartiles",
        title=f"the cost of statistics: drains of {count:,} no-ops, sent every {recording.INTERVAL} s",
    )  # fmt: skip
    results: dict[str, Any] = {}
    for kind in kinds:
        figures = await recording.statistics_cost(opened, kind, count, times)
        for on, off in (figures[:2], figures[2:]):
            name = on.name.partition(",")[0]
            shown_ratios = ", ".join(f"{each:.3f}" for each in recording.ratios(on.values, off.values))
            sides = [f"{each.median:.3f} s" for each in (on, off)]
            table.add_row(kind, name, *sides, shown_ratios)
        table.add_section()
        results[kind] = {figure.name: figure.values for figure in figures}
    console.print(table)
    return results


async def groups(opened: Stores, kinds: tuple[str, ...]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    table = Table("backend", "members/s", "value", title="one group of 5,000, exact appends by 4 processes")
    for kind in kinds:
        if kind != "memory":
            rate, value = await verbs.one_group(opened, kind)
            results[kind] = {"rate": rate, "value": value}
            table.add_row(kind, shown(rate), f"{value:,}")
    console.print(table)
    return results


async def crawls(opened: Stores, kinds: tuple[str, ...], quick: bool) -> dict[str, Any]:
    pages = 1_000 if quick else crawl.PAGES
    figures = await crawl.crawls(opened, kinds, pages, 1 if quick else 3)
    title = f"a crawl of {pages:,} pages in nested groups, and as many items in one fan-out"
    table = Table("backend", "crawl, us per item", "flat, us per item", "ratio", title=title)
    for kind, (crawled, flat) in figures.items():
        table.add_row(kind, str(crawled), str(flat), f"{ratio(crawled.values, flat.values):.2f}")
    console.print(table)
    return {kind: {f.name: f.values for f in each} for kind, each in figures.items()}


async def run_quality(opened: Stores, kinds: tuple[str, ...], quick: bool) -> dict[str, Any]:
    count = 10_000
    found = await running.positions(opened, kinds, count)
    table = Table("backend", "last item", "starts as", "of", title=f"one item after {count:,} others")
    for kind, each in found.items():
        for name, position in each.items():
            shown_as = f"over {running.ENOUGH:,}th" if position is None else f"{position:,}."
            table.add_row(kind, name, shown_as, "" if position is None else f"{position / count:.4f}")
        table.add_section()
    console.print(table)
    busy = {kind: await running.busy_share(opened, kind, 1_000 if quick else 5_000) for kind in kinds}
    table = Table(
        "backend", "busy", "items/s", title=f"{running.AT_ONCE} at once, items of 1 ms, always more ready"
    )
    for kind, figures in busy.items():
        table.add_row(kind, f"{figures['share']:.1%}", shown(figures["items/s"]))
    console.print(table)
    return {"positions": found, "busy": busy, "limit": await limits(opened, kinds, quick)}


async def limits(opened: Stores, kinds: tuple[str, ...], quick: bool) -> dict[str, Any]:
    title = f"{running.LIMIT} starts a second, for 3 processes together"
    table = Table("backend", "starts", "used", "most in any second", "... later", "by process", title=title)
    found: dict[str, Any] = {}
    for kind in kinds:
        if kind != "memory":
            each = found[kind] = await running.limit(opened, kind, seconds=3.0 if quick else 10.0)
            table.add_row(
                kind,
                str(each["starts"]),
                f"{each['used']:.1%}",
                str(each["most in a second"]),
                str(each["most in a second, later"]),
                str(each["by process"]),
            )
    console.print(table)
    return found


async def together(opened: Stores, kinds: tuple[str, ...], quick: bool, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    title = f"mixed load for {seconds:g} s"
    table = Table("backend", "processes", "items/s", "errors", "largest log", "by process", title=title)
    for kind in kinds:
        if kind != "memory":
            found[kind] = {}
            for count in (1, 4):
                each = found[kind][f"{count} processes"] = await processes.mixed(opened, kind, count, seconds)
                log = f"{each['log'] / 2**20:.1f} MiB" if kind == "sqlite" else ""
                errors = str(dict(each["errors"]) or "none")
                table.add_row(kind, str(count), shown(each["items/s"]), errors, log, str(each["by process"]))
            found[kind]["starts"] = await processes.starts(opened, kind, 50 if quick else 200)
            found[kind]["takeovers"] = await processes.takeovers(opened, kind, 5 if quick else 20)
            table.add_section()
    console.print(table)
    console.print(start_table(found))
    return found


def start_table(found: dict[str, Any]) -> Table:
    table = Table("backend", "what", "p50", "p99", title="another process")
    for kind, each in found.items():
        starts, takeovers = each["starts"], each["takeovers"]
        table.add_row(kind, "starts after", f"{starts['p50']:.2f} ms", f"{starts['p99']:.2f} ms")
        table.add_row(kind, "idle, of a core", f"{starts['idle']:.2%}", "")
        table.add_row(
            kind, "takes over after kill -9", f"{takeovers['p50']:.2f} s", f"{takeovers['p99']:.2f} s"
        )
    return table


if __name__ == "__main__":
    main()
