"""Sealing: wake-ups as payloads that only processes with access to the schema can read or make.

Every role that can connect to a database can LISTEN and NOTIFY on any channel of it. So a payload is
encrypted and signed, with a key that is a row in the schema. Both use hash functions of the standard library:
the text is combined with a stream of SHAKE-256 of the key and a nonce, and signed by BLAKE2b. To seal or open
a payload takes some 10 us, and 150 us if it names 150 items: it is then 2.9 kB long, where JSON takes 7.1.
With their results, if these are short, it takes 270 us and is 3.7 kB long.

A transaction of the user sends `UNSEALED_WAKE`, from a function in the database. It says only that there may
be something to claim. A process that gets anything else ignores it.

Wake-ups through another server (pubsub_wakeups.py) are sealed too: its other users are strangers. There no
transaction sends any, so nothing unsealed is read.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import os
import zlib
from typing import Final

import msgspec
from msgspec.structs import replace

from treadle.item import Wake

EVERYTHING: Final = Wake(ready=True, everything=True)
UNSEALED_WAKE: Final = '{"ready":true}'
MOST_BYTES: Final = 7900
"""The server refuses a payload of 8,000."""
PORTION: Final = 150
"""So many items fit into one payload."""
_NONCE: Final = 12
_SIGNATURE: Final = 16
_COMPRESSED_FROM: Final = 500
"""Ids share their first characters, so a list of them becomes half as long."""
_REMEMBERED: Final = 64
"""So many payloads of this process are known when they come back."""

_decode = msgspec.json.Decoder(Wake).decode
_encode = msgspec.json.Encoder().encode


def _part(like: Wake, wake: Wake, part: slice) -> Wake:
    """As `like`, with a part of the ids of `wake`."""
    return replace(
        like,
        items=wake.items[part],
        results=wake.results[part],
        groups=wake.groups[part],
        asking=wake.asking[part],
        awaited=wake.awaited[part],
    )


class WakeSeal:
    """Seals and opens the wake-ups of one schema. `key` is set when the backend is opened."""

    def __init__(self) -> None:
        self._key = b""
        self._own: dict[str, Wake] = {}
        """What this process has sealed last. It is sent to all processes, this one too."""

    def use(self, key: str) -> None:
        self._key = hashlib.sha256(key.encode()).digest()

    def payloads(self, wake: Wake) -> list[str]:
        """The wake-up as payloads, as many as its ids need."""
        most = max(len(wake.items), len(wake.groups), len(wake.asking), len(wake.awaited))
        if most <= PORTION:
            return [self.sealed(wake)]
        rest = Wake(sender=wake.sender)
        return [
            self.sealed(_part(wake if n == 0 else rest, wake, slice(n, n + PORTION)))
            for n in range(0, most, PORTION)
        ]

    def sealed(self, wake: Wake) -> str:
        """The wake-up as a payload. If that is too long, without the results; if it still is, one that says
        that everything may have changed."""
        text = self._seal(_encode(wake))
        if len(text) > MOST_BYTES and wake.results:
            text = self._seal(_encode(replace(wake, results=())))
        if len(text) > MOST_BYTES:
            text = self._seal(_encode(Wake(sender=wake.sender, ready=True, everything=True)))
        if len(self._own) == _REMEMBERED:
            self._own.clear()
        self._own[text] = wake
        return text

    def opened(self, text: str) -> Wake | None:
        """The wake-up; None if no process with this key has sealed it."""
        if text == UNSEALED_WAKE:
            return Wake(ready=True)
        own = self._own.pop(text, None)
        if own is not None:
            return own
        message = self._open(text)
        if message is None:
            return None
        try:
            return _decode(message if message.startswith(b"{") else zlib.decompress(message))
        except (msgspec.MsgspecError, zlib.error):  # of another version of this library
            return EVERYTHING

    def _seal(self, message: bytes) -> str:
        if len(message) >= _COMPRESSED_FROM:
            message = zlib.compress(message, 1)
        nonce = os.urandom(_NONCE)
        hidden = nonce + self._combined(message, nonce)
        return binascii.b2a_base64(self._signature(hidden) + hidden, newline=False).decode()

    def _open(self, text: str) -> bytes | None:
        try:
            data = binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            return None
        signature, hidden = data[:_SIGNATURE], data[_SIGNATURE:]
        if not hmac.compare_digest(signature, self._signature(hidden)):
            return None
        return self._combined(hidden[_NONCE:], hidden[:_NONCE])

    def _signature(self, hidden: bytes) -> bytes:
        return hashlib.blake2b(
            hidden, digest_size=_SIGNATURE, key=self._key, person=b"treadle wake-up"
        ).digest()

    def _combined(self, message: bytes, nonce: bytes) -> bytes:
        """Encrypt, or decrypt: it is the same."""
        size = len(message)
        stream = hashlib.shake_256(self._key + nonce).digest(size)
        return (int.from_bytes(message, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")
