"""Actor: who calls a command, for the audit."""

from __future__ import annotations

import getpass
import os
import socket
from typing import TYPE_CHECKING

from treadle.errors import InputError, message_of
from treadle.store.audit_note import checked_note

if TYPE_CHECKING:
    from treadle.client import Client

VARIABLE = "TREADLE_ACTOR"


def named_by_host(client: Client, because: str) -> Client:
    """A client whose changes are noted: by `actor_here`."""
    return client.by(actor_here(), reason=because, address=_host())


def actor_here() -> str:
    """Who calls a command: TREADLE_ACTOR, or the user and the host of this process. `InputError`."""
    given = os.environ.get(VARIABLE)
    if not given:
        return f"{_user()}@{_host()}"
    try:
        return checked_note(given, "", "").actor
    except InputError as error:
        raise InputError(message_of(error).replace("actor=", f"{VARIABLE}=", 1)) from None


def _host() -> str:
    return _printable(socket.gethostname())


def _user() -> str:
    try:
        return _printable(getpass.getuser())
    except (KeyError, OSError, ImportError):  # the system knows no name for this user
        return f"uid-{os.getuid()}"


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)[:90] or "unknown"
