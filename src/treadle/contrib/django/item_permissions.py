"""Item permissions: which actions on items the permissions of a user allow."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

ItemVerb: TypeAlias = Literal["requeue", "cancel", "trigger", "delete"]
VERBS: Final[tuple[ItemVerb, ...]] = ("requeue", "cancel", "trigger", "delete")


def allowed_verbs(user: Any) -> set[ItemVerb]:
    """Those that this user has the permission for: `treadle.requeue_item`, and so on."""
    return {verb for verb in VERBS if user.has_perm(f"treadle.{verb}_item")}
