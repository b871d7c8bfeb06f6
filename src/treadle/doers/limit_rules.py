"""Fleet-wide limits as a doer declares them, and the names under which the store counts them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from treadle.base.ids import MAX_NAME_BYTES, check_name
from treadle.errors import InputError
from treadle.item import Algorithm, Limit, Order

from .base import check_whole

Per: TypeAlias = Literal["lane", "tenant"] | None
"""What shares a limit: each lane of each tenant, each tenant, or (None) all items together."""


class LimitRule(Struct, frozen=True):
    """A limit as it is declared. `limit_for` gives the `Limit` of one tenant and lane."""

    limit: int
    window: float
    algorithm: Algorithm
    per: Per
    name: str | None = None
    """Rules with the same name count together, also across doers."""

    def __post_init__(self) -> None:
        check_limit(self.limit)
        if self.per not in (None, "lane", "tenant"):
            raise InputError.of("per", self.per, "must be None, 'lane' or 'tenant'")
        if self.name is not None:
            check_name(self.name, field="name")

    @property
    def kind(self) -> str:
        """Tells it from the other rules of its doer. It does not contain the limit: after a change of the
        limit the count goes on, also while old and new processes run side by side.
        """
        return "slots" if self.algorithm == "slots" else f"{self.algorithm}/{self.window:g}"

    def limit_for(self, owner: str, tenant: str, lane: str) -> Limit:
        """The limit for items of this tenant and lane."""
        name = _shortened(self.start(owner) + _sharers(self.per, tenant, lane))
        return Limit(name, self.limit, self.window, self.algorithm)

    def start(self, owner: str) -> str:
        """How the names of its limits begin. No other rule of the same doer has the same beginning."""
        return f"{self.name or owner}:{self.kind}:{_SCOPES[self.per]}"


def rules_in_force(rules: Iterable[LimitRule], owner: str, orders: Sequence[Order]) -> tuple[LimitRule, ...]:
    """What the orders for limits make of the rules of a doer. An order with a window changes the rule on
    starts that has this window; if none has, all of its name. It counts as `ordered_algorithm` says."""
    known = [(rule.name or owner, rule) for rule in rules]
    windows = {(name, rule.window) for name, rule in known if rule.algorithm != "slots"}
    found: dict[tuple[str, str, Per], LimitRule] = {}
    for name, rule in known:
        is_rate = rule.algorithm != "slots"
        for order in orders:
            other = is_rate and (name, order.window) in windows and order.window != rule.window
            if order.name == name and (order.window is not None) == is_rate and not other:
                window, algorithm = order.window or rule.window, ordered_algorithm(order)
                rule = replace(rule, limit=order.limit or 1, window=window, algorithm=algorithm)
        found.setdefault((name, rule.kind, rule.per), rule)
    return tuple(found.values())


def rule_of_type(order: Order) -> LimitRule:
    """The rule of a limit that was ordered for a work type."""
    name = f"{TYPE_LIMIT}{order.type}"
    return LimitRule(order.limit or 1, order.window or 1.0, ordered_algorithm(order), None, name)


def ordered_algorithm(order: Order) -> Algorithm:
    """How a limit that was ordered counts: with a window, from the first start on. So no more start in the
    first window than was ordered. A full bucket would let twice as many start."""
    return "slots" if order.window is None else "fixed_window"


MOST: Final = 2**31 - 1
"""The highest limit."""
TYPE_LIMIT: Final = "type:"
"""The beginning of the names of limits that were ordered for a work type."""

_SCOPES: Final[Mapping[Per, str]] = {None: "all", "tenant": "tenant:", "lane": "lane:"}
_SCOPE: Final = re.compile(
    r":(?:slots|(?:token_bucket|fixed_window|sliding_window)/[^:]+):(?P<per>all\Z|tenant:|lane:)"
)
"""The first one in a name is its own. Any that follow are part of a tenant or a lane."""


def _sharers(per: Per, tenant: str, lane: str) -> str:
    if per is None:
        return ""
    # The length, because tenants and lanes may contain any separator.
    return tenant if per == "tenant" else f"{_of_tenant(tenant)}{lane}"


def _of_tenant(tenant: str) -> str:
    return f"{len(tenant)}:{tenant}:"


def is_limit_of_all(name: str) -> bool:
    """Whether all items share the limit of this name."""
    return _scope(name)[0] == _SCOPES[None]


def is_limit_of_lanes(name: str) -> bool:
    """Whether items of several lanes share the limit of this name."""
    return _scope(name)[0] in (_SCOPES[None], _SCOPES["tenant"])


def is_limit_of_tenant(name: str, tenant: str) -> bool:
    """Whether the limit of this name belongs to a tenant, or to a lane of it."""
    start, sharers = _scope(name)
    if start == _SCOPES["tenant"]:
        return sharers == tenant
    return start == _SCOPES["lane"] and sharers.startswith(_of_tenant(tenant))


class LimitName(Struct, frozen=True):
    """What the name of a limit says."""

    owner: str
    """The type, or the name that the code gave to the limit. `app`: the app's own doer."""
    window: float | None
    """Seconds. None for `slots`."""
    per: Per
    tenant: str = ""
    """Whose limit it is. Empty: it is shared by all."""
    lane: str = ""


def read_limit_name(name: str) -> LimitName | None:
    """What the name of a limit says. None: not known, because it was made otherwise, or cut."""
    found = _SCOPE.search(name)
    if found is None:
        return None
    owner, window = owner_and_window(name)
    sharers = name[found.end() :]
    if found["per"] == _SCOPES[None]:
        return LimitName(owner, window, None)
    if found["per"] == _SCOPES["tenant"]:
        return LimitName(owner, window, "tenant", sharers)
    length, _, rest = sharers.partition(":")
    if not re.fullmatch("[0-9]{1,3}", length) or rest[int(length) : int(length) + 1] != ":":
        return None
    return LimitName(owner, window, "lane", rest[: int(length)], rest[int(length) + 1 :])


def owner_and_window(name: str) -> tuple[str, float | None]:
    """Whose limit it is, and its window: None for `slots`, and if the name does not say it."""
    found = _SCOPE.search(name)
    if found is None:
        return name, None
    return name[: found.start()], _window(found[0].split(":", 2)[1].partition("/")[2])


def _window(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _scope(name: str) -> tuple[str, str]:
    """One of `_SCOPES`, and who shares the limit of this name. Empty: it is not known."""
    found = _SCOPE.search(name)
    return ("", "") if found is None else (found["per"], name[found.end() :])


def _shortened(name: str) -> str:
    """`name`; its beginning and a digest if it is too long for a store."""
    encoded = name.encode()
    if len(encoded) <= MAX_NAME_BYTES:
        return name
    digest = blake2b(encoded, digest_size=16).hexdigest()
    return f"{encoded[: MAX_NAME_BYTES - 33].decode(errors='ignore')}:{digest}"


def check_limit(limit: object) -> None:
    """`InputError` unless a store can count up to it."""
    if check_whole(limit, "limit") > MOST:
        raise InputError.of("limit", limit, f"must be {MOST:,} or less")


def check_rules(rules: Sequence[LimitRule]) -> tuple[LimitRule, ...]:
    """Refuse two rules that would count under one name: the lower limit alone has the same effect."""
    seen = {(rule.name, rule.kind, rule.per) for rule in rules}
    if len(seen) < len(rules):
        raise InputError("two limits of the same kind around one another: keep the lower one")
    return tuple(rules)
