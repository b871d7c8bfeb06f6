"""Rules that hold across the fleet, and the names under which the store keeps their counts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, TypeAlias

from msgspec import Struct

from treadle.errors import InputError
from treadle.ids import MAX_NAME_BYTES
from treadle.item import Algorithm, Limit

Per: TypeAlias = Literal["lane", "tenant"] | None
"""For whom a limit is: each lane of each tenant, each tenant, or (None) all together."""


class LimitRule(Struct, frozen=True):
    """A limit before it is known for whom."""

    limit: int
    window: float
    algorithm: Algorithm
    per: Per
    name: str | None = None
    """Given: rules of that name count together, whichever doers they belong to."""

    @property
    def kind(self) -> str:
        """What tells it from the other rules of its doer. Without the limit: one that is changed goes on
        counting where it was, also while old and new processes run side by side.
        """
        return "slots" if self.algorithm == "slots" else f"{self.algorithm}/{self.window:g}"

    def limit_for(self, owner: str, tenant: str, lane: str) -> Limit:
        """The limit that work of this tenant and lane falls under."""
        name = _fitting(f"{self.name or owner}:{self.kind}:{_whose(self.per, tenant, lane)}")
        return Limit(name, self.limit, self.window, self.algorithm)


def _whose(per: Per, tenant: str, lane: str) -> str:
    if per is None:
        return "all"
    # The length, because tenants and lanes may contain any separator.
    return f"tenant:{tenant}" if per == "tenant" else f"lane:{len(tenant)}:{tenant}:{lane}"


def _fitting(name: str) -> str:
    """`name`, or where that is too long for a store its beginning and a digest."""
    encoded = name.encode()
    if len(encoded) <= MAX_NAME_BYTES:
        return name
    digest = blake2b(encoded, digest_size=16).hexdigest()
    return f"{encoded[: MAX_NAME_BYTES - 33].decode(errors='ignore')}:{digest}"


def check_rules(rules: Sequence[LimitRule]) -> tuple[LimitRule, ...]:
    """Refuse rules that would count under one name: the smaller alone says the same."""
    seen = {(rule.name, rule.kind, rule.per) for rule in rules}
    if len(seen) < len(rules):
        raise InputError("two limits of the same kind around one another: keep the lower one")
    return tuple(rules)


def check_per(per: object) -> None:
    if per not in (None, "lane", "tenant"):
        raise InputError.of("per", per, "must be None, 'lane' or 'tenant'")
