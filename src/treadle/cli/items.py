"""`treadle list` and `show`: items, by filter or by id."""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import typer

from treadle.backend import left_out
from treadle.base.ids import check_id
from treadle.base.wording import duration, error_line, first_line, plural, times
from treadle.define.condition import GroupRef, shown_name
from treadle.errors import InputError, NotFound
from treadle.item import GROUP_TYPE, NEVER, Filter, GroupState, ItemState, Page
from treadle.operate.filters import find_items, read_condition
from treadle.operate.item_json import ref_json
from treadle.store.rules.listing import LARGEST_PAGE
from treadle.store.rules.watching import died_unrun

from .exit_codes import REFUSED
from .filters import (
    PAGE,
    CursorOption,
    ItemFilters,
    LimitOption,
    RevealOption,
    WhereOption,
    filter_of,
    first_items,
    pages,
)
from .names import remark_filters
from .shell import Shell, operator_command
from .shown import group_text, item_lines, status_cell, status_word, value_text
from .steps import Recordings, follow_stream, read_recordings, show_logs, show_recordings
from .text import Cell, clock, plain_lines, size

MOST_PREREQUISITES: Final = 100
MOST_CHILDREN: Final = 20
MEMBERS_LOOKED_AT: Final = 1000
"""Members of a group among which `show` looks for the children of an item."""


def register(commands: typer.Typer) -> None:
    operator_command(commands, "list")(list_items)
    operator_command(commands, "show")(show)


async def list_items(
    shell: Shell,
    filters: ItemFilters,
    where: WhereOption = None,
    scan: Annotated[
        int, typer.Option("--scan", min=1, help="with --where: how many items to look at, at most")
    ] = 10_000,
    limit: LimitOption = 50,
    cursor: CursorOption = None,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="oldest items first")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="with --json: any number of items, as they are read")
    ] = False,
    history: Annotated[
        bool, typer.Option("--history", help="with --json: with the history of failed attempts")
    ] = False,
    reveal: RevealOption = False,
) -> int | None:
    """List items, newest first.

    With --where, items are read and compared one after the other: it says how far it looked.
    """
    conditions = [read_condition(text) for text in where or ()]
    selected = await filter_of(shell, filters)
    if (everything or history) and not shell.json:
        raise InputError("--all and --history go with --json")
    if everything:
        if conditions or cursor is not None:
            raise InputError("--all takes no --where and no --cursor")
        async for page in pages(shell, selected, oldest_first=oldest_first, history=history):
            for each in page.items:
                shell.emit(shell.client.values.item(each, history=history, reveal=reveal))
            shell.flush()
        return None

    async def read(size: int, start: str | None) -> Page:
        return await shell.backend.list(
            selected, limit=size, cursor=start, oldest_first=oldest_first, history=history
        )

    def holds(item: ItemState) -> bool:
        fields = shell.client.values.item(item, reveal=True) if conditions else {}
        return all(condition.holds(fields) for condition in conditions)

    portion, most = (PAGE, scan) if conditions else (LARGEST_PAGE, limit)
    found = await find_items(read, holds, limit=limit, scan=most, portion=portion, cursor=cursor)
    if shell.json:
        for item in found.items:
            shell.emit(shell.client.values.item(item, history=history, reveal=reveal))
    else:
        now = await shell.now()
        shell.lines(item_lines(found.items, now) if found.items else ["no items"])
    if not found.items and cursor is None:
        await remark_filters(shell, filters.type, filters.queue)
    notes: list[str] = []
    if conditions and found.last is not None:
        when = clock(found.last.queued_at, await shell.now())
        way = "up" if oldest_first else "back"
        notes.append(f"looked at {plural(found.looked_at, 'item')}, {way} to {when}")
    if found.cursor is not None:
        notes.append(f"there are more: --cursor {found.cursor}")
    _note(shell, notes)
    return None


def _note(shell: Shell, notes: list[str]) -> None:
    if shell.json:
        for note in notes:
            shell.warn(note)
    elif notes:
        shell.print()
        for note in notes:
            shell.print(note, "dim")


# ------------------------------------------------------------------------------------------------- show


