"""The goals and the results: one row per goal, from the figures of one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import measure, operate


@dataclass(frozen=True)
class Row:
    """`found` compared with `must`, which is a minimum or a maximum."""

    case: str
    must: float
    found: float
    unit: str = "x"
    most: bool = False

    @property
    def share(self) -> float:
        """1 or more means that the goal is reached."""
        if self.most:
            return self.must / self.found if self.found else float("inf")
        return self.found / self.must

    @property
    def shown(self) -> tuple[str, str]:
        sign = "<=" if self.most else ">="
        return f"{sign} {self.must:g} {self.unit}", f"{self.found:.3g} {self.unit}"


class Figures:
    """The medians of a run."""

    def __init__(self, results: dict[str, Any]) -> None:
        self._results = results

    def __call__(self, section: str, kind: str, name: str) -> float:
        """Raises KeyError if the figure was not measured."""
        return float(statistics.median(self._results[section][kind][name]))

    def of_peer(self, kind: str, peer: str, case: str) -> float:
        """Treadle's figure divided by the peer's."""
        peers = self._results["peers"][kind]
        return measure.ratio(peers["ours"][case], peers[peer][case])

    def within_rounds(self, section: str, kind: str, top: str, bottom: str) -> float:
        """The median of the ratios of two figures, each within one round."""
        figures = self._results[section][kind]
        return measure.ratio(figures[top], figures[bottom])

    def awaiting(self, kind: str) -> list[str]:
        """The peers whose results can be awaited, except pgqueuer."""
        peers = self._results["peers"][kind]
        return [peer for peer in peers if "awaited" in peers[peer] and peer not in ("ours", "pgqueuer")]

    def p95(self, kind: str, size: int) -> float:
        return float(self._results["backlog"][kind]["one lane"][size][1])

    def reads(self, kind: str) -> list[tuple[str, float]]:
        """What operators read, alone and beside a worker, and the p95 of each."""
        found = self._results["operate"][kind]
        return [(name, beside[1]) for name, beside in found["alone"].items() if "comparison" not in name] + [
            (f"{name}, while a worker drains", pair[1])
            for name, pair in found["while a worker drains"].items()
        ]


def rows(results: dict[str, Any]) -> list[Row]:
    """The rows that this run has figures for."""
    figures = Figures(results)
    found: list[Row] = []
    for make in _ROWS:
        try:
            found += make(figures)
        except KeyError:
            continue
    return found


def _least(case: str, must: float, top: float, bottom: float) -> Row:
    return Row(case, must, top / bottom)


def _pg_drain(f: Figures) -> Iterator[Row]:
    one = f("fleet", "postgres", "drain, 1 process")
    yield _least(
        "PostgreSQL drain, of the floor", 0.35, one, f("fleet", "postgres", "floor: drain, 1 process")
    )
    yield _least("PostgreSQL drain, 2 processes of 1", 1.4, f("fleet", "postgres", "drain, 2 processes"), one)
    cpu = f("fleet", "postgres", "CPU per item, worker") + f("fleet", "postgres", "CPU per item, server")
    yield Row("PostgreSQL, CPU per item, worker and server", 75, cpu, "us", most=True)


def _pg_submit(f: Figures) -> Iterator[Row]:
    many, one = f("engine", "postgres", "enqueue_many"), f("engine", "postgres", "enqueue, one by one")
    yield _least(
        "PostgreSQL bulk submit, of the floor", 0.35, many, f("engine", "postgres", "floor: enqueue_many")
    )
    floor = f("engine", "postgres", "floor: enqueue, one by one")
    yield _least("PostgreSQL submit one by one, of the floor", 0.6, one, floor)
    yield _least("PostgreSQL, 100 callers of one", 5.0, f("engine", "postgres", "enqueue, 100 callers"), one)


def _pg_latency(f: Figures) -> Iterator[Row]:
    for share, must in (("p50", 2.0), ("p99", 4.0)):
        name = f"latency, worker elsewhere, {share}"
        ratio = f("fleet", "postgres", name) / f("fleet", "postgres", f"floor: {name}")
        yield Row(f"PostgreSQL latency, {share}, of the floor", must, ratio, most=True)


def _redis(f: Figures) -> Iterator[Row]:
    cpu = f("fleet", "redis", "CPU per item, worker") + f("fleet", "redis", "CPU per item, server")
    yield Row("Redis, CPU per item, worker and server", 50, cpu, "us", most=True)
    for share, most in (("p50", 1.2), ("p99", 4.0)):
        taken = f("fleet", "redis", f"latency, worker elsewhere, {share}")
        yield Row(f"Redis latency, {share}", most, taken, "ms", most=True)


def _fan_in(kind: str, label: str, seconds: float) -> Callable[[Figures], Iterator[Row]]:
    def made(f: Figures) -> Iterator[Row]:
        yield Row(
            f"{label} fan-in of 1,000", seconds, f("engine", kind, "fan-out 1,000, fan-in"), "s", most=True
        )

    return made


def _crawl(kind: str, label: str) -> Callable[[Figures], Iterator[Row]]:
    def made(f: Figures) -> Iterator[Row]:
        ratio = f.within_rounds("crawl", kind, "crawl, per item", "flat, per item")
        yield Row(f"{label} item of a nested crawl, of a flat one", 1.2, ratio, most=True)

    return made


def _sqlite_drain(f: Figures) -> Iterator[Row]:
    name = "drain of no-ops"
    yield _least("SQLite drain, of memory's", 0.5, f("engine", "sqlite", name), f("engine", "memory", name))


def _memory(f: Figures) -> Iterator[Row]:
    floor = f("engine", "memory", "floor: a task each")
    yield _least("memory drain, of a task each", 0.25, f("engine", "memory", "drain of no-ops"), floor)
    many = f("engine", "memory", "enqueue and await each of 20,000")
    few = f("engine", "memory", "enqueue and await each of 2,000")
    yield _least("memory, 20,000 awaited, of a task each", 0.08, many, floor)
    yield _least("memory, 20,000 awaited, of the rate of 2,000", 0.8, many, few)


def _backlog(kind: str, label: str) -> Callable[[Figures], Iterator[Row]]:
    def made(f: Figures) -> Iterator[Row]:
        ratio = f.p95(kind, 1_000_000) / f.p95(kind, 1_000)
        yield Row(f"{label} claim p95, 1M ready of 1k", 2.0, ratio, most=True)

    return made


def _operate(kind: str, label: str) -> Callable[[Figures], Iterator[Row]]:
    def made(f: Figures) -> Iterator[Row]:
        for name, p95 in f.reads(kind):
            yield Row(f"{label} {name} at 1M ended, p95", operate.PROMISE, p95, "ms", most=True)

    return made


def _idle(kind: str, label: str) -> Callable[[Figures], Iterator[Row]]:
    def made(f: Figures) -> Iterator[Row]:
        yield Row(f"{label} idle, calls", 2.0, f("cost", kind, "idle, calls to the store"), "/s", most=True)
        yield Row(f"{label} idle, CPU", 1.0, f("cost", kind, "idle, CPU"), "%", most=True)
        yield Row(f"{label} idle, RSS", 45.0, f("cost", kind, "idle, RSS"), "MB", most=True)

    return made


def _import(f: Figures) -> Iterator[Row]:
    own, floor = f("cost", "python", "import treadle"), f("cost", "python", "floor: import treadle")
    alone = f("cost", "python", "python alone")
    yield Row("import, of msgspec and asyncio", 2.5, (own - alone) / (floor - alone), most=True)


def _of(kind: str, peer: str, case: str, label: str, must: float) -> Callable[[Figures], Iterator[Row]]:
    def made(f: Figures) -> Iterator[Row]:
        yield Row(label, must, f.of_peer(kind, peer, case))

    return made


def _best_other(kind: str, label: str) -> Callable[[Figures], Iterator[Row]]:
    """Compared with peers that return a result or a status. pgqueuer has its own rows."""

    def made(f: Figures) -> Iterator[Row]:
        others = {peer: f.of_peer(kind, peer, "awaited") for peer in f.awaiting(kind)}
        if others:
            best = min(others, key=others.__getitem__)
            yield Row(f"1,000 awaited, of the best other on {label}: {best}", 5.0, others[best])

    return made


_PEERS = (
    _of("postgres", "pgqueuer", "drain, 1 process", "PostgreSQL drain, of pgqueuer's", 1.5),
    _of("postgres", "pgqueuer", "bulk", "PostgreSQL bulk, of pgqueuer's", 1.5),
    _of("postgres", "pgqueuer", "awaited", "PostgreSQL 1,000 awaited, of pgqueuer's", 1.3),
    _of(
        "postgres",
        "pgqueuer",
        "awaited, one process",
        "PostgreSQL 1,000 awaited in one process, of pgqueuer's",
        1.3,
    ),
    _best_other("postgres", "PostgreSQL"),
    _best_other("valkey", "Valkey"),
    _of("valkey", "bullmq", "drain, 1 process", "Valkey drain, of BullMQ's", 2.5),
    _of("valkey", "huey", "drain, 1 process", "Valkey drain, of huey's", 5.0),
    _of("valkey", "dramatiq", "drain, 1 process", "Valkey drain, of dramatiq's", 5.0),
    _of("sqlite", "huey", "drain, 1 process", "SQLite drain, of huey's", 4.0),
    _of("memory", "huey", "drain, 1 process", "memory drain, of huey's (an aim)", 1.0),
)


_ROWS: tuple[Callable[[Figures], Iterator[Row]], ...] = (
    _pg_drain,
    _pg_submit,
    _pg_latency,
    _fan_in("postgres", "PostgreSQL", 0.3),
    _fan_in("sqlite", "SQLite", 0.15),
    _fan_in("redis", "Redis", 0.15),
    _redis,
    _fan_in("memory", "memory", 0.15),
    _crawl("postgres", "PostgreSQL"),
    _crawl("sqlite", "SQLite"),
    _crawl("memory", "memory"),
    _crawl("redis", "Redis"),
    _sqlite_drain,
    _memory,
    _backlog("sqlite", "SQLite"),
    _backlog("postgres", "PostgreSQL"),
    _backlog("redis", "Redis"),
    _operate("sqlite", "SQLite"),
    _operate("postgres", "PostgreSQL"),
    _operate("redis", "Redis"),
    _idle("memory", "memory"),
    _idle("sqlite", "SQLite"),
    _idle("postgres", "PostgreSQL"),
    _idle("redis", "Redis"),
    _import,
    *_PEERS,
)
