"""`manage.py treadle worker`, `status`, `why`, ...: the command line of treadle, for the app of a backend."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from typing import Final

from treadle.contrib.django.backend import TreadleBackend
from treadle.contrib.django.django_api import BaseCommand, CommandError, settings, task_backends

_APPS: Final = "treadle.contrib.django.task_apps"


class Command(BaseCommand):
    help = "The command line of treadle, for the app of a backend in TASKS: worker, status, why, ..."

    def run_from_argv(self, argv: list[str]) -> None:
        """Without the parser of Django: the options after the name of the command are those of treadle."""
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        for option in ("--backend", "--settings", "--pythonpath"):  # Django has read the last two before
            parser.add_argument(option)
        given, arguments = parser.parse_known_args(argv[2:])
        try:
            run(arguments, given.backend, f"{os.path.basename(argv[0])} {argv[1]}")  # noqa: PTH119
        except CommandError as error:
            sys.exit(f"{type(error).__name__}: {error}")

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", help="the alias in TASKS")
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *, arguments: Sequence[str], backend: str | None = None, **_: object) -> None:
        run(arguments, backend, "treadle")


def run(arguments: Sequence[str], alias: str | None, name: str) -> None:
    """Run the command line. It raises SystemExit at its end."""
    try:
        from treadle.cli.commands import commands
    except ModuleNotFoundError as error:
        raise CommandError(f"the command line needs {error.name}: pip install 'treadle[cli]'") from error
    os.environ["TREADLE_APP"] = f"{_APPS}:{alias or _only_alias()}"
    _let_children_import()
    commands(with_reload(arguments, settings.DEBUG), prog_name=name)


def with_reload(arguments: Sequence[str], debug: bool) -> list[str]:
    """A worker starts again when a file changes, as `runserver` does, if DEBUG is on."""
    chosen = {"--reload", "--no-reload", "--burst"} & set(arguments)
    return [*arguments, *(["--reload"] if debug and list(arguments[:1]) == ["worker"] and not chosen else [])]


def _only_alias() -> str:
    """The alias of the one backend of treadle: `default`, if there are several."""
    aliases = [each for each in task_backends if isinstance(task_backends[each], TreadleBackend)]
    if "default" in aliases or len(aliases) == 1:
        return "default" if "default" in aliases else aliases[0]
    if not aliases:
        raise CommandError("no backend in TASKS is treadle.contrib.django.TreadleBackend")
    raise CommandError(f"say which backend: --backend {' or '.join(aliases)}")


def _let_children_import() -> None:
    """Worker processes find the modules of the project where this one does."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = [sys.path[0]] if sys.path[0] and sys.path[0] not in known else []
    os.environ["PYTHONPATH"] = os.pathsep.join([*here, *filter(None, known)])
