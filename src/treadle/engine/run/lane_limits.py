"""Lane limits: what the engine does for `concurrency(strict=..., on_full=...)`."""

from __future__ import annotations

from treadle.engine.core import Core
from treadle.errors import UnsupportedError


def add_strict_type(core: Core, name: str) -> None:
    """The lanes of this type are strict. `UnsupportedError` if the store cannot do that."""
    if "strict" not in core.backend.capabilities:
        what = f"strict lanes, which concurrency(strict=True) of {name!r} needs"
        raise UnsupportedError("strict", type(core.backend).__name__, what)
    core.strict_types.add(name)
