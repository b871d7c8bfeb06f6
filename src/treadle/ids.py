"""Ids and names: how ids are made, and what ids and names may look like.

An id from the default generator is 32 hex digits: 13 of microseconds since the epoch (enough until
2112), so that ids sort by age and land side by side in an index, then 19 (76 bits) of randomness,
so that machines that share a microsecond do not collide. One costs about 1 us where `uuid4` costs 3
(`python -m timeit -s "from treadle.ids import generate_id" "generate_id()"`). Ids are not secrets:
the generator is fast, not cryptographic. Isolation comes from tenants.

Storage treats ids as opaque text, so a user's own generator may make any `[A-Za-z0-9_.:-]{1,128}`.
"""

from __future__ import annotations

import os
import random as random_module
import re
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

from .clock import Clock
from .errors import InputError

IdGenerator: TypeAlias = Callable[[], str]

MAX_NAME_BYTES = 255

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_CONTROL_OR_SURROGATE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_RANDOM_BITS = 76


class RandomBits(Protocol):
    """The part of `random.Random` that ids need."""

    def getrandbits(self, k: int, /) -> int: ...


def id_generator(clock: Clock, random: RandomBits) -> IdGenerator:
    """A generator on this clock and this randomness, for tests and the simulator: same seeds, same
    ids.
    """
    return _generator(clock.now, random)


def set_id_generator(generator: IdGenerator | None) -> None:
    """Make ids at mint come from `generator`, in this whole process; None restores the default."""
    global _custom  # noqa: PLW0603  the one switch SPEC asks for
    _custom = generator


def generate_id() -> str:
    """A new id, from the user's generator if one is set."""
    return _default() if _custom is None else check_id(_custom(), field="generated id")


def check_id(value: object, *, field: str = "id") -> str:
    """`value`, if it may be an id."""
    if not isinstance(value, str):
        raise InputError.of(field, value, "must be a str")
    if not _ID.fullmatch(value):
        raise InputError.of(field, value, "must be 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    return value


def check_name(value: object, *, field: str) -> str:
    """`value`, if it may name a key, tenant, queue, lane, workflow or work type.

    Any text of 1 to 255 bytes in UTF-8 but no control characters: every store can index it, compare
    it and show it, and a log line holds it whole.
    """
    if not isinstance(value, str):
        raise InputError.of(field, value, "must be a str")
    if not value:
        raise InputError.of(field, value, "must not be empty")
    if not value.isprintable() and _CONTROL_OR_SURROGATE.search(value):
        raise InputError.of(field, value, "must not hold control characters or lone surrogates")
    if _utf8_length(value) > MAX_NAME_BYTES:
        raise InputError.of(field, value, f"is longer than {MAX_NAME_BYTES} bytes")
    return value


def _utf8_length(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode())


def _generator(now: Callable[[], float], random: RandomBits) -> IdGenerator:
    bits = random.getrandbits

    def generate() -> str:
        return (int(now() * 1e6) << _RANDOM_BITS | bits(_RANDOM_BITS)).to_bytes(16, "big").hex()

    return generate


# Not the module-level functions of `random`: an application may seed those, in every process alike.
_random = random_module.Random()
_default = _generator(time.time, _random)
_custom: IdGenerator | None = None

# A forked child would otherwise repeat its parent's ids. Windows does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)
