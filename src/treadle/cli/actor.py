"""Actor: who calls a command, for the audit."""

from __future__ import annotations

import getpass
import os
import socket
from typing import TYPE_CHECKING

from treadle.errors import InputError, message_of

if TYPE_CHECKING:
    from treadle.client import Client

VARIABLE = "TREADLE_ACTOR"


def named_by_host(client: Client, because: str) -> Client:
    """A client whose changes are noted: by TREADLE_ACTOR, or by the user and the host of this process."""
    host = _printable(socket.gethostname())
    given = os.environ.get(VARIABLE)
    if not given:
        return client.by(f"{_user()}@{host}", reason=because, address=host)
    try:
        return client.by(given, reason=because, address=host)
    except InputError as error:
        raise InputError(message_of(error).replace("actor=", f"{VARIABLE}=", 1)) from None


def _user() -> str:
    try:
        return _printable(getpass.getuser())
    except (KeyError, OSError, ImportError):  # the system knows no name for this user
        return f"uid-{os.getuid()}"


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)[:90] or "unknown"
