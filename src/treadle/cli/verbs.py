"""Change items: `treadle cancel`, `complete`, `trigger`, `hold`, `requeue`, `update`, `repair`, `delete`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import typer

from treadle.base.ids import check_name
from treadle.base.wording import plural
from treadle.bulk_action import ActionVerb
from treadle.client import Client, bound_to
from treadle.errors import ConflictError, EncodeError, InputError, NotFound, TreadleError
from treadle.item import ItemState, Ref, Status
from treadle.operate.changes import (
    COUNT_CAP,
    MOST_NAMED,
    VERBS,
    Deletion,
    PortionOutcome,
    Refusal,
    Requeue,
    all_or_none,
    allowed,
    change_of,
    refuse_verb,
)
from treadle.operate.filters import OPEN_STATUSES, read_duration, read_start
from treadle.operate.why.wording import command, tenant_option
from treadle.options import UpdateOptions
from treadle.store.reads import group_members

from .change_items import (
    BulkVerb,
    CanaryOption,
    CanaryWaitOption,
    Preview,
    Selection,
    change_items,
    read_wanted,
    tell_refusal,
)
from .exit_codes import REFUSED
from .filters import DelayOption, ItemFilters, PriorityOption, RunAtOption, UpdateFilters
from .shell import Shell, operator_command

MOST_GROUPS: Final = 200
"""Groups whose members are counted before they are deleted."""


def register(commands: typer.Typer) -> None:
    operator_command(commands, "cancel", changes=True)(cancel)
    operator_command(commands, "complete", changes=True)(complete)
    operator_command(commands, "trigger", changes=True)(trigger)
    operator_command(commands, "hold", changes=True)(hold)
    operator_command(commands, "unhold", changes=True)(unhold)
    operator_command(commands, "requeue", changes=True)(requeue)
    operator_command(commands, "update", changes=True)(update)
    operator_command(commands, "repair", changes=True)(repair)
    operator_command(commands, "delete", changes=True)(delete)


def _bulk_verb(name: ActionVerb, past: str, changes: UpdateOptions | None = None) -> BulkVerb:
    """As bulk actions change items."""

    def check(item: ItemState) -> TreadleError | None:
        refusal = refuse_verb(name, item, ())
        return None if refusal is None else refusal.error

    rules, change = VERBS[name], change_of(name, changes=changes)
    return BulkVerb(
        name,
        past,
        change,
        rules.allowed,
        rules.advice,
        preview=lambda: CheckedPreview(check),
        check=check,
        changes=changes,
    )


class CheckedPreview(Preview):
    """Leaves out what cannot be changed."""

    def __init__(self, check: Callable[[ItemState], TreadleError | None]) -> None:
        super().__init__()
        self._check = check

    async def add(self, shell: Shell, client: Client, items: Sequence[ItemState]) -> None:
        refused = {item.id: why for item in items if (why := self._check(item)) is not None}
        self.refused.update(type(why).__name__ for why in refused.values())
        await super().add(shell, client, [item for item in items if item.id not in refused])


# ------------------------------------------------------------------------------------------------ cancel


async def cancel(shell: Shell, selection: Selection, filters: ItemFilters) -> int | None:
    """Cancel items, and what they have queued. Running handlers are interrupted.

    With filters: open items. An item that has ended may be named: then what it has queued is cancelled.
    """
    verb = _bulk_verb("cancel", "cancelled")._replace(
        others="were queued by them", along=", and what they have queued"
    )
    verb = verb._replace(statuses=()) if selection.ids else verb
    return await change_items(shell, verb, selection, filters)


# ---------------------------------------------------------------------------------------------- complete


async def complete(
    shell: Shell,
    selection: Selection,
    filters: ItemFilters,
    value: Annotated[str, typer.Option("--value", metavar="JSON", help="the result, as JSON")] = "null",
) -> int | None:
    """End open items as a success, without a worker. Running handlers are interrupted."""
    result = read_json(value, "--value")

    async def change(client: Client, items: Sequence[ItemState]) -> PortionOutcome:
        outcomes = [await all_or_none([item], partial(_complete, client, item, result)) for item in items]
        return PortionOutcome(
            sum(each.changed for each in outcomes), [item for each in outcomes for item in each.refused]
        )

    verb = BulkVerb(
        "complete",
        "completed",
        change,
        OPEN_STATUSES,
        "only open items can be completed",
        foreground="complete",
    )
    return await change_items(shell, verb, selection, filters)


async def _complete(client: Client, item: ItemState, value: object, ids: list[str]) -> int:
    try:
        await client.complete(ids[0], value)
    except EncodeError as error:
        raise ConflictError(
            f"item {item.id!r} is of type {item.type}, and the value is no result of it: {error}"
        ) from None
    return 1


def read_json(text: str, field: str) -> Any:
    """A JSON value that was given on the command line. InputError."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError.of(field, text, f"is no JSON: {error}") from None


# ----------------------------------------------------------------------------------------------- trigger


