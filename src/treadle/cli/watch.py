"""`treadle watch`: tell a receiver of problems, from a process without workers."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from treadle.errors import InputError
from treadle.operate.filters import names_in, read_duration
from treadle.problems import Webhook, check_kinds

from .shell import Shell, operator_command
from .status import IgnoreOption, MaxWaitOption

URL_VARIABLE: Final = "TREADLE_WEBHOOK_URL"
SECRET_VARIABLE: Final = "TREADLE_WEBHOOK_SECRET"


def register(commands: typer.Typer) -> None:
    operator_command(commands, "watch")(watch)


async def watch(
    shell: Shell,
    post: Annotated[
        str | None,
        typer.Option("--post", metavar="URL", help=f"where to. Default: {URL_VARIABLE}, or on_problem="),
    ] = None,
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="how long to wait between two looks")
    ] = "15s",
    max_wait: MaxWaitOption = "5m",
    ignore: IgnoreOption = None,
    once: Annotated[
        bool, typer.Option("--once", help="look once, tell what there is to tell, and end: for cron")
    ] = False,
) -> None:
    """Tell a receiver when problems appear, change or end, until Ctrl-C: also that no worker is alive.

    Any number of processes may do so, with the workers of an app that has on_problem=: each message is sent
    once. TREADLE_WEBHOOK_SECRET signs messages. --app without --post: tell the on_problem= of the app.
    """
    url = post or os.environ.get(URL_VARIABLE)
    receiver: Webhook | None = None
    if url:
        receiver = Webhook(
            url,
            secret=os.environ.get(SECRET_VARIABLE) or None,
            every=read_duration(every, "--every"),
            max_wait=read_duration(max_wait, "--max-wait"),
            ignore=check_kinds(names_in(ignore), "--ignore"),
        )
    elif shell.app is None:
        raise InputError(f"say whom to tell: --post URL, {URL_VARIABLE}, or an --app that has on_problem=")
    if not once:
        shell.warn(f"telling {receiver.name if receiver else 'on_problem='} of problems, until Ctrl-C")
    await shell.client.watch_problems(receiver, once=once)
