"""Commands: `flask treadle ...` is the command line of treadle, for the app of the Flask app."""

from __future__ import annotations

import os
from typing import Final

import click
from flask import Flask
from flask.cli import ScriptInfo

APP: Final = "treadle.contrib.flask.loaded:app"
"""Where the command line, and the processes of a worker, find the app."""


def add_commands(flask: Flask) -> None:
    """Add `treadle` to the commands of a Flask app."""

    # The command line of treadle reads its own arguments: typer has a click of its own.
    @flask.cli.command(
        "treadle",
        short_help="Run workers, inspect and repair: the commands of treadle.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @click.pass_context
    def run(context: click.Context, arguments: tuple[str, ...]) -> None:
        from treadle.cli.commands import commands

        script = context.find_object(ScriptInfo)
        if script is not None and script.app_import_path:
            os.environ["FLASK_APP"] = script.app_import_path  # for the processes of a worker
        os.environ["TREADLE_APP"] = APP
        commands(list(arguments), prog_name="flask treadle")