async def trigger(shell: Shell, selection: Selection, filters: ItemFilters) -> int | None:
    """Run scheduled items now."""
    return await change_items(shell, _bulk_verb("trigger", "triggered"), selection, filters)


# ------------------------------------------------------------------------------------------ hold, unhold


async def hold(shell: Shell, selection: Selection, filters: ItemFilters) -> int | None:
    """Keep ready and scheduled items from being handed out, also between attempts, until `treadle unhold`."""
    return await change_items(shell, _bulk_verb("hold", "held"), selection, filters)


async def unhold(
    shell: Shell,
    selection: Selection,
    filters: ItemFilters,
    canary: CanaryOption = 0,
    canary_wait: CanaryWaitOption = "60s",
) -> int | None:
    """Let held items go: they are due when they were."""
    verb, wait = _bulk_verb("unhold", "let go"), read_duration(canary_wait, "--canary-wait")
    return await change_items(shell, verb, selection, filters, canary=canary, canary_wait=wait)


# ----------------------------------------------------------------------------------------------- requeue

AloneOption = Annotated[
    bool, typer.Option("--alone", help="leave items that could not run because of them as they are")
]
CancelledOption = Annotated[bool, typer.Option("--cancelled", help="cancelled items too")]


async def requeue(
    shell: Shell,
    selection: Selection,
    filters: ItemFilters,
    alone: AloneOption = False,
    cancelled: CancelledOption = False,
    from_step: Annotated[
        str | None,
        typer.Option("--from-step", metavar="NAME", help="forget this step, and those recorded after it"),
    ] = None,
    canary: CanaryOption = 0,
    canary_wait: CanaryWaitOption = "60s",
) -> int | None:
    """Run dead items again, with all their attempts, oldest first.

    Items that could not run because one of them had died wait for it again.
    With --canary, the others follow only if the first ones succeed. With --from-step, items without this step
    stay as they are.
    """
    seconds = read_duration(canary_wait, "--canary-wait")

    if from_step is not None:
        check_name(from_step, "--from-step")
    how = RemedialRequeue(alone=alone, cancelled=cancelled, from_step=from_step)
    statuses: tuple[Status, ...] = ("dead", "cancelled") if cancelled else ("dead",)
    advice = "only dead items can be requeued" + (
        "" if cancelled else ", and with --cancelled cancelled ones"
    )
    along = "" if alone else ", and what could not run because of them"
    verb = BulkVerb(
        "requeue",
        "requeued",
        how.change,
        statuses,
        advice,
        "wait for them",
        along=along,
        preview=lambda: RequeuePreview(how),
        remedy=how.remedy,
        foreground="--alone" if alone else "--from-step" if from_step else "",
    )
    return await change_items(shell, verb, selection, filters, canary=canary, canary_wait=seconds)


class RemedialRequeue(Requeue):
    """Opens items, and says what must be opened before those that stay as they are."""

    def remedy(self) -> str:
        """What to requeue instead, for those that were refused. Empty if none was, or nothing helps."""
        roots = list(self.roots.values())
        cancelled = any(root.status == "cancelled" for root in roots)
        marks = list(dict.fromkeys(root.mark for root in roots))
        if not roots:
            return ""
        tenants = {root.tenant for root in roots}
        tenant = tenant_option(tenants.pop()) if len(tenants) == 1 else None
        if len(roots) > MOST_NAMED and len(marks) == 1 and marks[0]:
            again = command("dead requeue --mark", marks[0], tenant=tenant)
            return f"what they wait for has failed: {again}"
        ids = [root.id for root in roots[:MOST_NAMED]]
        verb = "requeue --cancelled" if cancelled else "requeue"
        more = f", and {len(roots) - MOST_NAMED:,} more" if len(roots) > MOST_NAMED else ""
        return (
            f"what they wait for has failed. Requeue that first: {command(verb, *ids, tenant=tenant)}{more}"
        )


class RequeuePreview(Preview):
    """Leaves out what would stay as it is. Items come oldest first, so their causes come before them."""

    def __init__(self, how: RemedialRequeue) -> None:
        super().__init__()
        self._how = how
        self._opened: set[Ref] = set()

    async def add(self, shell: Shell, client: Client, items: Sequence[ItemState]) -> None:
        stay, refused = await self._how.stay(shell.backend, items, self._opened)
        self._opened.update((item.tenant, item.id) for item in items if item.reason != "unsatisfiable")
        self.refused.update(type(each.error).__name__ for each in refused)
        await super().add(shell, client, [item for item in items if item not in stay])


# ------------------------------------------------------------------------------------------------ update


