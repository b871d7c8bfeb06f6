"""Run Django's own tests of task backends against the backend of treadle: `make django-suite`.

    python -m tests.contrib.django.django_suite DJANGO

DJANGO is the directory of Django's source (6.0 or later), with its tests. The test files are as Django has
them. Only the two backends that they name are replaced: the dummy one, which stores, and the immediate one,
which runs at once. The stores are memory, a SQLite file and a PostgreSQL server.
"""

from __future__ import annotations

import io
import logging
import sys
import unittest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import django
from django.conf import settings

from tests.support.postgres import start as start_postgres
from tests.support.postgres import stop as stop_postgres
from treadle import Retry

DIFFERENT = {
    "DummyBackendTestCase.test_refresh_result": "it changes a result in the memory of the dummy backend",
    "DummyBackendTestCase.test_refresh_result_async": "the same",
    "DummyBackendTransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "an enqueue in a transaction takes part in it"
    ),
    "ImmediateBackendTestCase.test_cannot_get_result": "results can be read",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "the same",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "run_after is supported",
}
"""The tests that say what the two backends of Django cannot do, or do otherwise, and why."""


store = ["memory://"]
"""The URL of the store that is tested now."""


def main(source: Path) -> int:
    sys.path.insert(0, str(source / "tests"))
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        SECRET_KEY="a secret of tests",
        INSTALLED_APPS=["treadle.contrib.django"],
        USE_TZ=False,
    )
    django.setup()
    logging.getLogger("treadle").addHandler(logging.NullHandler())
    with TemporaryDirectory() as directory:
        run = Path(directory)
        run.chmod(0o755)  # the server may run as another user
        try:
            urls = ["memory://", f"sqlite:///{run}/work.db", start_postgres(run)]
            _replace_backends()
            return max([_run(url) for url in urls])
        finally:
            stop_postgres(run)


def _run(url: str) -> int:
    from django.test.runner import DiscoverRunner

    from treadle.contrib.django.stores import close_apps

    store[0] = url
    runner = DiscoverRunner(verbosity=0)
    runner.setup_test_environment()
    suite = runner.build_suite(["tasks"])
    databases = runner.setup_databases()
    shown = io.StringIO()
    outcome = unittest.TextTestRunner(stream=shown).run(suite)
    close_apps()
    runner.teardown_databases(databases)
    runner.teardown_test_environment()
    code = _report(url, outcome)
    if code:
        sys.stdout.write(shown.getvalue())
    return code


def _report(url: str, outcome: unittest.TestResult) -> int:
    failed = {_name(test) for test, _ in (*outcome.failures, *outcome.errors)}
    expected = failed & DIFFERENT.keys()
    show = sys.stdout.write
    show(
        f"Django {django.get_version()} on {url.partition(':')[0]}: {outcome.testsRun} tests, "
        f"{outcome.testsRun - len(failed)} passed, {len(expected)} do not apply, "
        f"{len(failed - expected)} failed\n"
    )
    for name in sorted(expected):
        show(f"  does not apply: {name}: {DIFFERENT[name]}\n")
    for name in sorted(failed - expected):
        show(f"  failed: {name}\n")
    for name in sorted(DIFFERENT.keys() - failed):
        show(f"  passed, and should not: {name}\n")
    return 1 if failed != DIFFERENT.keys() else 0


def _name(test: Any) -> str:
    case = getattr(test, "test_case", test)  # of a subtest
    return f"{type(case).__name__}.{case._testMethodName}"


def _replace_backends() -> None:
    """Put backends of treadle in the place of those that the tests import."""
    from django.tasks.backends import dummy, immediate

    from treadle.app import Treadle
    from treadle.contrib.django import TreadleBackend
    from treadle.contrib.django.django_api import Task, TaskResult
    from treadle.contrib.django.stores import app_of
    from treadle.contrib.django.testing import run_enqueued

    class Stored(TreadleBackend):
        @property
        def app(self) -> Treadle:
            # The tests want OPTIONS to be empty.
            return app_of(self.alias, {"url": store[0], "retry": Retry(attempts=1)})

        @property
        def results(self) -> list[TaskResult]:
            items = self.app.sync.list(oldest_first=True).items
            return [self.get_result(item.id) for item in items]

        def clear(self) -> None:
            for item in self.app.sync.list().items:
                self.app.sync.cancel(item.id)
                self.app.sync.delete(item.id)

    class Immediate(Stored):
        def enqueue(self, task: Task, args: Any, kwargs: Any) -> TaskResult:
            self.clear()  # a test leaves a task that was interrupted
            result = super().enqueue(task, args, kwargs)
            run_enqueued(self.alias)
            return self.get_result(result.id)

    dummy.DummyBackend = Stored
    immediate.ImmediateBackend = Immediate


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
