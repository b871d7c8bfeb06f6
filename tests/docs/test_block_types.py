"""Both type checkers, in strict mode, accept every Python block of the README and the docs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.block_types import module_of, write
from tests.docs.test_blocks import ROOT

CHECKERS = {
    "pyright": ["--project", ".", "--pythonpath", sys.executable],
    "mypy": ["--config-file", "mypy.ini", "--no-error-summary"],
}


@pytest.mark.usefixtures("type_checkers")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checkers_accept_the_blocks(checker: str, tmp_path: Path) -> None:
    modules = [module.relative_to(tmp_path).as_posix() for module in write(tmp_path)]
    named = modules if checker == "mypy" else []
    command = [sys.executable, "-m", checker, *CHECKERS[checker], *named]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_a_block_has_the_lines_of_its_page() -> None:
    page = ROOT / "docs" / "results-and-groups.md"
    lines = page.read_text().splitlines()
    checked = [(at, text.strip()) for at, text in enumerate(module_of(page).splitlines()) if text]
    assert len(checked) > 50
    assert {text.partition("_")[0] for at, text in checked if text != lines[at].strip()} == {
        "POSTGRES",
        "async def block",
    }
