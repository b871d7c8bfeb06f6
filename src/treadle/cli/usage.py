"""Usage errors as one line on standard error, like all other errors of the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from treadle.base.wording import plain

from .exit_codes import REFUSED, USAGE


class OneLineErrors(TyperGroup):
    """The group of all commands. It says in one line what is wrong with a call, and where the help is."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except typer.Abort:
            typer.echo("treadle: stopped", err=True)
            sys.exit(REFUSED)
        except Exception as error:
            # By its method, since typer may have a click of its own.
            format_message = getattr(error, "format_message", None)
            if format_message is None:
                raise
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(format_message(), err=True)
                sys.exit(USAGE)
            typer.echo(f"treadle: {_one_line(error, format_message())}", err=True)
            sys.exit(USAGE)
        sys.exit(code if isinstance(code, int) else 0)


def _one_line(error: Exception, message: str) -> str:
    """What is wrong, and which help says more."""
    context = getattr(error, "ctx", None)
    path = "treadle" if context is None else context.command_path.replace("python -m treadle", "treadle")
    text = " ".join(message.split())
    text = text[:1].lower() + text[1:].rstrip(".")
    return f"{plain(text)}{'' if text.endswith('?') else '.'} See `{path} --help`"
