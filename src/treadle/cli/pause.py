"""`treadle pause`, `resume` and `prune`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from treadle.base.ids import check_name
from treadle.base.wording import did_you_mean, listed, plural
from treadle.errors import InputError
from treadle.item import Order
from treadle.operate.filters import read_until
from treadle.operate.why.wording import pause_text, paused_what, until_text

from .completion import complete_queue, complete_type
from .names import queue_remark, type_remark
from .shell import Shell, operator_command

PRUNED_AT_ONCE: Final = 1000

QueuesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[QUEUE]...", help="names of queues", autocompletion=complete_queue),
]
TypeOption = Annotated[
    str | None,
    typer.Option("--type", help="a work type, instead of a name", autocompletion=complete_type),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", help="when it ends by itself: 2h from now, or an instant", metavar="TIME"),
]


def register(commands: typer.Typer) -> None:
    operator_command(commands, "pause", changes=True)(pause)
    operator_command(commands, "resume", changes=True)(resume)
    operator_command(commands, "prune")(prune)


async def pause(
    shell: Shell, queues: QueuesArgument = None, type: TypeOption = None, until: UntilOption = None
) -> None:
    """Start no more items of queues, of a work type, or of a tenant, in the whole fleet. Running items go on.

    With --tenant alone: all items of the tenant. With a queue or a type: those of the tenant.
    """
    given_until = read_until(until, "--until")
    for queue in _queues(shell, queues, type):
        remark = "" if queue is None else await queue_remark(shell.client, queue)
        remark = remark or ("" if type is None else await type_remark(shell.client, type))
        await shell.client.pause(queue, type=type, until=given_until)
        wanted = Order(kind="pause", queue=queue, type=type, tenant=shell.tenant)
        found = (each for each in await shell.client.orders() if each.subject == wanted.subject)
        given = next(found, wanted)  # it may have ended
        if shell.json:
            shell.emit(_answer(shell, queue, type, True))
        else:
            ends = "" if given.until is None else f"; it ends {until_text(await shell.now(), given.until)}"
            shell.print(pause_text(given) + ends)
        if remark:
            shell.warn(remark)


async def resume(shell: Shell, queues: QueuesArgument = None, type: TypeOption = None) -> None:
    """Start the items of paused queues, of a work type, or of a tenant again."""
    for queue in _queues(shell, queues, type):
        before = [each for each in await shell.client.orders() if each.kind == "pause"]
        known = await shell.client.resume(queue, type=type)
        wanted = Order(kind="pause", queue=queue, type=type, tenant=shell.tenant)
        if shell.json:
            shell.emit(_answer(shell, queue, type, False))
        elif known:
            shell.print(pause_text(wanted, "resumed"))
        _remark_resumed(shell, wanted, before, known=known)


def _queues(shell: Shell, queues: list[str] | None, type: str | None) -> list[str | None]:
    """The queues to change. None: the type or the tenant."""
    if type is not None and queues:
        raise InputError("name queues, or give --type: not both")
    if not queues and type is None and shell.tenant is None:
        raise InputError("name queues, or give --type or --tenant")
    return [check_name(each, "QUEUE") for each in queues] if queues else [None]


def _answer(shell: Shell, queue: str | None, type: str | None, paused: bool) -> dict[str, object]:
    return {"queue": queue, "type": type, "tenant": shell.tenant, "paused": paused}


def _remark_resumed(shell: Shell, wanted: Order, before: list[Order], *, known: bool) -> None:
    """Say if it was not paused, or still is. before: the pauses, as they were."""
    others = [each for each in before if (each.queue, each.type) == (wanted.queue, wanted.type)]
    others = [each for each in others if each.subject != wanted.subject]
    what = paused_what(wanted)
    if not known and not others:
        kind = (wanted.queue is None, wanted.type is None)
        alike = [each for each in before if (each.queue is None, each.type is None) == kind]
        names = sorted({each.about for each in alike if each.tenant == shell.tenant})
        none = "no queue was" if wanted.queue is not None else "nothing like it was"
        hint = did_you_mean(wanted.about, names, f"paused {listed(names)}" if names else none)
        shell.warn(f"{what} was not paused: {hint}")
    if wanted.about == shell.tenant:
        return
    if shell.tenant is not None and any(each.tenant is None for each in others):
        shell.warn(f"{what} is still paused for all tenants")
    elif shell.tenant is None and others:
        tenants = sorted(filter(None, (each.tenant for each in others)))
        shell.warn(f"{what} is still paused for {listed(tenants)}: give --tenant")


async def prune(
    shell: Shell,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="the most items")] = None,
) -> int | None:
    """Remove ended items whose retention has passed. Workers do it too, in small steps."""
    if shell.tenant is not None:
        raise InputError(
            "prune has no tenant: it removes what has outlived its `keep`, of all tenants, as workers do. "
            "Leave --tenant out"
        )
    pruned = 0
    while limit is None or pruned < limit:
        step = PRUNED_AT_ONCE if limit is None else min(PRUNED_AT_ONCE, limit - pruned)
        removed = await shell.backend.prune(step)
        pruned += removed
        if removed < step:
            break
    if shell.json:
        shell.emit({"verb": "prune", "changed": pruned})
    else:
        shell.print(f"removed {plural(pruned, 'item')}")
    return None
