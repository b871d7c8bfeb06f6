"""The filter of items as text: `status:dead type:mail.send since:2h input.order_id:17`, and what it selects.

The items page, confirmations and bulk actions read it alike. All words must hold. A value with blanks is
quoted: `key:"new customers"`. A word without a colon is the id of an item.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from treadle.base.ids import check_id, check_name
from treadle.base.wording import did_you_mean, one_line
from treadle.errors import InputError
from treadle.item import DeathReason, Status
from treadle.operate.filters import read_reason, read_statuses, read_time
from treadle.operate.item_condition import WhereCondition, make_condition

FIELDS: Final[Mapping[str, str]] = {
    "status": "dead, running …; open and ended stand for several; separate by commas",
    "type": "the work type",
    "queue": "",
    "tenant": "",
    "key": "",
    "workflow": "",
    "group": "the id of a group",
    "reason": "of a death: exhausted, expired …",
    "mark": "items that died alike",
    "since": "queued then or later: 2h, 2026-11-16T09:30",
    "until": "queued before then",
    "id": "of an item; the word alone does too",
}
"""The words before the colon, and what they mean."""
INSIDE: Final = ("input", "result", "headers")
"""What a condition can look into: `input.order_id:17`."""
MOST_CHARACTERS: Final = 4000
MOST_IDS: Final = 100

_WORD = re.compile(r'([A-Za-z_][\w.\[\]-]*):(?:"((?:[^"\\]|\\.)*)"|(\S*))|"((?:[^"\\]|\\.)*)"|(\S+)')
_PLAIN = re.compile(r'[^\s"\\]+')


class ItemFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a filter selects."""

    text: str = ""
    """As it was written."""
    status: tuple[Status, ...] = ()
    type: str | None = None
    queue: str | None = None
    tenant: str | None = None
    key: str | None = None
    workflow: str | None = None
    group: str | None = None
    reason: DeathReason | None = None
    mark: str | None = None
    since: float | None = None
    until: float | None = None
    ids: tuple[str, ...] = ()
    """The items themselves. Then there are no other words."""
    conditions: tuple[WhereCondition, ...] = ()
    """On what is inside: all must hold. The store does not know them."""

    @property
    def is_empty(self) -> bool:
        """Whether every item matches."""
        return not self.where and not self.conditions and not self.ids

    @property
    def where(self) -> dict[str, Any]:
        """The arguments for `app.list`, without ids and conditions."""
        given = {
            "status": self.status or None,
            "type": self.type,
            "queue": self.queue,
            "tenant": self.tenant,
            "key": self.key,
            "workflow": self.workflow,
            "group_id": self.group,
            "reason": self.reason,
            "mark": self.mark,
            "since": self.since,
            "until": self.until,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def bulk_where(self) -> dict[str, Any]:
        """The arguments for `app.bulk.start`. InputError if the store cannot find what it selects."""
        if self.conditions:
            name = ".".join(map(str, self.conditions[0].path))
            raise InputError(
                f"{name!r} is inside items, where the store does not look: "
                "choose items one by one, or leave it out"
            )
        if self.ids:
            raise InputError("ids are no filter: choose the items themselves")
        return self.where


def parse_filter(text: str, *, now: float) -> ItemFilter:
    """Read a filter. InputError names the word that is wrong, and says what there is.

    now: the store's clock. `since:2h` counts from it.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"the filter is longer than {MOST_CHARACTERS:,} characters")
    words: dict[str, list[str]] = {}
    conditions: list[WhereCondition] = []
    for found in _WORD.finditer(text):
        name, value = _read_word(found)
        if name.partition(".")[0].partition("[")[0] in INSIDE:
            conditions.append(_condition(name, value))
        elif name not in FIELDS:
            raise _unknown(name, found[0])
        elif not value:
            raise InputError(
                f"{name}: has no value: write {name}:{_EXAMPLES.get(name, 'name')}, or leave it out"
            )
        elif name in words and name not in ("id", "status"):
            raise InputError(f"{name}: is there twice, and an item has only one")
        else:
            words.setdefault(name, []).append(value)
    if "id" in words and (len(words) > 1 or conditions):
        others = ", ".join(
            [*(f"{name}:" for name in words if name != "id"), *(["input."] if conditions else [])]
        )
        raise InputError(
            f"{one_line(words['id'][0], 80)!r} is an id, which names one item: leave out {others}"
        )
    return _filter(text, words, tuple(conditions), now)


def _filter(
    text: str, words: Mapping[str, list[str]], conditions: tuple[WhereCondition, ...], now: float
) -> ItemFilter:
    one = {name: values[0] for name, values in words.items()}
    statuses = [word.strip() for given in words.get("status", ()) for word in given.lower().split(",")]
    for name in ("type", "queue", "tenant", "key", "workflow", "mark"):
        if name in one:
            check_name(one[name], name)
    ids = tuple(dict.fromkeys(check_id(id) for id in words.get("id", ())))
    if len(ids) > MOST_IDS:
        raise InputError(f"there are {len(ids)} ids: give at most {MOST_IDS}")
    return ItemFilter(
        text=text.strip(),
        status=read_statuses((word for word in statuses if word), "status"),
        type=one.get("type"),
        queue=one.get("queue"),
        tenant=one.get("tenant"),
        key=one.get("key"),
        workflow=one.get("workflow"),
        group=check_id(one["group"], field="group") if "group" in one else None,
        reason=read_reason(one.get("reason"), "reason"),
        mark=one.get("mark"),
        since=read_time(one.get("since"), now, "since"),
        until=read_time(one.get("until"), now, "until"),
        ids=ids,
        conditions=conditions,
    )


def _read_word(found: re.Match[str]) -> tuple[str, str]:
    """The part before the colon, and the value. A word alone is an id."""
    name, quoted, plain, quoted_alone, alone = found.groups()
    if name is not None:
        return name.lower() if name.lower() in FIELDS else name, plain if quoted is None else _unquote(quoted)
    word = alone if quoted_alone is None else _unquote(quoted_alone)
    try:
        return "id", check_id(word)
    except InputError:
        raise InputError(
            f"{one_line(word, 80)!r} is no id, and no filter: write {_all_fields()}. "
            'Quote values with blanks: key:"a b"'
        ) from None


def _unknown(name: str, word: str) -> InputError:
    hint = did_you_mean(name, FIELDS)
    known = f"{hint} There are {_all_fields()}" if hint else f"there are {_all_fields()}"
    return InputError(
        f"there is no filter {one_line(name, 80)!r}: {known}. If {one_line(word, 80)!r} is an id, write "
        f"id:{one_line(word, 80)}"
    )


def _all_fields() -> str:
    return ", ".join([*(f"{name}:" for name in FIELDS), "input.NAME:"])


def _condition(name: str, value: str) -> WhereCondition:
    condition = make_condition(name, "=", value)
    if len(condition.path) < 2:
        raise InputError(f"{name}: looks inside items, so say where: {name}.NAME:{value or 'value'}")
    return condition


_EXAMPLES: Final = {
    "status": "dead",
    "since": "2h",
    "until": "2026-11-16",
    "reason": "expired",
    "group": "id",
}


# ------------------------------------------------------------------------------------------------- writing


def filter_word(name: str, value: str) -> str:
    """One word of a filter, quoted if it must be."""
    if _PLAIN.fullmatch(value):
        return f"{name}:{value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}:"{escaped}"'


def with_word(text: str, name: str, value: str | None) -> str:
    """A filter with another value for a word. None: without it."""
    kept = [found[0] for found in _WORD.finditer(text) if (found[1] or "").lower() != name]
    return " ".join([*kept, filter_word(name, value)] if value else kept)


def chosen_id(id: str, tenant: str | None) -> str:
    """The value of the checkbox of an item: `ID`, or `ID TENANT`. Ids have no blanks."""
    return id if tenant is None else f"{id} {tenant}"


def split_id(value: str) -> tuple[str, str | None]:
    """The id and the tenant that such a value names."""
    id, _, tenant = value.partition(" ")
    return check_id(id), check_name(tenant, "tenant") if tenant else None


def _unquote(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
