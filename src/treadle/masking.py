"""Masking: URLs and DSNs without their passwords, for messages, logs and reprs.

It is for texts that may not be well-formed: a URL that cannot be parsed has a password too. In doubt more is
masked than necessary.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

MASK: Final = "***"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+|//")
_SECRET_NAME = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)
_PORTS = re.compile(r"\d*(,[^:,]*(:\d*)?)*")
# In a URL a value ends at the next `&`. In a DSN it ends at a space, unless it is quoted.
_PAIR_OF_URL = re.compile(r"(?<=[?&])([^=&?]*)(=)([^&]*)")
_PAIR_OF_DSN = re.compile(r"([^\s=]+)(\s*=\s*)('(?:[^'\\]|\\.)*(?:'|$)|\S*)", re.DOTALL)


def masked(address: str) -> str:
    """A URL or DSN with `***` in place of its password and other secrets."""
    scheme = _SCHEME.match(address)
    if scheme is None and "=" in address and ":" not in address.partition("=")[0]:
        return _PAIR_OF_DSN.sub(_mask_pair, address)
    start = scheme.end() if scheme else 0
    return address[:start] + _PAIR_OF_URL.sub(_mask_pair, _mask_user(address[start:]))


def _mask_user(rest: str) -> str:
    """What follows the scheme. A password may contain `@`, `/` and `?`: it ends at the last `@`."""
    user_and_password, at, host = rest.rpartition("@")
    if not at:
        return _mask_port(rest)
    user, colon, _ = user_and_password.partition(":")
    if colon:
        return f"{user}:{MASK}@{host}"
    return rest


def _mask_port(rest: str) -> str:
    """Without an `@`, a port that is no number may be the password."""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    name, colon, port = host.partition(":")
    if not colon or host.startswith("[") or _PORTS.fullmatch(port):
        return rest
    return f"{name}:{MASK}"


def _mask_pair(match: re.Match[str]) -> str:
    name, equals, _ = match.groups()
    return f"{name}{equals}{MASK}" if _SECRET_NAME.search(unquote(name)) else match[0]


class Address:
    """A URL or DSN that hides its password when it is shown, also as a variable in a traceback."""

    __slots__ = ("url",)

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return repr(masked(self.url))
