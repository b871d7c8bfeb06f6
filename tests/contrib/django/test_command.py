"""`manage.py treadle`, in a project of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.django.conftest import BACKEND
from treadle import Treadle, work
from treadle.contrib.django.management.commands.treadle import with_reload

ROOT = Path(__file__).parents[3]

MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
SETTINGS = f"""
import django
from pathlib import Path
from typing import Any
INSTALLED_APPS = [*([] if django.VERSION >= (6,) else ["django_tasks"]), "treadle.contrib.django", "mails"]
DATABASES = {{"default": {{
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": Path(__file__).parents[1] / "db.sqlite3",
    "OPTIONS": {{"transaction_mode": "IMMEDIATE"}},
}}}}
TASKS = {{"default": {{"BACKEND": "{BACKEND}", "QUEUES": []}}}}
SECRET_KEY = "a secret of tests"
"""
TASKS = """
try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

@task
def send(to):
    return f"sent to {to}"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "manage.py": MANAGE,
        "project/__init__.py": "",
        "project/settings.py": SETTINGS,
        "mails/__init__.py": "",
        "mails/tasks.py": TASKS,
    }.items():
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "site"


def send(args: list[Any], kwargs: dict[str, Any]) -> Any: ...


@pytest.mark.usefixtures("processes")
def test_a_worker_runs_the_tasks_of_a_project(project: Path) -> None:
    app = Treadle(f"sqlite:///{project}/db.sqlite3")
    call = work.declare("mails.tasks.send", send)([], {"to": "ann"})
    handle = app.sync.enqueue(call)
    known = (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    answer = subprocess.run(
        [sys.executable, "site/manage.py", "treadle", "worker", "--burst", "--settings=project.settings"],
        cwd=project.parent,  # not where manage.py is
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, known))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert handle.state().result == "sent to ann"
    app.sync.close()


@pytest.mark.parametrize(
    ("arguments", "debug", "expected"),
    [
        (["worker"], True, ["worker", "--reload"]),
        (["worker"], False, ["worker"]),
        (["worker", "--no-reload"], True, ["worker", "--no-reload"]),
        (["worker", "--burst"], True, ["worker", "--burst"]),
        (["status"], True, ["status"]),
        ([], True, []),
    ],
)
def test_a_worker_starts_again_when_files_change_with_debug(
    arguments: list[str], debug: bool, expected: list[str]
) -> None:
    assert with_reload(arguments, debug) == expected
