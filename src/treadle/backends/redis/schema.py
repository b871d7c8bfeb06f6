"""Schema: the version of the layout of the keys, the id of a store, and the rights that scripts need.

The key `meta` has both. A store that was emptied gets another id: see `beat` in workers.py. Its `identity` is
as old as the version, and tells promotions that two addresses are those of one store.
"""

from __future__ import annotations

import secrets
from typing import Final

from treadle.errors import AccessDenied, SchemaError

from .errors import lacks_rights
from .link import RedisLink
from .scripts import RedisScript

_RIGHTS: Final = RedisScript("rights")

VERSION: Final = 2
"""Of the layout of the keys, and of the bytes in them. Every change of either has a new number: see
tests/backends/redis_layout.py."""


async def check_schema(link: RedisLink, *, make: bool) -> None:
    """Note the version of the layout in a new store. `SchemaError` if the store has another one, or none
    and is not to be made. A store that is there is only read: its server may be full, or a replica."""
    key = link.key("meta")
    found = await link.command(b"HGET", key, b"version")
    if found is None and not make:
        raise SchemaError(None, VERSION)
    if found is None:
        await link.command(b"HSETNX", key, b"identity", secrets.token_hex(8))
        await link.command(b"HSETNX", key, b"version", VERSION)
    elif int(found) != VERSION:
        raise SchemaError(int(found), VERSION, converts=False)


async def check_rights(link: RedisLink) -> None:
    """`AccessDenied` if the user may not run a command that scripts use. It must not turn out later: a script
    that is refused a write has done its others."""
    denied = await link.run(_RIGHTS)
    if denied:
        raise AccessDenied(lacks_rights(", ".join(f"+{name.decode()}" for name in denied)))
