"""The programs on treadle of examples/moving, on real stores, with a worker in the same process."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.moving.pairs import PAIRS, Pair

SOURCE = Path(__file__).parents[2] / "src"
IN_PROCESS = [pair for pair in PAIRS if pair.name != "django_tasks"]


@pytest.fixture
def url(pair: Pair, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_url" if pair.store == "postgres" else "valkey_url"))


@pytest.mark.parametrize("pair", IN_PROCESS, ids=lambda pair: pair.name)
def test_the_program_prints_what_it_should(
    pair: Pair, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORE_URL", url)
    after = load(pair.folder / "after.py", monkeypatch)
    if inspect.iscoroutinefunction(after.main):
        asyncio.run(run_async(after))
    else:
        with after.app.sync:
            after.main()
    assert capsys.readouterr().out.splitlines() == list(pair.lines)


async def run_async(program: ModuleType) -> None:
    async with program.app:
        await program.main()


@pytest.mark.parametrize("pair", PAIRS[:1], ids=lambda pair: pair.name)
def test_callers_that_are_written_for_celery_print_the_same(
    pair: Pair, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORE_URL", url)
    after = load(pair.folder / "after.py", monkeypatch)
    between = load(pair.folder / "between.py", monkeypatch)
    with after.app.sync:
        between.main()
    assert capsys.readouterr().out.splitlines() == list(pair.lines)


def load(file: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a program under its own name, for this test only."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module


DJANGO = """
import program
from django.core.management import call_command
from treadle.contrib.django import task_apps

call_command("migrate", verbosity=0)
with task_apps.default.sync:
    program.main()
"""


@pytest.mark.parametrize(
    "pair", [each for each in PAIRS if each.name == "django_tasks"], ids=["django_tasks"]
)
def test_the_django_project_prints_what_it_should(pair: Pair, url: str, tmp_path: Path) -> None:
    folder = shutil.copytree(pair.folder, tmp_path / "program")
    known = (str(folder), str(SOURCE), os.environ.get("PYTHONPATH", ""))
    answer = subprocess.run(
        [sys.executable, "-c", DJANGO],
        cwd=folder,
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "after",
            "STORE_URL": url,
            "PYTHONPATH": os.pathsep.join(filter(None, known)),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == list(pair.lines)
