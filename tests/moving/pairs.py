"""The pairs of programs in examples/moving: how their workers are started, and what both print."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).parents[2] / "examples" / "moving"
ENVIRONMENT = Path(sys.prefix)

SHOP = ("order 7: 500 charged at attempt 2", "ada reminded")
PARCELS = (
    "order 8 is waiting already",
    "order 7 shipped at attempt 2",
    "order 8 shipped at attempt 2",
)


@dataclass(frozen=True)
class Pair:
    """A program on another library, and the same program on treadle."""

    name: str
    """The folder, and the environment of the library, if it has one of its own."""
    store: str
    worker: str
    """The command that starts a worker of the other library."""
    lines: tuple[str, ...]
    prepare: tuple[str, ...] = ()
    """Commands that come before."""
    own_environment: bool = False
    program: str = "python before.py"
    after_worker: str = "treadle worker after:app"
    after_program: str = "python after.py"
    package: str = ""
    """The name of the package, if it is not that of the folder."""

    @property
    def folder(self) -> Path:
        return PROGRAMS / self.name

    @property
    def environment(self) -> Path:
        """Where the other library is installed."""
        return ENVIRONMENT / self.name if self.own_environment else ENVIRONMENT

    @property
    def is_installed(self) -> bool:
        found = self.environment.glob(f"lib/python3*/site-packages/{self.package or self.name}/__init__.py")
        return any(found)


PAIRS = [
    Pair(
        "celery",
        "valkey",
        "celery -A before worker -c 2 -l ERROR --without-gossip --without-mingle --without-heartbeat",
        (*SHOP, "total 900"),
    ),
    Pair(
        "rq",
        "valkey",
        "rq worker --with-scheduler --url {url} --logging_level WARNING",
        (*SHOP, "total 900"),
    ),
    Pair(
        "arq",
        "valkey",
        "arq before.WorkerSettings",
        ("enqueued again: False", "order 7: 500 EUR charged at attempt 2", "ada reminded", "total 900"),
        own_environment=True,
    ),
    Pair(
        "saq",
        "valkey",
        "saq before.settings",
        ("order 7: 500 EUR charged at attempt 2", "enqueued again: False", "ada reminded", "total 900"),
    ),
    Pair("dramatiq", "valkey", "dramatiq before -p 1 -t 2", (*SHOP, "with tax 480", "total 900")),
    Pair("huey", "valkey", "huey_consumer before.huey -q", (*SHOP, "with tax 480", "total 900")),
    Pair(
        "taskiq",
        "valkey",
        "taskiq worker --workers 1 before:broker",
        ("order 7: 500 EUR charged at attempt 2", "total 900"),
        own_environment=True,
    ),
    Pair(
        "procrastinate",
        "postgres",
        "python -m procrastinate --app=before.app worker",
        PARCELS,
        prepare=("python -m procrastinate --app=before.app schema --apply",),
    ),
    Pair(
        "pgqueuer",
        "postgres",
        "python before.py worker",
        PARCELS,
        prepare=("pgq --pg-dsn {url} install",),
    ),
    Pair(
        "django_tasks",
        "postgres",
        "python -m django db_worker --settings before",
        ("order 7: 500 charged at attempt 1", "ada reminded", "order 9: 500 charged at attempt 1"),
        prepare=("python -m django migrate --settings before", "python -m django migrate --settings after"),
        program="env DJANGO_SETTINGS_MODULE=before python program.py",
        after_worker="python -m django treadle worker --settings after",
        after_program="env DJANGO_SETTINGS_MODULE=after python program.py",
        package="django_tasks_db",
    ),
    Pair(
        "dbos",
        "postgres",
        "python before.py worker",
        ("the same workflow: True", "order 7: 500 charged at attempt 2, shipped"),
        prepare=("dbos migrate -s {url}",),
    ),
]
