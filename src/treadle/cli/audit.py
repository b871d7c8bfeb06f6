"""`treadle audit`: who changed what."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from treadle.base.timing import to_datetime
from treadle.base.wording import plural
from treadle.operate.fleet_json import audit_json
from treadle.operate.why.wording import command
from treadle.records import MOST_AUDIT_IDS, AuditEntry
from treadle.store.audit_note import in_one
from treadle.store.rules.listing import LARGEST_PAGE

from .filters import CursorOption
from .shell import Shell, operator_command


def register(commands: typer.Typer) -> None:
    operator_command(commands, "audit")(audit)


async def audit(
    shell: Shell,
    limit: Annotated[int, typer.Option("--limit", min=1, help="the most entries")] = 50,
    bulk: Annotated[
        str | None, typer.Option("--bulk", metavar="ID", help="the portions of this bulk action")
    ] = None,
    cursor: CursorOption = None,
) -> int | None:
    """List who changed what, newest first: changes made with commands, the dashboard and `app.by(...)`."""
    entries: list[AuditEntry] = []
    while True:
        page = await shell.client.audits(bulk, min(limit - len(entries), LARGEST_PAGE), cursor)
        entries += page.entries
        cursor = page.cursor
        if cursor is None or len(entries) >= limit:
            break
    if shell.json:
        for entry in entries:
            shell.emit(audit_json(entry))
    elif not entries:
        shell.print("no entries")
    else:
        _table(shell, entries)
    if cursor is not None:
        verb = "audit --cursor" if bulk is None else f"audit --bulk {shlex.quote(bulk)} --cursor"
        shell.warn(f"there are more: {command(verb, cursor, tenant=shell.tenant)}")
    return None


def _table(shell: Shell, entries: list[AuditEntry]) -> None:
    by_tenant = shell.tenant is None and any(entry.tenant not in (None, "default") for entry in entries)
    tenants = ("TENANT",) if by_tenant else ()
    shell.table(
        ("AT (UTC)", "ACTOR", "VERB", "CHANGED", *tenants, "WHAT", "REASON"),
        [
            (
                f"{to_datetime(entry.at):%Y-%m-%d %H:%M:%S}",
                entry.actor,
                entry.verb,
                "-" if entry.verb.startswith("bulk ") else f"{entry.count:,}",  # `treadle bulk` says it
                *((entry.tenant or "all",) if by_tenant else ()),
                what(entry),
                entry.reason,
            )
            for entry in in_one(entries)
        ],
        numbers=("CHANGED",),
        keep=("AT (UTC)", "VERB", "CHANGED"),
    )


def what(entry: AuditEntry) -> str:
    """What a change was about: one id, or how many, and what was asked for."""
    named = entry.ids[0] if len(entry.ids) == 1 else ""
    if len(entry.ids) > 1:
        named = plural(len(entry.ids), "id", len(entry.ids) >= MOST_AUDIT_IDS)
    portions = f"in {entry.portions:,} portions" if entry.portions > 1 else ""
    return " ".join(filter(None, (named, portions, entry.about)))
