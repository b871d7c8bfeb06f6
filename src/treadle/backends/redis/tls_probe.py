"""TLS probe: whether a server that cannot be talked to would answer with TLS, or without it.

A plain server waits for the end of a line when it gets a TLS greeting, and a TLS server closes connections
that do not begin with one. Neither says why, so it is asked the other way. The question has no password.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from .address import Endpoint

PROBE_SECONDS: Final = 1.0
"""How long the other way may take."""
_PING: Final = b"PING\r\n"


async def tls_hint(endpoint: Endpoint, *, with_tls: bool) -> str:
    """What to change in the URL. Empty: it is not that. `with_tls`: how it was tried in vain."""
    if endpoint.port == 0:
        return ""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            if with_tls:
                answers, change = await _answers(endpoint, None), "without TLS: write redis"
            else:
                answers, change = await _answers(endpoint, _unchecked()), "with TLS: write rediss"
    except (OSError, TimeoutError):
        return ""
    return f"; it answers {change} at the beginning of the URL" if answers else ""


async def _answers(endpoint: Endpoint, context: ssl.SSLContext | None) -> bool:
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    try:
        writer.write(_PING)
        answer = await reader.read(1)
        # With TLS the greetings were exchanged. It may want a certificate before it answers.
        return context is not None or answer in (b"+", b"-")
    finally:
        writer.transport.abort()


def _unchecked() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default one loads certificates, which blocks
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