async def update(
    shell: Shell,
    selection: Selection,
    filters: UpdateFilters,
    delay: DelayOption = None,
    run_at: RunAtOption = None,
    priority: PriorityOption = None,
    lane: Annotated[str | None, typer.Option("--lane", help="another lane")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="another queue")] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline", metavar="TIME", help="dead if it has not succeeded by then; none: no deadline"
        ),
    ] = None,
    canary: CanaryOption = 0,
    canary_wait: CanaryWaitOption = "60s",
) -> int | None:
    """Change when and where items run that have not started. What is not given stays as it is.

    With filters: --from-queue names the queue that they are in, --queue another one.
    """
    wait = read_duration(canary_wait, "--canary-wait")
    if delay is not None and run_at is not None:
        raise InputError("--delay and --run-at exclude each other")
    now = await shell.now()
    changes: UpdateOptions = {}
    if priority is not None:
        changes["priority"] = priority
    if lane is not None:
        changes["lane"] = lane
    if queue is not None:
        changes["queue"] = queue
    if delay is not None:
        changes["run_at"] = now + read_duration(delay, "--delay")
    if run_at is not None:
        changes["run_at"] = read_start(run_at, now, "--run-at")
    if deadline is not None:
        changes["deadline"] = None if deadline == "none" else read_start(deadline, now, "--deadline")
    if not changes:
        raise InputError("say what to change: --delay, --run-at, --priority, --lane, --queue or --deadline")
    verb = _bulk_verb("update", "updated", changes)
    return await change_items(shell, verb, selection, filters.plain(), canary=canary, canary_wait=wait)


# ------------------------------------------------------------------------------------------------ repair


async def repair(
    shell: Shell,
    groups: Annotated[
        list[str],
        typer.Argument(metavar="GROUP", help="the ids of groups. -: read them from standard input"),
    ],
) -> int | None:
    """Run the failed part of groups again: what died first, and what could not run because of it."""
    refused = False
    for wanted in read_wanted(shell, groups):
        client = shell.client if wanted.tenant is None else bound_to(shell.client, wanted.tenant)
        try:
            changed = await client.repair(wanted.id)
        except NotFound as error:
            refused = True
            (member,) = await client.get([wanted.id])
            why = error if member is None else _no_root(member, "repair")
            tell_refusal(shell, Refusal(wanted.id, wanted.tenant, why or error))
            continue
        if shell.json:
            shell.emit({"verb": "repair", "id": wanted.id, "changed": changed})
        elif changed:
            shell.print(f"repaired {wanted.id}: {plural(changed, 'item')} open again")
        else:
            shell.print(f"nothing to repair in {wanted.id}: no death failed it")
    return REFUSED if refused else None


# ------------------------------------------------------------------------------------------------ delete

CascadeOption = Annotated[bool, typer.Option("--cascade", help="also the groups that their members wait for")]
OpenOption = Annotated[
    bool, typer.Option("--open", help="with filters: also groups that have open items, which are interrupted")
]


async def delete(
    shell: Shell,
    selection: Selection,
    filters: ItemFilters,
    cascade: CascadeOption = False,
    open: OpenOption = False,
) -> int | None:
    """Remove whole groups: those that are named, by the ids of their roots, or those of the items that
    filters find. Groups around these go with them.
    """
    verb = deletion(cascade=cascade, open=open or bool(selection.ids), roots=bool(selection.ids))
    return await change_items(shell, verb, selection, filters)


def deletion(
    *, cascade: bool, open: bool, roots: bool, statuses: tuple[Status, ...] = (), advice: str = ""
) -> BulkVerb:
    """How to delete. open: groups that are still open too. roots: refuse items that are no roots."""
    how = Deletion(cascade=cascade, open=open, advice="--open deletes it all the same")
    along = ", and the groups that they wait for" if cascade else ""
    return BulkVerb(
        "delete",
        "deleted",
        how.change,
        statuses,
        advice,
        "were in their groups",
        along=along,
        preview=lambda: DeletionPreview(how),
        check=_no_root if roots else allowed,
        foreground="--cascade" if cascade else "--open" if open and not roots else "",
    )


class DeletionPreview(Preview):
    """Counts the members of the groups that would go."""

    def __init__(self, how: Deletion) -> None:
        super().__init__()
        self.others = "are in their groups"
        self._how = how
        self._seen: set[tuple[str, str]] = set()

    async def add(self, shell: Shell, client: Client, items: Sequence[ItemState]) -> None:
        chosen = await self._how.choose(client, items)
        self.refused.update(type(each.error).__name__ for each in chosen.refused)
        for id, (group, members) in chosen.groups.items():
            self.asked += len(members)
            if (group.tenant, id) in self._seen:
                continue
            if len(self._seen) >= MOST_GROUPS or self.count >= COUNT_CAP:
                self.count, self.more = self.count + len(members), True
                continue
            self._seen.add((group.tenant, id))
            inside, more = await group_members(shell.backend, (group.tenant, id), COUNT_CAP - self.count)
            self.count += len(inside)
            self.more = self.more or more


def _no_root(item: ItemState, verb: str = "delete") -> ConflictError | None:
    if item.group_id == item.id:
        return None
    whole = command(verb, item.group_id, tenant=tenant_option(item.tenant))
    only = "only whole groups can be deleted, as" if verb == "delete" else f"{verb} it"
    return ConflictError(f"item {item.id!r} belongs to the group {item.group_id!r}: {only} with `{whole}`")
