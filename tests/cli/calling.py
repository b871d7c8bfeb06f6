"""Calls commands of the command line in this process, and as processes of their own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from typer.main import get_command
from typer.testing import CliRunner

from tests.cli.forks import Forked, common_server
from treadle.cli.commands import commands

PROJECT = Path(__file__).parents[2]


class Called(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The lines of `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]


def call(*arguments: str, env: Mapping[str, str | None] | None = None, input: str | None = None) -> Called:
    """Run a command in this process. Not from within an event loop. input: its standard input."""
    given = {"TREADLE_APP": None, "TREADLE_URL": None, **(env or {})}
    code: Any = 0
    with CliRunner().isolation(input=input, env=given) as (out, err, _):
        try:
            all_commands().main(list(arguments), prog_name="treadle")
        except SystemExit as ended:
            code = ended.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
        return Called(code, out.getvalue().decode(), err.getvalue().decode())


@cache
def all_commands() -> Any:
    """All commands, ready to be called. To make them takes longer than most calls."""
    return get_command(commands)


def start(*arguments: str, here: Path = PROJECT) -> Forked:
    """Start a command as a process of its own, with pipes. here: its directory."""
    env = {name: value for name, value in os.environ.items() if name not in ("TREADLE_APP", "TREADLE_URL")}
    return common_server().start_with_pipes(["treadle", *arguments], here, env)
