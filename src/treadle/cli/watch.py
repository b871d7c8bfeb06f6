"""`treadle watch`: tell a receiver of problems, from a process without workers."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from treadle.base.wording import plural
from treadle.errors import InputError
from treadle.item import OPEN, TELL_TYPE
from treadle.operate.filters import names_in, read_duration
from treadle.problems import Webhook, check_kinds

from .exit_codes import UNHEALTHY
from .shell import Shell, operator_command
from .status import IgnoreOption, MaxWaitOption

URL_VARIABLE: Final = "TREADLE_WEBHOOK_URL"
SECRET_VARIABLE: Final = "TREADLE_WEBHOOK_SECRET"
NO_RECEIVER: Final = f"say whom to tell: --post URL, {URL_VARIABLE}, or an --app that has on_problem="
MOST: Final = 100
"""Messages that are looked at."""


def register(commands: typer.Typer) -> None:
    operator_command(commands, "watch", logs=True)(watch)


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
) -> int | None:
    """Tell a receiver when problems appear, change or end, until Ctrl-C: also that no worker is alive.

    Any number of processes may do so, with the workers of an app that has on_problem=: each message is sent
    once. TREADLE_WEBHOOK_SECRET signs messages: it must be the same for all. With --app: as the on_problem=
    of the app does, if that has the same URL; without --post, tell that. The exit code of --once is 4 if the
    receiver has not taken a message. It is sent again.
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
        raise InputError(NO_RECEIVER)
    if not once:
        name = receiver.name if receiver else "on_problem="
        shell.warn(f"telling {name} of problems, until Ctrl-C{_unsigned(shell, receiver)}")
    try:
        if await shell.client.watch_problems(receiver, once=once):
            return None
    except InputError as error:
        raise InputError(NO_RECEIVER) if "receiver" in error.parameters else error from None
    shell.warn(await undelivered(shell) or "the receiver has not taken a message: it is sent again")
    return UNHEALTHY


def _unsigned(shell: Shell, receiver: Webhook | None) -> str:
    if receiver is None or os.environ.get(SECRET_VARIABLE):
        return ""
    but = "" if shell.app is None else ", unless on_problem= of the app has this URL and a secret"
    return f"; unsigned{but}: {SECRET_VARIABLE} is not set"


async def undelivered(shell: Shell) -> str:
    """Which messages no receiver has taken yet, and why. Empty: there are none."""
    waiting = (await shell.client.list(tuple(OPEN), type=TELL_TYPE, limit=MOST)).items
    failed = [each for each in waiting if each.failures]
    if not failed:
        return ""
    more = len(waiting) >= MOST
    are = "is" if len(failed) == 1 and not more else "are"
    return f"{plural(len(failed), 'message', more)} about problems {are} not delivered: {failed[0].error}"
