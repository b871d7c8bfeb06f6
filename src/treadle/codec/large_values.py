"""Large values are decoded in a thread, so that other items go on meanwhile. Small ones are decoded at once.

Decoding 64 KiB takes about a millisecond where a handler declares classes, and a change of threads a tenth of
that. Hostile data takes longest: see `treadle.codec.collisions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

LARGE: Final = 64 * 1024


def is_large(data: object) -> bool:
    return isinstance(data, bytes) and len(data) >= LARGE


async def read_value(data: object, read: Callable[..., T], *args: Any) -> T:
    """Return `read(*args)`. It decodes `data`, in a thread if that is large."""
    return await asyncio.to_thread(read, *args) if is_large(data) else read(*args)