async def show(
    shell: Shell,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="the ids of items")],
    stream: Annotated[
        bool, typer.Option("--stream", help="print the stream of one item instead, until the item ends")
    ] = False,
    since: Annotated[
        int | None, typer.Option("--since", metavar="N", min=0, help="with --stream: chunks after this one")
    ] = None,
    logs: Annotated[
        bool, typer.Option("--logs", help="print what their last attempts have logged instead")
    ] = False,
    reveal: RevealOption = False,
) -> int | None:
    """Show items: facts, input, result, steps, stream, history with tracebacks, children, dependencies,
    group."""
    if stream and (logs or len(ids) > 1):
        raise InputError("--stream takes one id, and no --logs")
    if stream:
        return await follow_stream(shell, ids[0], since or 0, reveal)
    if since is not None:
        raise InputError("--since goes with --stream")
    if logs:
        return await show_logs(shell, [check_id(id) for id in ids])
    wanted = [check_id(id) for id in ids]
    states = await shell.backend.get(wanted, tenant=shell.tenant)
    missing = 0
    for index, (id, state) in enumerate(zip(wanted, states, strict=True)):
        if state is None:
            missing += 1
            shell.warn(str(NotFound(id, away=left_out())))
            continue
        around, recordings = await _around(shell, state), await read_recordings(shell, state)
        now = await shell.now()
        if shell.json:
            fields = shell.client.values.item(state, history=True, reveal=reveal)
            recorded = recordings.json(shell, state, now, reveal)
            shell.emit({**fields, **recorded, **around.json(shell, reveal)})
        else:
            if index:
                shell.print()
            _show(shell, state, around, recordings, now, reveal)
    return REFUSED if missing else None


class _Around(NamedTuple):
    """What an item belongs to."""

    group: GroupState | None
    prerequisites: list[tuple[str, ItemState | GroupState | None]]
    """The names in its `after`, with `group:` for whole groups, and what they name."""
    children: list[ItemState]
    more_children: bool
    """Whether there may be more."""

    def json(self, shell: Shell, reveal: bool) -> dict[str, Any]:
        return {
            "group": None if self.group is None else shell.client.values.group(self.group, reveal=reveal),
            "prerequisites": [
                {"id": name, "status": _standing(found), "type": "" if found is None else found.type}
                for name, found in self.prerequisites
            ],
            "children": [ref_json(each) for each in self.children],
            "more_children": self.more_children,
        }


async def _around(shell: Shell, state: ItemState) -> _Around:
    backend, tenant = shell.backend, state.tenant
    (group,) = await backend.group([state.group_id], tenant=tenant)
    names = [shown_name(name) for name in state.after[:MOST_PREREQUISITES]]
    items = [name for name in names if not isinstance(name, GroupRef)]
    groups = [str(name) for name in names if isinstance(name, GroupRef)]
    named: dict[str, ItemState | GroupState | None] = {}
    if items:
        named.update(zip(items, await backend.get(items, tenant=tenant), strict=True))
    if groups:
        found = await backend.group(groups, tenant=tenant)
        named.update((f"group:{id}", each) for id, each in zip(groups, found, strict=True))
    members: list[ItemState] = []
    more = "listing" not in backend.capabilities
    if not more:
        of_group = Filter(tenant=tenant, group_id=state.group_id)
        members, more = await first_items(shell, of_group, MEMBERS_LOOKED_AT)
    children = [each for each in members if each.parent == state.id]
    return _Around(
        group,
        list(named.items()),
        children[:MOST_CHILDREN],
        more or len(children) > MOST_CHILDREN,
    )


def _standing(found: ItemState | GroupState | None) -> str:
    match found:
        case None:
            return "missing"
        case ItemState():
            return found.status
        case GroupState():
            return "running" if found.ended_at is None else "dead" if found.failed else "success"


