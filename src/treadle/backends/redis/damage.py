"""Damage: keys of a namespace that were deleted, or evicted, one by one.

No call can mend that. It is looked for when a script has failed, by `treadle doctor`, and by workers now and
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.base.wording import listed
from treadle.errors import BackendError

from .link import RedisLink
from .scripts import RedisScript

_MISSING_KEYS: Final = RedisScript("missing_keys")


class RedisDamage:
    """Looks for missing keys of the namespace of a link."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link

    async def missing_keys(self) -> Sequence[str]:
        """The names of keys that are missing, or have lost a part, as far as other keys show it."""
        found = await self._link.run(_MISSING_KEYS, on="read")
        return [self._link.key(name.decode()).decode() for name in dict.fromkeys(found)]

    async def error(self) -> BackendError | None:
        """The error to raise when a script has failed. None: nothing is known to be missing."""
        missing = await self.missing_keys()
        return BackendError(damage_advice(missing)) if missing else None


def damage_advice(missing: Sequence[str]) -> str:
    """What to do about keys that are missing."""
    return (
        f"the store is damaged, keys of it are missing or have lost a part: {listed(missing)}. Were they "
        "deleted, or evicted? Stop the workers, then restore the server from a backup, or remove all keys of "
        "the namespace and submit again what was lost"
    )
