"""The wheel, installed alone into an empty environment: what the README shows works there.

It builds, and installs from the index or the cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

ROOT = Path(__file__).parents[2]
README_BLOCK = re.compile(r"^```python\n(import asyncio\n.*?)^```", re.MULTILINE | re.DOTALL)
TESTING_BLOCK = re.compile(r"^```python\n(# test_shop\.py\n.*?)^```", re.MULTILINE | re.DOTALL)
DJANGO_FILE = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LIMIT = 120

pytestmark = pytest.mark.timeout(300)


def execute(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What a program printed. It must end with 0."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def uv(*arguments: str | Path, cwd: Path) -> str:
    return execute(sys.executable, "-m", "uv", *arguments, cwd=cwd)


class Environment(NamedTuple):
    """An environment with nothing but the wheel, its extras, and what they need."""

    home: Path
    work: Path
    """The working directory: nothing of the repository can be imported from it."""

    def execute(self, program: str, *arguments: str | Path, **variables: str) -> str:
        """What a program of the environment printed."""
        return execute(self.program(program), *arguments, cwd=self.work, env=self.variables(**variables))

    def program(self, name: str) -> Path:
        return self.home / "bin" / name

    def variables(self, **more: str) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))
        }
        return {**kept, "PATH": f"{self.home / 'bin'}:{os.environ['PATH']}", **more}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that was built from it."""
    directory = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", directory, cwd=ROOT)
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def make_environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Environment]:
    def make(extras: str = "", *more: str) -> Environment:
        directory = tmp_path_factory.mktemp("environment")
        home, work = directory / "venv", directory / "work"
        work.mkdir()
        uv("venv", "--quiet", "--python", sys.executable, home, cwd=directory)
        needs = f"treadle{extras} @ {wheel.as_uri()}"
        uv("pip", "install", "--quiet", "--python", home, needs, *more, cwd=directory)
        return Environment(home, work)

    return make


@pytest.fixture(scope="module")
def alone(make_environment: Callable[..., Environment]) -> Environment:
    return make_environment()


@pytest.fixture(scope="module")
def full(make_environment: Callable[..., Environment]) -> Environment:
    return make_environment("[all]")


# -- what is inside ------------------------------------------------------------------------------------


def test_the_wheel_has_all_files_of_the_package_and_no_others(wheel: Path) -> None:
    """Every file that is under version control: SQL, Lua, templates, style sheets, `py.typed`."""
    tracked = execute("git", "ls-files", "src/treadle", cwd=ROOT).split()
    expected = {name.removeprefix("src/") for name in tracked}
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert inside == expected
    assert "treadle/py.typed" in inside
    kinds = {Path(name).suffix for name in inside}
    assert {".py", ".sql", ".lua", ".html", ".css", ".js", ".svg"} <= kinds


def test_the_sdist_builds_the_same_wheel_as_the_repository(built: Path, wheel: Path, tmp_path: Path) -> None:
    uv("build", "--quiet", "--wheel", "--out-dir", tmp_path, cwd=ROOT)
    (direct,) = tmp_path.glob("*.whl")
    assert contents(direct) == contents(wheel)
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        tops = {name.split("/")[1] for name in file.getnames() if "/" in name}
    assert {"src", "tests", "docs", "deploy", "README.md", "LICENSE", "pyproject.toml"} <= tops
    assert not {"benchmarks", ".venv", ".git"} & tops


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


# -- alone ---------------------------------------------------------------------------------------------


def test_the_first_program_of_the_readme_runs(alone: Environment) -> None:
    block = README_BLOCK.search((ROOT / "README.md").read_text())
    assert block is not None
    (alone.work / "first.py").write_text(block[1])
    assert alone.execute("python", "-W", "error", "first.py") == "3\n"
    where = alone.execute("python", "-c", "import treadle; print(treadle.__file__)")
    assert where.startswith(str(alone.home))


def test_the_wheel_brings_three_libraries(alone: Environment) -> None:
    listed = uv("pip", "list", "--quiet", "--format=freeze", "--python", alone.home, cwd=alone.work)
    names = {line.partition("==")[0].partition(" @")[0] for line in listed.splitlines()}
    assert names == {"cronsim", "msgspec", "treadle", "typing-extensions"}


