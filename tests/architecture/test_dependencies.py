"""What treadle needs to be installed, and what it loads. Who imports whom: `make check`."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest

PROJECT = Path(__file__).parents[2]
OPTIONAL = {"asyncpg", "psycopg", "pydantic", "pytest", "redis", "rich", "sqlalchemy", "typer"}
PUBLIC_HOSTS = {"pypi.org", "files.pythonhosted.org"}


def test_the_core_needs_three_libraries() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    everywhere = [need for need in project["dependencies"] if "sys_platform" not in need]
    names = {re.split(r"[<>=]", need)[0] for need in everywhere}
    assert names == {"cronsim", "msgspec", "typing-extensions"}


@pytest.mark.usefixtures("processes")
def test_importing_treadle_loads_nothing_optional() -> None:
    program = "import sys, treadle; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert OPTIONAL & set(loaded.stdout.decode().split()) == set()


def test_the_lock_names_only_the_public_index() -> None:
    urls = re.findall(r'"(\w+://[^"]+)"', (PROJECT / "uv.lock").read_text())
    assert {urlsplit(url).hostname for url in urls} == PUBLIC_HOSTS