def _show(
    shell: Shell, state: ItemState, around: _Around, recordings: Recordings, now: float, reveal: bool
) -> None:
    values = shell.client.values
    headers = values.headers(state, reveal=reveal)
    shell.facts(
        [
            *_facts(state, around.group, now),
            ("headers", value_text(headers) if headers else ""),
            ("progress", recordings.progress_text(now)),
        ]
    )
    _value(shell, "Input", *values.input(state, reveal=reveal), len(state.input))
    if isinstance(state.result, bytes):
        _value(shell, "Result", *values.result(state, reveal=reveal), len(state.result))
    show_recordings(shell, state, recordings, now, reveal)
    if around.prerequisites:
        shell.print()
        closes = state.type == GROUP_TYPE
        what = "the group that it closes" if closes else plural(len(state.after), "item")
        shell.print(f"Waits for {what}", "bold")
        shell.table(
            ("ID", "STATE", "TYPE"),
            [
                (name, status_word(_standing(found)), "" if found is None else found.type)
                for name, found in around.prerequisites
            ],
            keep=("ID", "STATE"),
        )
    if around.children:
        shell.print()
        shell.print("Children (the first of them)" if around.more_children else "Children", "bold")
        shell.lines(item_lines(around.children, now))
    _history(shell, state, now)


def _history(shell: Shell, state: ItemState, now: float) -> None:
    """Print the failed attempts. A traceback that several have is printed once."""
    shown: dict[str, int] = {}
    for attempt in state.history:
        shell.print()
        error = error_line(attempt.error_type, attempt.message)
        noted = attempt is state.history[-1] and died_unrun(state)
        shell.print(f"{'Death' if noted else f'Attempt {attempt.attempt}'}: {error}", "bold")
        who = f"{'noted by worker' if noted else 'worker'} {attempt.worker or 'unknown'}"
        release = f", release {attempt.release}" if attempt.release else ""
        shell.print(f"  {clock(attempt.at, now)}, {who}{release}", "dim")
        if not attempt.traceback:
            continue
        first = shown.setdefault(attempt.traceback, attempt.attempt)
        if first == attempt.attempt:
            shell.lines(f"  {line}" for line in plain_lines(attempt.traceback))
        else:
            shell.print(f"  the same traceback as attempt {first}", "dim")


def _facts(state: ItemState, group: GroupState | None, now: float) -> list[tuple[str, Any]]:
    status = status_cell(state.status)
    waits = state.suspended and state.status == "scheduled"
    reason = f": {state.reason}" if state.reason else ", suspended" if waits else ""
    reason += ", held" if state.held else ""
    losses = f", {state.losses} lost in a row" if state.losses else ""
    deferred = f", deferred {times(state.deferrals)}" if state.deferrals else ""
    allowed = "" if state.attempts is None else f" of {state.attempts}"
    unrun, began, ended = died_unrun(state), state.started_at, state.ended_at
    own_group = group is not None and group.id == state.id
    return [
        ("id", state.id),
        ("type", state.type),
        ("status", Cell(f"{status}{reason}", status.style)),
        ("error", first_line(state.error or "")),
        ("attempts", f"{state.attempt} begun, {state.failures}{allowed} failed{losses}{deferred}"),
        ("queued", clock(state.queued_at, now)),
        ("due", clock(state.due_at, now) if state.queued_at < state.due_at < NEVER else ""),
        ("claimed", clock(state.claimed_at, now)),
        ("started", clock(state.started_at, now)),
        ("ended", clock(state.ended_at, now)),
        ("deadline", clock(state.deadline, now)),
        ("took", "" if unrun or not (began and ended) else duration(ended - began)),
        ("noted by" if unrun else "worker", state.worker),
        ("tenant", state.tenant),
        ("queue", state.queue),
        ("lane", state.lane),
        ("priority", str(state.priority) if state.priority else ""),
        ("key", state.key),
        ("workflow", state.workflow),
        ("parent", state.parent),
        (
            "group",
            "" if group is None else f"{'its own' if own_group else group.id}: {group_text(group, now)}",
        ),
        ("outer group", "" if group is None or group.outer is None else group.outer),
        ("mark", state.mark),
    ]


def _value(shell: Shell, title: str, value: object, problem: str, length: int) -> None:
    shell.print()
    shell.print(f"{title} ({size(length)})", "bold")
    if problem:
        shell.print(f"  cannot be read by this code: {first_line(problem)}", "red")
    shell.lines(f"  {line}" for line in plain_lines(value_text(value)))
