"""`treadle delete`, and what `treadle dead delete` does: remove whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from treadle.client import Client
from treadle.engine.read_refs import outermost_groups
from treadle.engine.why.wording import command, tenant_option
from treadle.errors import ConflictError, NotFound
from treadle.item import GroupState, ItemState, Status
from treadle.operator import core_of, tenant_of
from treadle.wording import plural

from .bulk import COUNT_CAP, change_items
from .bulk_verb import BulkVerb, PortionOutcome, Preview, all_or_none
from .filters import ItemFilters
from .group import group_members
from .selection import Refusal, Selection
from .shell import Shell, operator_command

MOST_GROUPS: Final = 200
"""Groups whose members are counted before they are deleted."""

CascadeOption = Annotated[bool, typer.Option("--cascade", help="also the groups that their members wait for")]
OpenOption = Annotated[
    bool, typer.Option("--open", help="with filters: also groups that have open items, which are interrupted")
]


def register(commands: typer.Typer) -> None:
    operator_command(commands, "delete", changes=True)(delete)


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
    how = Deletion(cascade=cascade, open=open, roots=roots)
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
    )


class GroupChoice:
    """The groups that items belong to, the outermost ones, and the items that cannot be deleted."""

    def __init__(self) -> None:
        self.groups: dict[str, tuple[GroupState, list[ItemState]]] = {}
        """By the id of the group: with the items that are in it or in groups inside it."""
        self.refused: list[Refusal] = []


class Deletion:
    """Removes the groups of items."""

    def __init__(self, *, cascade: bool, open: bool, roots: bool) -> None:
        self._cascade = cascade
        self._open = open
        self._roots = roots

    async def choose(self, client: Client, items: Sequence[ItemState]) -> GroupChoice:
        """The groups to delete."""
        chosen = GroupChoice()
        by_group: dict[str, list[ItemState]] = {}
        for item in items:
            if self._roots and item.group_id != item.id:
                chosen.refused.append(Refusal(item.id, item.tenant, _no_root(item)))
            else:
                by_group.setdefault(item.group_id, []).append(item)
        backend, tenant = core_of(client).backend, tenant_of(client)
        around = await outermost_groups(backend, by_group, tenant=tenant)
        for id, members in by_group.items():
            group = around.get(id)
            if group is None:
                chosen.refused += (Refusal(each.id, each.tenant, NotFound(each.id)) for each in members)
            elif group.open and not self._open:
                chosen.refused += (Refusal(each.id, each.tenant, GroupStillOpen(group)) for each in members)
            else:
                chosen.groups.setdefault(group.id, (group, []))[1].extend(members)
        return chosen

    async def change(self, client: Client, items: Sequence[ItemState]) -> PortionOutcome:
        chosen = await self.choose(client, items)
        if not chosen.groups:
            return PortionOutcome(0, chosen.refused)
        by_first = {members[0].id: (id, members) for id, (_, members) in chosen.groups.items()}

        async def call(given: list[str]) -> int:
            return await client.delete([by_first[each][0] for each in given], cascade=self._cascade)

        outcome = await all_or_none([members[0] for _, members in by_first.values()], call)
        # A group stays with all items that were asked for.
        refused = [each._replace(id=item.id) for each in outcome.refused for item in by_first[each.id][1]]
        return PortionOutcome(outcome.changed, [*chosen.refused, *refused])


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
            tree = await group_members(shell, group, COUNT_CAP - self.count)
            self.count += len(tree.items)
            self.more = self.more or tree.more


class GroupStillOpen(ConflictError):
    """The group has open members."""

    def __init__(self, group: GroupState) -> None:
        members = plural(group.open, "open item")
        super().__init__(f"the group {group.id!r} has {members}: --open deletes it all the same")


def _no_root(item: ItemState) -> ConflictError:
    whole = command("delete", item.group_id, tenant=tenant_option(item.tenant))
    return ConflictError(
        f"item {item.id!r} belongs to the group {item.group_id!r}: only whole groups can be deleted, as with "
        f"`{whole}`"
    )
