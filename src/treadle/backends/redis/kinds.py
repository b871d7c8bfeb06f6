"""Kinds: what the names of counts stand for.

A count belongs to a kind and a status. A store has thousands of them. Kinds come and go seldom, and few
numbers change between two reads: what a name stands for is found once, and only what has changed is added up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from itertools import compress
from operator import ne
from typing import Final

from treadle.item import Status
from treadle.store.rules.watching import CountKey

from .item_bytes import STATUSES, KindNames, read_kind

kind_names: Final = lru_cache(maxsize=16_384)(read_kind)

_READY: Final = ord("r")
_SPARE: Final = 1000
"""Kinds that are remembered although they are gone, beside as many as there are."""


class KindCounts:
    """The counts of a store, as `read` got them last."""

    def __init__(self) -> None:
        self._kinds: list[bytes] = []
        """Numbers and rows, one after the other."""
        self._rows: dict[bytes, bytes] = {}
        """By number. Some kinds may be gone."""
        self._names: list[bytes] = []
        """Those of the counts: the number of a kind, and the letter of a status."""
        self._numbers: list[bytes] = []
        self._place_of: dict[bytes, int] = {}
        """By name: the place of its key."""
        self._places: list[int] = []
        """Those of the names."""
        self._keys: dict[CountKey, int] = {}
        """With their places."""
        self._in_order: list[tuple[CountKey, int]] = []
        self._sums: list[int] = []
        """By place. The last is that of no key."""
        self._ready: dict[str, dict[tuple[str, str], list[tuple[int, bytes]]]] = {}
        """By queue, then by tenant and lane: the kinds that may have ready items, each with the place of the
        name of this count."""

    def read(self, counts: list[bytes], kinds: list[bytes]) -> KindCounts:
        """Take the hashes `counts` and `kinds`, as the server answers them. Counts of kinds that do not exist
        are left out."""
        names, numbers = counts[::2], counts[1::2]
        is_known = kinds == self._kinds or self._has_rows(kinds)
        if not is_known or names != self._names:
            self._read_names(names)
        changed = compress(range(len(names)), map(ne, numbers, self._numbers))
        for at in changed:
            self._sums[self._places[at]] += int(numbers[at]) - int(self._numbers[at])
        self._numbers = numbers
        return self

    def _has_rows(self, kinds: list[bytes]) -> bool:
        """Remember these kinds. Returns whether there is no new one, nor one with other names."""
        if len(self._rows) > len(kinds) + _SPARE:
            self._rows, self._place_of, self._keys, self._names = {}, {}, {}, []
        self._kinds, is_known = kinds, True
        for number, row in zip(kinds[::2], kinds[1::2], strict=True):
            known = self._rows.get(number)
            if known != row:
                is_known, self._rows[number] = False, row
                if known is not None:
                    self._place_of = {name: at for name, at in self._place_of.items() if name[:4] != number}
        return is_known

    def _read_names(self, names: list[bytes]) -> None:
        """Find what each stands for, and begin anew with the sums."""
        place_of, keys = self._place_of, self._keys
        self._ready = {}
        for at, name in enumerate(names):
            number = name[:4]
            row = self._rows.get(number)
            if row is None:
                continue
            if name not in place_of:
                kind = kind_names(row)
                key = (kind.tenant, kind.queue, kind.type, STATUSES[name[4:]])
                place_of[name] = keys.setdefault(key, len(keys))
            if name[4] == _READY:
                kind = kind_names(row)
                lines = self._ready.setdefault(kind.queue, {})
                lines.setdefault((kind.tenant, kind.lane), []).append((at, number))
        self._names, self._numbers = names, [b"0"] * len(names)
        self._places = [place_of.get(name, len(keys)) for name in names]
        self._in_order, self._sums = sorted(keys.items()), [0] * (len(keys) + 1)

    def sums(self, tenant: str | None, *, without: Collection[Status]) -> dict[CountKey, int]:
        """How many items there are by tenant, queue, type and status, in the order of these."""
        return {
            key: self._sums[place]
            for key, place in self._in_order
            if self._sums[place] and tenant in (None, key[0]) and key[3] not in without
        }

    def kind(self, number: bytes) -> KindNames | None:
        """What the number of a kind stands for. None: the kind is gone, as a later read found."""
        row = self._rows.get(number)
        return None if row is None else kind_names(row)

    def lines(self, queue: str, tenant: str | None) -> Iterator[list[bytes]]:
        """The lines of a queue that have ready items: the numbers of their kinds that have some."""
        for (owner, _), kinds in self._ready.get(queue, {}).items():
            if tenant in (None, owner):
                found = [number for at, number in kinds if self._numbers[at] != b"0"]
                if found:
                    yield found

    def ready(self, types: Iterable[str], tenant: str | None) -> dict[str, list[bytes]]:
        """By type: the numbers of the kinds that have ready items."""
        found: dict[str, list[bytes]] = {type: [] for type in types}
        for queue in self._ready:
            for line in self.lines(queue, tenant):
                for number in line:
                    type = kind_names(self._rows[number]).type
                    if type in found:
                        found[type].append(number)
        return found
