"""Both type checkers find every mistake in the wrong programs, on its line, and nothing else.

The correct programs are in this directory. `make check` runs both checkers on them. Here they are also
imported, so that Python agrees with the checkers about the definitions.
"""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WRONG = sorted((HERE / "wrong").glob("*.py"))
RIGHT = sorted(path.stem for path in HERE.glob("*.py") if not path.name.startswith("test_"))

_MARK = re.compile(r"# E: \S")
_MYPY_ERROR = re.compile(r"^(?P<path>.+?):(?P<line>\d+): error: ", re.MULTILINE)

Lines = set[tuple[str, int]]


def marked() -> Lines:
    return {
        (path.name, number)
        for path in WRONG
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if _MARK.search(line)
    }


def found_by_pyright() -> Lines:
    # It has its own configuration there: pyright skips files that the main one excludes, even if named.
    place = ("--project", str(HERE / "wrong"), "--pythonpath", sys.executable)
    answer = json.loads(_run("pyright", "--outputjson", *place))
    return {
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1)
        for each in answer["generalDiagnostics"]
        if each["severity"] == "error"
    }


def found_by_mypy() -> Lines:
    place = ("--config-file", str(HERE / "wrong" / "mypy.ini"))
    matches = _MYPY_ERROR.finditer(_run("mypy", "--no-error-summary", *place, *map(str, WRONG)))
    return {(Path(match["path"]).name, int(match["line"])) for match in matches}


def _run(checker: str, *options: str) -> str:
    command = [sys.executable, "-m", checker, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1, f"{checker} did not run, or found nothing:\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_wrong_programs_contain_mistakes() -> None:
    assert len(marked()) > 30


@pytest.mark.usefixtures("type_checkers")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("found", [found_by_pyright, found_by_mypy])
def test_every_mistake_is_found_on_its_line(found: Callable[[], Lines]) -> None:
    lines = found()
    assert sorted(marked() - lines) == [], "marked, but not found"
    assert sorted(lines - marked()) == [], "found, but not marked"


@pytest.mark.parametrize("name", RIGHT)
def test_correct_programs_run(name: str) -> None:
    importlib.import_module(f"tests.typing.{name}")
