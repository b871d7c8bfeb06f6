"""The mark of a tenant in a store: who owns it, and what each step of a move makes of it.

    old store: owned --started--> owned, move m --frozen--> frozen, f --committed(m, f)--> away: decided
                                                 <-- thawed, when its time is over --
    new store: away --prepared(m)--> importing m --copying(m, f)--> importing m, f --activated(m, f)--> owned

Each function says what the mark is after a step: None if the step is refused. A store puts it in the place of
the one that it was made from, in one step with what else the step does. The same mark means that the step
was made before: a mover that has lost the answer repeats it.

**One number decides.** `started` and `frozen` raise it, and it goes along with the tenant. So no two moves
and no two freezes have the same, wherever the tenant has been. What is older than a store's own is refused.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import json
from msgspec.structs import replace

from treadle.records import STORES_TENANT, TenantMark

Refusal: TypeAlias = Literal["locked", "away"]

MARKS: Final = STORES_TENANT
"""The tenant whose claimed keys are the marks. So they have the same form in all stores, and go along when a
store is promoted."""
PREFIX: Final = "mark."
"""How the key of a mark begins. The name of the tenant follows."""
FOR_EVER: Final = 1e12
"""Until when it is claimed."""
_decode: Final = json.Decoder(TenantMark).decode


def encode_mark(mark: TenantMark) -> str:
    return json.encode(mark).decode()


def decode_mark(text: str | None) -> TenantMark | None:
    return None if text is None else _decode(text)


def refusal(mark: TenantMark, now: float) -> Refusal | None:
    """What a write is told. None: the store owns the tenant."""
    match mark.state:
        case "owned":
            return None
        case "frozen":
            return "locked" if mark.until > now else None
        case "importing":
            return "locked"
        case "away":
            return "away"


def thawed(mark: TenantMark, now: float) -> TenantMark:
    """As it is when a write comes: a freeze whose time is over has ended, and cannot be committed."""
    return replace(mark, state="owned") if mark.state == "frozen" and mark.until <= now else mark


def keeps_ahead(before: TenantMark | None, mark: TenantMark) -> bool:
    """Whether what was read or staged ahead stays as this mark takes the place of the other: as long as the
    same move goes on."""
    return before is not None and 0 < mark.move == before.move and mark.state != "away"


# ------------------------------------------------------------------------------------------- in the old store


def started(mark: TenantMark, seen: int, to: str) -> TenantMark | None:
    """A move begins, if nothing has happened since the number `seen` was read. A repetition is refused: the
    mark says whose move it is."""
    if mark.state != "owned" or mark.move or mark.number != seen:
        return None
    return replace(mark, number=seen + 1, move=seen + 1, to=to)


def frozen(mark: TenantMark, move: int, now: float, until: float) -> TenantMark | None:
    """Frozen until then. A freeze that holds is put off, and keeps its number."""
    mark = thawed(mark, now)
    if not move or mark.move != move or mark.state not in ("owned", "frozen"):
        return None
    if mark.state == "frozen":
        return replace(mark, until=until)
    return replace(mark, state="frozen", number=mark.number + 1, freeze=mark.number + 1, until=until)


def committed(mark: TenantMark, move: int, freeze: int, now: float) -> TenantMark | None:
    """The decision."""
    if mark.move != move or mark.freeze != freeze:
        return None
    if mark.state == "away":
        return mark
    return replace(mark, state="away") if thawed(mark, now).state == "frozen" else None


def given_up(mark: TenantMark, move: int) -> TenantMark | None:
    """The move has ended without a decision. None: it is decided."""
    if mark.move != move:
        return mark
    if mark.state == "away":
        return None
    return replace(mark, state="owned", number=mark.number + 1, move=0, to="")


def may_forget(mark: TenantMark, number: int) -> bool:
    """Whether what the store still has is what this move took away."""
    return mark.state == "away" and mark.number == number


# ------------------------------------------------------------------------------------------- in the new store


def prepared(mark: TenantMark | None, move: int, *, is_empty: bool) -> TenantMark | None:
    """Records may come. What an older move has left here is dropped. is_empty: the store has nothing of the
    tenant that it owned."""
    if mark is None:
        return TenantMark("importing", move, move) if is_empty else None
    if mark.state == "importing" and mark.move == move:
        return mark
    if mark.state not in ("away", "importing") or move <= mark.number or not is_empty:
        return None
    return replace(mark, state="importing", number=move, move=move, freeze=0)


def copying(mark: TenantMark, move: int, freeze: int) -> TenantMark | None:
    """From now on records that were read under this freeze. What came ahead stays if it is the same: nothing
    comes ahead any more."""
    if mark.state != "importing" or mark.move != move or freeze < mark.freeze:
        return None
    return replace(mark, freeze=freeze)


def may_come_ahead(mark: TenantMark | None) -> bool:
    """Whether records may come that are read before the freeze."""
    return mark is not None and mark.state == "importing" and not mark.freeze


def may_take(mark: TenantMark, move: int, freeze: int) -> bool:
    """Whether records of this freeze are taken. 0: of before the freeze."""
    return mark.state == "importing" and mark.move == move and mark.freeze == freeze


def activated(mark: TenantMark, move: int, freeze: int) -> TenantMark | None:
    """The store owns the tenant. Only after the decision: the caller has seen it in the old store."""
    if not freeze or not may_take(mark, move, freeze):
        return None
    return TenantMark("owned", freeze)


def discarded(mark: TenantMark | None, move: int) -> TenantMark | None:
    """What came in is dropped, and this move is taken no more. The store is as it was before: it still says
    where the tenant went from here. None: it is another matter by now."""
    if mark is None:
        return TenantMark("away", move)
    if mark.state == "importing" and mark.move == move:
        return replace(mark, state="away", move=0, freeze=0)
    if mark.state == "away" and mark.number < move:
        return replace(mark, number=move)
    return None
