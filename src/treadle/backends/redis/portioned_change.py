"""Portioned changes: an operator changes many items with one call.

If all of them are apart, that is alone in their group, waiting for none and with none waiting for them, they
are changed in portions: no script holds the server for long. It does not matter to them what is changed with
them. Otherwise all are changed in one step.

The scripts get a note for the audit, the number of the entry that an earlier portion has stored (empty:
none), and 1 if only items that are apart are to be changed. They answer the items as they were, the places
of the names that are left, and the number of the entry. Names are left if other items have begun to wait for
them since the call began: these are changed in one step, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from .item_bytes import Argument
from .link import RedisLink
from .read import portions
from .scripts import RedisScript

LOOK_PORTION: Final = 300
"""How many items one script looks at to see whether they are apart."""

_ARE_APART: Final = RedisScript("are_apart")


class RedisPortionedChange(Struct, frozen=True):
    """script: what changes items. arguments: those after the first three, before the names of the items.
    size: of a portion. tenant: as scripts get it."""

    script: RedisScript
    note: bytes
    tenant: str
    arguments: Sequence[Argument]
    size: int

    async def run(
        self, link: RedisLink, names: Sequence[Argument], *, are_numbers: bool = False
    ) -> list[Sequence[Any]]:
        """The answers of the script. `names`: ids, or the numbers of rows."""
        if len(names) <= self.size or not await self._are_apart(link, names, are_numbers):
            return [await self._change(link, names)]
        answers: list[Sequence[Any]] = []
        left: list[Argument] = []
        entry = b""
        for some in portions(names, self.size):
            answer = await self._change(link, some, entry, only_apart=True)
            answers.append(answer)
            left += [some[place - 1] for place in answer[1]]
            entry = answer[2]
        if left:
            answers.append(await self._change(link, left, entry))
        return answers

    async def _are_apart(self, link: RedisLink, names: Sequence[Argument], are_numbers: bool) -> bool:
        for some in portions(names, LOOK_PORTION):
            if not await link.run(_ARE_APART, [self.tenant, int(are_numbers), *some]):
                return False
        return True

    async def _change(
        self, link: RedisLink, names: Sequence[Argument], entry: bytes = b"", *, only_apart: bool = False
    ) -> Sequence[Any]:
        args = [self.note, entry, int(only_apart), self.tenant, *self.arguments, *names]
        answer: Sequence[Any] = await link.run(self.script, args)
        return answer
