"""Masking: URLs and DSNs without their passwords, for messages, logs and reprs.

It is for texts that may not be well-formed: a URL that cannot be parsed has a password too. In doubt more is
masked than necessary.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

MASK: Final = "***"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)?//+")
_PAIR = re.compile(r"([^=&?;#\s]*)\s*(?:=|%3D)", re.IGNORECASE)
_SECRET_NAME = re.compile(r"pass|pw|secret|token|key|cred|auth", re.IGNORECASE)
_COLON = re.compile(r":|%3A", re.IGNORECASE)
_HOST = r"(\[[0-9A-Za-z:.%]*\]|[^:,]*)(:\d*)?"
_HOSTS = re.compile(rf"{_HOST}(,{_HOST})*")


def masked(address: str) -> str:
    """A URL or DSN with `***` in place of its password and other secrets.

    Any character may be in a password that is not encoded. So the value of a secret pair ends where the text
    ends, and a password before the host begins at the first colon and ends at the last `@`. If that `@` is
    in the value of a secret pair, it cannot be told what is what: then nothing is shown after the colon.
    """
    scheme = _SCHEME.match(address)
    start = scheme.end() if scheme else 0
    secret = _secret_value(address, start)
    shown, hidden = (address, "") if secret is None else (address[:secret], MASK)
    colon = _COLON.search(shown, start)
    if colon is None:
        return shown + hidden
    at = address.rfind("@", colon.end())
    if at >= len(shown):
        return shown[: colon.end()] + MASK
    if at >= 0:
        return shown[: colon.end()] + MASK + shown[at:] + hidden
    if _has_port(shown[start:]):
        return shown + hidden
    return shown[: colon.end()] + MASK


def _secret_value(address: str, start: int) -> int | None:
    """Where the value of the first `name=value` begins whose name tells that it is secret."""
    pairs = _PAIR.finditer(address, start)
    return next((pair.end() for pair in pairs if _SECRET_NAME.search(unquote(pair[1]))), None)


def _has_port(rest: str) -> bool:
    """Whether a colon with no `@` after it can belong to a host. Otherwise it may begin a password."""
    if "=" in rest.partition(":")[0]:
        return True  # a DSN, or a colon in a query
    host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return _HOSTS.fullmatch(unquote(host)) is not None


class Address:
    """A URL or DSN that hides its password when it is shown, also as a variable in a traceback."""

    __slots__ = ("url",)

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return repr(masked(self.url))
