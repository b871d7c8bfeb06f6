"""FlaskTreadle: an app of treadle as an extension of Flask."""

from __future__ import annotations

import atexit
import os
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

import click
from flask import Flask
from flask.cli import ScriptInfo

from treadle.app import Treadle
from treadle.errors import InputError
from treadle.sync import SyncApp
from treadle.worker import set_scope

if TYPE_CHECKING:
    from .board import FlaskAccessFn

NAME: Final = "treadle"
"""Its name in `flask.extensions`."""


class FlaskTreadle:
    """An app of treadle in an app of Flask.

    - `jobs.sync` has the methods of the app for views. It starts an event loop in a background thread, on
      first use in each process: also after a fork, as with `gunicorn --preload`. It is ended at exit.
    - Handlers run in `flask.app_context()`. Handlers in processes do not.
    - `flask treadle worker`, `flask treadle status` and the like are the commands of treadle for this app.

    treadle: the app.
    flask: the Flask app. In an application factory, leave it out and call `init_app`.
    """

    def __init__(self, treadle: Treadle, flask: Flask | None = None) -> None:
        if not isinstance(treadle, Treadle):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.of("treadle", treadle, "must be a Treadle app")
        self.treadle = treadle
        atexit.register(treadle.sync.close)
        if flask is not None:
            self.init_app(flask)

    def init_app(self, flask: Flask) -> None:
        """Add it to a Flask app. Call it before the worker starts. Handlers run in the context of the app
        that it was added to last."""
        if NAME in flask.extensions:
            raise InputError.of("flask", flask, "has an app of treadle already")
        flask.extensions[NAME] = self
        set_scope(self.treadle.worker, flask.app_context)
        add_commands(flask)

    @property
    def sync(self) -> SyncApp:
        """The methods of the app, for code that is not async: `jobs.sync.enqueue(add(1, 2))`."""
        return self.treadle.sync

    def mount_dashboard(
        self,
        flask: Flask,
        path: str = "/treadle",
        *,
        access: FlaskAccessFn,
        title: str = "treadle",
        links: Mapping[str, str] | None = None,
        mask: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> None:
        """Serve the dashboard under a path of a Flask app. Needs the extra `treadle[web]`.

        access: `access()` returns what a visitor may do: an `Access` of `treadle.dashboard`, or None for
            nothing (403). It is called in the context of the request: it can use `request`, `session` and
            what other extensions offer. It may return a response, as `redirect(url_for("login"))`, and it may
            call `abort`. There is no default: a dashboard is closed.

        The others are those of `treadle.dashboard.dashboard`.
        """
        from .board import mount

        mount(
            flask,
            path,
            self.treadle,
            access,
            {"title": title, "links": links, "mask": mask, "origins": origins},
        )

    def __repr__(self) -> str:
        return f"<FlaskTreadle of {self.treadle!r}>"


def extension_of(flask: Flask) -> FlaskTreadle:
    """The one of a Flask app. `InputError` if it has none."""
    found: Any = flask.extensions.get(NAME)
    if not isinstance(found, FlaskTreadle):
        raise InputError(f"the Flask app {flask.name!r} has no app of treadle: FlaskTreadle(treadle, app)")
    return found


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
