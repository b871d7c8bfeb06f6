"""Reasons: what `why` says, as a visitor may see it."""

from __future__ import annotations

from typing import Final

import msgspec

from treadle.dashboard.visit import Visit
from treadle.why import Reason, ReasonKind

QUOTING: Final[frozenset[ReasonKind]] = frozenset(
    ("due_at", "undecodable", "ended", "doomed", "group_failed")
)
"""Kinds whose texts may quote the message of an error."""


def shown_reasons(visit: Visit, reasons: tuple[Reason, ...]) -> list[Reason]:
    """The reasons. A visitor who may not see payloads sees no messages of errors."""
    if visit.access.payloads:
        return list(reasons)
    return [
        msgspec.structs.replace(each, text=f"{each.kind.replace('_', ' ')}: the details are hidden")
        if each.kind in QUOTING
        else each
        for each in reasons
    ]
