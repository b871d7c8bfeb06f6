"""The bytes of new items, as lua/lib/new_items.lua and lua/submit_plain.lua read them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Bytes
from typing import Final

from msgspec import msgpack

from treadle.item import Item

from .item_bytes import HIGHEST_PRIORITY, Argument, ItemBody, ItemExtra

_HEAD: Final = Bytes(">HIdd")
_PLAIN_HEAD: Final = Bytes(">IdB")
_PLAIN_HEAD_KEEP_DEAD: Final = Bytes(">IddB")


class ItemSpec(ItemExtra, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """All of a new item that a plain one does not have: what is stored, and what is only used now."""

    dl: float = 0.0
    ra: float | None = None
    ei: float | None = None
    de: float | None = None
    ks: str | float = "open"
    kp: str = "existing"
    dm: float | None = None
    me: tuple[str, ...] = ()
    lt: str | None = None


_PLAIN: Final = ItemSpec()

_encode: Final = msgpack.Encoder().encode


def item_arguments(items: Sequence[Item], group_id: str | None = None) -> list[Argument]:
    """New items as `NewItems.read` in new_items.lua reads them. `group_id`: the group that children join,
    unless they name one."""
    kinds: dict[tuple[str, str, str, str], int] = {}
    rows: list[Argument] = []
    for item in items:
        kind = (item.tenant, item.queue, item.lane, item.type)
        number = kinds.setdefault(kind, len(kinds) + 1)
        keep_dead = -1.0 if item.keep_dead is None else item.keep_dead
        head = _HEAD.pack(number, HIGHEST_PRIORITY - item.priority, item.keep, keep_dead)
        rows += (head + item.id.encode(), pack_spec(item, group_id), pack_body(item))
    return [len(kinds), *(text for kind in kinds for text in kind), len(items), *rows]


def pack_spec(item: Item, group_id: str | None = None) -> bytes:
    """Empty for a plain item."""
    spec = ItemSpec(
        k=item.key,
        w=item.workflow,
        wt=item.workflow_type,
        p=item.parent,
        a=item.after,
        n=item.need,
        d=item.counting == "done",
        g=item.group_id or group_id,
        c=item.closes_group,
        x=not item.contributes,
        dl=item.delay,
        ra=item.run_at,
        ei=item.expires_in,
        de=item.deadline,
        ks=item.key_scope,
        kp=item.key_policy,
        dm=item.debounce_max,
        me=item.must_exist,
        lt=item.lease_to,
    )
    return b"" if spec == _PLAIN else _encode(spec)


def plain_class(item: Item) -> bytes:
    """What plain items have in common: their flags and their kind. See submit_plain.lua."""
    flags = "\0" if item.keep_dead is None else "\2"
    return f"{flags}{item.tenant}\0{item.queue}\0{item.lane}\0{item.type}".encode()


def pack_plain(item: Item) -> tuple[bytes, bytes]:
    """The id of a plain item, and its row from the priority on."""
    id, priority, body = item.id.encode(), HIGHEST_PRIORITY - item.priority, pack_body(item)
    if item.keep_dead is None:
        return id, b"".join((_PLAIN_HEAD.pack(priority, item.keep, len(id)), id, body))
    head = _PLAIN_HEAD_KEEP_DEAD.pack(priority, item.keep, item.keep_dead, len(id))
    return id, b"".join((head, id, body))


def pack_body(item: Item) -> bytes:
    return _encode(ItemBody(item.input, item.attempts, item.options))
