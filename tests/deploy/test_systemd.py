"""The units in `deploy/systemd` are valid, and so is every command in `deploy/` that starts a worker."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cli.calling import all_commands

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def commands() -> dict[str, list[str]]:
    """Every command that starts treadle, by the file that has it."""
    found: dict[str, list[str]] = {}
    for unit in UNITS:
        for line in re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE):
            found[unit.name] = shlex.split(line)
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    found["Dockerfile"] = yaml.safe_load(re.findall(r"^CMD (\[.*\])$", dockerfile, re.MULTILINE)[0])
    for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for each in yaml.safe_load_all(file.read_text()):
            for container in each["spec"].get("template", {}).get("spec", {}).get("containers", ()):
                found[file.name] = container["command"]
    return {name: each for name, each in found.items() if Path(each[0]).name == "treadle"}


COMMANDS = commands()


def test_there_is_a_command_in_each_kind_of_file() -> None:
    assert set(COMMANDS) == {"shop-worker.service", "Dockerfile", "worker.yaml", "migrate.yaml"}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_have_options_that_exist(name: str) -> None:
    _, verb, *options = COMMANDS[name]
    command = all_commands().commands[verb]
    context = command.make_context(verb, options)
    assert verb != "worker" or context.params["app"] == "shop.jobs:app"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_are_valid(unit: Path, tmp_path: Path) -> None:
    """systemd also looks whether the program exists: here it is another one."""
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(), flags=re.MULTILINE)
    copy = tmp_path / unit.name
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if unit.stem in line]
    assert (done.returncode, ours) == (0, [])
