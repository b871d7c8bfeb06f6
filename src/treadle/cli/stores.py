"""`treadle stores`: the stores of an app that has several, and where its tenants are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from treadle.base.wording import duration
from treadle.errors import InputError
from treadle.operate.why.wording import command
from treadle.records import StoreState

from .exit_codes import AWAY, REFUSED
from .load import apply_schema
from .shell import Shell, operator_command, operator_group
from .text import number

SKEW = 1.0
"""Seconds by which the clocks of stores may differ."""


def register(commands: typer.Typer) -> None:
    group = operator_group(commands, "stores")(stores)
    operator_command(group, "place", changes=True)(place)
    operator_command(group, "accept", connect=False)(accept)


async def stores(shell: Shell) -> int | None:
    """List the stores of an app that has several: where they are, whether they answer, and what they hold."""
    states = await shell.client.stores()
    if shell.json:
        for state in states:
            shell.emit(msgspec.structs.asdict(state))
    else:
        shell.table(
            ("STORE", "ANSWERS", "OPEN", "READY", "DEAD", "CLOCK", "ADDRESS"),
            [_row(state) for state in states],
            numbers=("OPEN", "READY", "DEAD"),
            keep=("STORE", "ANSWERS"),
            drop=("CLOCK", "DEAD", "ADDRESS"),
        )
        for state in states:
            if not state.answers:
                shell.print(f"{state.name} does not answer: {state.error}")
    return None if all(state.answers for state in states) else AWAY


def _row(state: StoreState) -> Sequence[str]:
    name = f"{state.name} (home)" if state.home else state.name
    if not state.answers:
        return name, "no", "", "", "", "", state.address
    took = "yes" if state.took is None else f"in {duration(state.took)}"
    about = "~" if state.estimated else ""
    counts = [f"{about}{number(count)}" for count in (state.open, state.ready, state.dead)]
    return name, took, *counts, _clock(state.skew), state.address


def _clock(skew: float | None) -> str:
    if skew is None or abs(skew) < SKEW:
        return ""
    return f"{duration(abs(skew))} {'ahead' if skew > 0 else 'behind'}"


async def place(
    shell: Shell,
    name: Annotated[str, typer.Argument(metavar="TENANT", help="a tenant that has nothing yet")],
    store: Annotated[str | None, typer.Argument(metavar="STORE", help="its store")] = None,
) -> int | None:
    """Give a tenant its store before it has anything, or say in which store it is."""
    if shell.tenant is not None:
        raise InputError("--tenant does not go with place: name the tenant after it")
    found = await shell.client.place(name, store)
    if shell.json:
        shell.emit({"tenant": name, "store": found})
    elif store in (None, found):
        shell.print(f"{name} is in {found}")
    if store in (None, found):
        return None
    shell.warn(f"{name} is in {found} already: {command(f'move --to {store}', tenant=name)}")
    return REFUSED


async def accept(
    shell: Shell,
    name: Annotated[str, typer.Argument(metavar="STORE", help="a store that has lost its data")],
) -> None:
    """Let an empty store take the place of one whose data are lost for good. All others must answer."""
    if shell.tenant is not None:
        raise InputError("--tenant does not go with accept: a store is of all its tenants")
    apply_schema(shell.backend, True)
    await shell.client.accept_store(name)
    if shell.json:
        shell.emit({"store": name, "accepted": True})
    else:
        shell.print(f"{name} begins anew: what was in it is lost")
