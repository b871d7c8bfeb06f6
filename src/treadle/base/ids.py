"""Ids and names: makes ids, and checks ids and names.

An id of the default generator has 32 hex digits. The first 13 are microseconds since the epoch (until 2112),
so that ids sort by age and are adjacent in an index. The other 19 (76 bits) are random, so that ids made in
the same microsecond do not collide. An id takes about 1 us, where `uuid4` takes 3 (`python -m timeit -s "from
treadle.base.ids import generate_id" "generate_id()"`). The generator is not cryptographic: ids are not
secrets, and tenants provide isolation.

Storage treats ids as opaque text, so a user's generator may make any `[A-Za-z0-9_.:-]{1,128}`.

Over several stores by root an id says where its item is: in one of `SLOTS` slots. An id of 32 hex digits has
it in the last three, any other id in a hash. So an id is enough to find the store. An item and
all that follows from it have the same slot.
"""

from __future__ import annotations

import hashlib
import os
import random as random_module
import re
import time
import unicodedata
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Final, TypeAlias, cast

from treadle.errors import InputError

from .callables import check_list, check_plain

IdGenerator: TypeAlias = Callable[[], str]

MAX_NAME_BYTES = 255

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Categories of Unicode: control and format characters (which can reverse a text), lone surrogates, and the
separators of lines and paragraphs."""
_JOINERS = "\u200c\u200d"
"""Format characters that words of some languages, and emoji, are written with."""
_RANDOM_BITS = 76

SLOTS: Final = 4096
"""Three hex digits."""
BESIDE: Final[ContextVar[str | None]] = ContextVar("treadle_beside", default=None)
"""The id whose slot new ids get, in a handler over several stores by root."""
_MADE = re.compile(r"[0-9a-f]{32}")
_SLOT_DIGITS = 3


def set_id_generator(generator: IdGenerator | None) -> None:
    """Let `generator` make the ids of new Works in this process. None restores the default."""
    global current  # noqa: PLW0603  the one switch SPEC asks for
    current = _default if generator is None else checked_generator(generator)


def generate_id() -> str:
    """Make a new id, with the user's generator if one is set."""
    beside = BESIDE.get()
    return current() if beside is None else in_slot(current(), slot_of(beside))


def slot_of(id: str) -> int:
    """The slot that an id says."""
    return int(id[-_SLOT_DIGITS:], 16) if _MADE.fullmatch(id) else slot_of_text(id)


def slot_of_text(*texts: str) -> int:
    """The slot of something that has these names. Names that only count are spread as others are: a checksum
    puts most of ten such names into half of the slots."""
    digest = hashlib.blake2b("\0".join(texts).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % SLOTS


def in_slot(id: str, slot: int) -> str:
    """A new id in this slot. An id that was not made as the default generator makes it stays as it is."""
    return f"{id[:-_SLOT_DIGITS]}{slot:0{_SLOT_DIGITS}x}" if _MADE.fullmatch(id) else id


def checked_generator(generator: IdGenerator) -> IdGenerator:
    """Return a generator that raises InputError if the user's `generator` makes something that is no id."""
    check_plain(generator, "generate_id")
    return lambda: check_id(generator(), field="generated id")


def check_id(value: object, *, field: str = "id") -> str:
    """Return `value`, or raise InputError if it is not a valid id."""
    if not isinstance(value, str):
        raise InputError.of(field, value, "must be a str")
    if not _ID.fullmatch(value):
        raise InputError.of(field, value, "must be 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    return value


def ids_of(given: object) -> list[str]:
    """Return the ids of one or many ids, works, handles or states. InputError if one is no id."""
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        some = cast("Iterable[object]", given)
        return [check_id(each) if type(each) is str else id_of(each) for each in some]
    return [id_of(given)]


def id_of(given: object) -> str:
    """Return the id of one id, work, handle or state. InputError if it is no id."""
    if type(given) in (list, tuple, set):
        raise InputError.of("id", given, "must be one id, handle or state, not several")
    return check_id(getattr(given, "id", given))


def check_name(value: object, field: str) -> str:
    """Return `value`, or raise InputError if it is no valid name (of a key, tenant, queue, lane, type, ...).

    A name is text of 1 to 255 bytes in UTF-8 without control characters and other invisible ones. Every store
    can index and compare it, and it fits in a log line, without changing how the rest of the line is shown.
    """
    if not isinstance(value, str):
        raise InputError.of(field, value, "must be a str")
    if not value:
        raise InputError.of(field, value, "must not be empty")
    if not value.isprintable() and (found := _invisible(value)) is not None:
        problem = "must not hold control characters, other invisible characters or lone surrogates"
        raise InputError.of(field, value, f"{problem} (U+{ord(found):04X})")
    if _utf8_length(value) > MAX_NAME_BYTES:
        raise InputError.of(field, value, f"is longer than {MAX_NAME_BYTES} bytes")
    return value


def check_names(given: object, field: str) -> tuple[str, ...]:
    """Return the names in a list, each once. TypeError for anything else, such as one name alone; InputError
    if one is no valid name."""
    names = check_list(given, field, repr(given) if isinstance(given, str) else "'mail'")
    return tuple(dict.fromkeys(check_name(name, field) for name in names))


def _invisible(value: str) -> str | None:
    wrong = (each for each in value if unicodedata.category(each) in _INVISIBLE and each not in _JOINERS)
    return next(wrong, None)


def _utf8_length(value: str) -> int:
    return len(value) if value.isascii() else len(value.encode())


def id_generator(now: Callable[[], float], random: random_module.Random) -> IdGenerator:
    """Return a generator with this clock and this randomness: the same seeds give the same ids."""
    bits = random.getrandbits

    def generate() -> str:
        return (int(now() * 1e6) << _RANDOM_BITS | bits(_RANDOM_BITS)).to_bytes(16, "big").hex()

    return generate


# Not the module-level functions of `random`: an application may seed them alike in every process.
_random = random_module.Random()
_default = id_generator(time.time, _random)
current: IdGenerator = _default
"""Makes the ids of new Works: the default generator, or that of the user."""

# Without a new seed a forked child would repeat its parent's ids. Windows does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.seed)
