"""docs/django.md is a project: its blocks are files, and the tests in it pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import django
import pytest
from django.core.management import call_command

ROOT = Path(__file__).parents[3]
FILE = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```python$", re.MULTILINE)


@pytest.mark.usefixtures("processes")
def test_the_project_of_the_docs_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "django.md").read_text()
    files = FILE.findall(page)
    assert len(files) == len(BLOCK.findall(page)), "each block begins with the name of its file"
    call_command("startproject", "project", tmp_path, verbosity=0)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    for name, text in files:
        file = tmp_path / name
        before = file.read_text() if name == "project/settings.py" else ""
        file.write_text(before + here(text))

    known = (str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, known))}

    def manage(*arguments: str) -> str:
        command = [sys.executable, "-W", "error", "manage.py", *arguments]
        answer = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
        return answer.stderr

    assert "Ran 3 tests" in manage("test", "--verbosity=0")
    assert manage("migrate", "treadle", "--verbosity=0") == "", "nothing is wrong with an empty database"


def here(text: str) -> str:
    """The same for the Django that is installed."""
    if django.VERSION >= (6,):
        return text
    return text.replace("from django.tasks", "from django_tasks").replace(
        'INSTALLED_APPS += ["treadle', 'INSTALLED_APPS += ["django_tasks", "treadle'
    )
