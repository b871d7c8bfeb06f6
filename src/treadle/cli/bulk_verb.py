"""Bulk verb: one way to change items, such as `cancel`, and what is said of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from treadle.client import Client
from treadle.errors import TreadleError
from treadle.item import ItemState, Status
from treadle.operate.portions import PortionOutcome, Refusal, refuse_status

from .shell import Shell


class Preview:
    """What would be changed with the items that are asked for. Items are added portion by portion."""

    def __init__(self) -> None:
        self.asked = 0
        self.count = 0
        """With the others."""
        self.more = False
        """Whether there are more: it was counted up to a bound."""
        self.refused: Counter[str] = Counter()
        self.others = ""
        """What the others have to do with those asked for."""

    async def add(self, shell: Shell, client: Client, items: Sequence[ItemState]) -> None:
        """Count items of one tenant."""
        self.asked += len(items)
        self.count += len(items)


Change = Callable[[Client, Sequence[ItemState]], Awaitable[PortionOutcome]]


def allowed(item: ItemState) -> None:
    """Nothing speaks against the change of an item."""


class BulkVerb(NamedTuple):
    """One way to change items."""

    name: str
    past: str
    change: Change
    """Called with items of one tenant, and a client of that tenant."""
    statuses: tuple[Status, ...] = ()
    """Items in other statuses cannot be changed so. Empty: all can."""
    advice: str = ""
    """What is said of an item in another status."""
    others: str = "belong to them"
    """What further items that are changed with those asked for have to do with them."""
    along: str = ""
    """What is changed with them, for the question: ", and what they have queued"."""
    preview: Callable[[], Preview] = Preview
    remedy: Callable[[], str] = str
    """What to do about those that were refused."""
    check: Callable[[ItemState], TreadleError | None] = allowed
    """Why an item cannot be changed, apart from its status. None: it can."""
    foreground: str = ""
    """The option with which it cannot be a bulk action. Empty: it can."""

    def refusal(self, item: ItemState) -> Refusal | None:
        """Why an item cannot be changed, as far as it is known before."""
        if (why := self.check(item)) is not None:
            return Refusal(item.id, item.tenant, why)
        return refuse_status(item, self.statuses, self.advice)


# ------------------------------------------------------------------------------------------- what is said


def skipped_text(before: str, refused: Counter[str]) -> str:
    """How many items are skipped, and why: `, skipped 3 (2 NotFound, 1 GroupStillOpen)`."""
    if not refused.total():
        return ""
    kinds = ", ".join(f"{count:,} {name}" for name, count in refused.most_common() if count)
    return f"{before} {refused.total():,} ({kinds})"


def summary_json(
    verb: str,
    matched: int,
    changed: int,
    skipped: int,
    *,
    unknown: int = 0,
    stopped: bool = False,
    dry_run: bool = False,
    more: bool = False,
) -> dict[str, Any]:
    """What a command did, for programs.

    matched: how many items were asked for or found. more: there are more, which were not counted.
    changed: how many were changed, with those that had to be changed with them.
    skipped: how many of those that matched could not be changed.
    unknown: for how many of them the store gave no answer. They may be changed or not.
    """
    return {
        "verb": verb,
        "matched": matched,
        "more": more,
        "changed": changed,
        "skipped": skipped,
        "unknown": unknown,
        "stopped": stopped,
        "dry_run": dry_run,
    }


def tell_refusal(shell: Shell, refusal: Refusal) -> None:
    """Say why a named item was not changed."""
    if shell.json:
        shell.emit(
            {
                "id": refusal.id,
                "tenant": refusal.tenant,
                "refused": type(refusal.error).__name__,
                "message": refusal.message,
            }
        )
    else:
        shell.warn(refusal.message)
