"""Errors: what Redis and the network report, as treadle's errors."""

from __future__ import annotations

import re
import ssl
from typing import Final

import hiredis

from treadle.errors import (
    AccessDenied,
    BackendError,
    StoreFull,
    StoreUnavailable,
    TenantElsewhere,
    TreadleError,
)

ELSEWHERE: Final = frozenset({"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN"})
"""Another server may have the keys now. Nothing was done."""
MOVED: Final = ELSEWHERE | {"UNBLOCKED"}
"""Another server may have the keys now: it is looked up again before the next call."""
AWAY: Final = MOVED | {"LOADING", "BUSY", "MISCONF", "NOREPLICAS"}
"""The server cannot do it at the moment. Nothing was done, unless the advice says otherwise."""
NO_SCRIPT: Final = "NOSCRIPT"
STAGED: Final = "STAGED"
"""A script refused to run, and has done nothing, until a large submission is unfolded."""
TENANT_AWAY: Final = "AWAY"
"""A script has stored nothing: see lua/lib/elsewhere.lua."""

_ADVICE: Final = {
    "MOVED": "another node has the keys now; the URL of a cluster begins with redis+cluster://",
    "ASK": "its slot is being moved to another node",
    "TRYAGAIN": "its slot is being moved to another node",
    "CLUSTERDOWN": "a part of the cluster is missing, or is about to be replaced: see `CLUSTER INFO`",
    "LOADING": "it is reading its data after a start",
    "BUSY": "a script has been running for long: see `SCRIPT KILL`, and who sent it",
    "MISCONF": "it cannot write to its disk: free some room there",
    "NOREPLICAS": "too few replicas are connected (min-replicas-to-write)",
    "UNBLOCKED": "it has become a replica: the call may or may not have happened",
    "READONLY": "it is a replica: give the address of the primary, or use redis+sentinel://",
}
_LOOKED_UP: Final = {
    "MOVED": "another node has the keys now: it is looked up",
    "READONLY": "it has become a replica: the primary is looked up",
}
"""The advice where other servers are asked for the right one."""
_DENIED: Final = {
    "NOAUTH": "the server asks for a password: write it into the URL, as in redis://user:password@host",
    "WRONGPASS": "the server refuses the user or the password of the URL",
}
_NO_RIGHT: Final = "ACL failure in script"
"""The user may run scripts, but not a command that this one needs."""
_FAILED_SCRIPT: Final = re.compile(r"ERR (@?user_script|Error running script.*attempt to)|WRONGTYPE .*script")
_FULL: Final = "Redis has no room for new items: raise maxmemory, or keep items for a shorter time"
LOST: Final = "the connection to Redis was lost before the answer came: the call may or may not have happened"


class NotConnected(StoreUnavailable):
    """There was no connection, so nothing was sent to the server."""


def code_of(error: BaseException) -> str:
    """The first word of an error that the server sent, as in `MOVED`."""
    return str(error).partition(" ")[0]


def has_wrong_type(error: hiredis.ReplyError) -> bool:
    """Whether a key is of another type: parked keys are, and perhaps those of other programs."""
    return code_of(error) == "WRONGTYPE"


def is_failed_script(error: hiredis.ReplyError) -> bool:
    """Whether a script failed by itself: it did not find what it relies on, or a key of another type."""
    return _FAILED_SCRIPT.match(str(error)) is not None


def is_refused_client(error: hiredis.ReplyError) -> bool:
    """Whether the server has too many connections. It closes this one."""
    return "max number of clients" in str(error)


def translated(error: hiredis.ReplyError, *, looks_up: bool = False) -> TreadleError:
    """The error to raise instead of one that the server sent. `looks_up`: other servers are asked which one
    has the keys."""
    code, text = code_of(error), str(error)
    if _NO_RIGHT in text:  # not transient: a part of the script may be done
        return BackendError(lacks_rights(text))
    if code in AWAY:
        advice = (looks_up and _LOOKED_UP.get(code)) or _ADVICE.get(code)
        return StoreUnavailable(f"Redis cannot do this now: {text}" + (f" ({advice})" if advice else ""))
    if code == TENANT_AWAY:
        return TenantElsewhere("this Redis store")
    if code == "OOM":
        return StoreFull(_FULL)
    if code == "NOPERM":
        return AccessDenied(lacks_rights(text))
    if code in _DENIED:
        return AccessDenied(_DENIED[code])
    if is_refused_client(error):
        return NotConnected(f"Redis takes no more connections: {text}: raise maxclients")
    if is_failed_script(error):
        return BackendError(
            f"a script failed on what it found in Redis: {text}. Did another program write to, or delete, "
            "keys of this namespace? If not, it is a bug of treadle"
        )
    return BackendError(f"Redis refused: {text}")


def lacks_rights(detail: str) -> str:
    """What to say when the user of the URL lacks a right."""
    return f"the user lacks a right: SECURITY.md has the rules (ACL) that it needs ({detail})"


def unreachable(where: object, error: BaseException, hint: str = "") -> NotConnected:
    """The error for a server that could not be connected to. `hint`: what may be wrong."""
    if not hint and isinstance(error, ssl.SSLError):
        hint = ": check the certificate, or ca= in the URL"
    if not hint and isinstance(error, TimeoutError):
        hint = ": does it hang, or does a firewall drop what is sent?"
    return NotConnected(f"cannot connect to Redis at {where}: {brief(error)}{hint}")


def brief(error: BaseException) -> str:
    """What happened, in a line."""
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer in time"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