def test_the_command_without_its_extra_says_what_to_install(alone: Environment) -> None:
    done = subprocess.run(
        [alone.program("treadle"), "status"],
        cwd=alone.work,
        env=alone.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install 'treadle[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


# -- with extras ---------------------------------------------------------------------------------------

SHOP = """
import os

from treadle import Treadle, work


@work(name="greet")
async def greet(name: str) -> str:
    return f"hello {name}"


app = Treadle(os.environ.get("STORE_URL", "sqlite:///shop.db"), work=[greet])
"""


def run_commands(full: Environment, url: str) -> None:
    """Migrate, enqueue, run and look, with the command line."""
    (full.work / "shop.py").write_text(SHOP)

    def treadle(*arguments: str) -> str:
        return full.execute("treadle", *arguments, STORE_URL=url, TREADLE_APP="shop:app")

    treadle("migrate")
    treadle("run", "greet", '{"name": "ada"}')
    treadle("worker", "--burst")
    shown = treadle("list", "--json")
    assert '"status":"success"' in shown
    assert "hello ada" in shown
    assert "healthy" in treadle("status")


def test_the_command_line_on_sqlite(full: Environment) -> None:
    run_commands(full, "sqlite:///commands.db")


def test_the_command_line_on_postgresql(full: Environment, postgres_url: str) -> None:
    run_commands(full, postgres_url)


def test_the_command_line_on_valkey(full: Environment, valkey_url: str) -> None:
    run_commands(full, valkey_url)


def test_the_dashboard_answers_with_its_style_and_scripts(full: Environment) -> None:
    (full.work / "shop.py").write_text(SHOP)
    url = "sqlite:///dashboard.db"
    full.execute("treadle", "migrate", url)
    command = [full.program("treadle"), "web", "--url", url, "--port", "0"]
    server = subprocess.Popen(
        command,
        cwd=full.work,
        env=full.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        link = next(line for line in server.stdout if line.startswith("open ")).split()[1]
        with httpx.Client(follow_redirects=True, timeout=30) as visitor:
            page = visitor.get(link)
            assert page.status_code == 200
            needed = set(re.findall(r'(?:href|src)="([^"]+\.(?:css|js|svg)[^"]*)"', page.text))
            assert {kind for name in needed for kind in ("css", "js", "svg") if f".{kind}" in name} == {
                "css",
                "js",
                "svg",
            }
            for name in needed:
                answer = visitor.get(page.url.join(name))
                assert answer.status_code == 200, name
                assert answer.text, name
    finally:
        server.terminate()
        _, errors = server.communicate(timeout=30)
    assert errors == ""


def test_a_django_project(full: Environment) -> None:
    """The project of docs/django.md: migrate, check, a task from a view, the worker, the admin, the tests."""
    project = full.work / "django"
    project.mkdir()
    full.execute("django-admin", "startproject", "project", str(project))
    six = int(full.execute("python", "-c", "import django; print(django.VERSION[0])")) >= 6
    (project / "shop").mkdir()
    (project / "shop" / "__init__.py").touch()
    for name, text in DJANGO_FILE.findall((ROOT / "docs" / "django.md").read_text()):
        file = project / name
        before = file.read_text() if name == "project/settings.py" else ""
        file.write_text(before + (text if six else for_django_5(text)))
    with (project / "project" / "urls.py").open("a") as urls:
        urls.write(URLS)

    def manage(*arguments: str) -> str:
        return execute(full.program("python"), "manage.py", *arguments, cwd=project, env=full.variables())

    manage("makemigrations", "shop")
    manage("migrate")
    manage("check", "--database", "default")
    assert manage("shell", "-c", CHECK_OUT).splitlines()[-1] == "202"
    manage("treadle", "worker", "--burst")
    assert "order 7 confirmed" in manage("treadle", "list", "--json")
    assert "confirm order 7" in manage("treadle", "schedules")
    assert manage("shell", "-c", LOOK).splitlines()[-2:] == ["200 True", "200 True"]
    manage("test", "--verbosity=0")


CHECK_OUT = """
from django.test import Client
print(Client(SERVER_NAME="localhost").post("/checkout/7").status_code)
"""
LOOK = """
from django.contrib.auth.models import User
from django.test import Client
visitor = Client(SERVER_NAME="localhost")
visitor.force_login(User.objects.create_superuser("ann"))
for address in ("/treadle/items", "/admin/treadle/item/"):
    page = visitor.get(address)
    print(page.status_code, b"confirm" in page.content)
"""
URLS = """
from django.contrib import admin

urlpatterns += [path("admin/", admin.site.urls)]
"""


def for_django_5(text: str) -> str:
    return text.replace("from django.tasks", "from django_tasks").replace(
        'INSTALLED_APPS += ["treadle', 'INSTALLED_APPS += ["django_tasks", "treadle'
    )


def test_the_pytest_plugin(full: Environment) -> None:
    """The file of docs/testing.md passes in an empty project."""
    block = TESTING_BLOCK.search((ROOT / "docs" / "testing.md").read_text())
    assert block is not None
    (full.work / "test_shop.py").write_text(block[1])
    assert re.search(r"\d+ passed", full.execute("python", "-m", "pytest", "-q", "test_shop.py"))


def test_types_are_found(full: Environment) -> None:
    """`py.typed` makes the annotations count for the programs of others."""
    marker = "import treadle, pathlib; print((pathlib.Path(treadle.__file__).parent / 'py.typed').exists())"
    assert full.execute("python", "-c", marker) == "True\n"
