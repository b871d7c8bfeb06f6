"""`treadle delete`, and what `treadle dead delete` does: remove whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from treadle.client import Client
from treadle.errors import ConflictError
from treadle.item import ItemState, Status
from treadle.operate.portions import Deletion
from treadle.operate.why.wording import command, tenant_option

from .bulk import COUNT_CAP, change_items
from .bulk_verb import BulkVerb, Preview, allowed
from .filters import ItemFilters
from .group import group_members
from .selection import Selection
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
            tree = await group_members(shell, group, COUNT_CAP - self.count)
            self.count += len(tree.items)
            self.more = self.more or tree.more


def _no_root(item: ItemState) -> ConflictError | None:
    if item.group_id == item.id:
        return None
    whole = command("delete", item.group_id, tenant=tenant_option(item.tenant))
    return ConflictError(
        f"item {item.id!r} belongs to the group {item.group_id!r}: only whole groups can be deleted, as with "
        f"`{whole}`"
    )
