"""Tracebacks for people: the frames of the user's own code stand out, those of others are folded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

import msgspec

from treadle.logs.tracebacks import is_users, package_of

_FRAME: Final = re.compile(r'[\s|]*+File "(.+)", line \d+')
_PYTHON: Final = re.compile(r"[\\/]lib(?:64)?[\\/]python3[^\\/]*[\\/]|^<frozen ")
"""Where Python's own modules are, on the machine of any worker."""
_CODE: Final = re.compile(r"[\\/]src[\\/]treadle[\\/]")


class TracebackPart(msgspec.Struct, frozen=True):
    """Lines that belong together."""

    own: bool
    """They are shown at once. The others are folded."""
    text: str
    frames: int


def traceback_parts(text: str) -> list[TracebackPart]:
    """A stored traceback in parts. If no frame is of the user's own code, all are shown."""
    blocks = list(_blocks(text))
    if not any(is_frame and own for is_frame, own, _ in blocks):
        return (
            [TracebackPart(True, text.rstrip("\n"), sum(is_frame for is_frame, _, _ in blocks))]
            if text
            else []
        )
    parts: list[TracebackPart] = []
    for own, group in groupby(blocks, key=lambda block: block[1]):
        found = list(group)
        joined = "\n".join(lines for _, _, lines in found)
        parts.append(TracebackPart(own, joined, sum(is_frame for is_frame, _, _ in found)))
    return parts


def _blocks(text: str) -> Iterator[tuple[bool, bool, str]]:
    """Whether it is a frame, whether it is the user's own or no frame, and its lines."""
    block: list[str] = []
    is_frame, own, indent = False, True, 0
    for line in text.rstrip("\n").split("\n"):
        found = _FRAME.match(line)
        inside = is_frame and not found and len(line) - len(line.lstrip(" |")) > indent
        if not inside:
            if block:
                yield is_frame, own, "\n".join(block)
            block = []
            is_frame = found is not None
            own = found is None or is_own(found[1])
            indent = len(line) - len(line.lstrip(" |"))
        block.append(line)
    if block:
        yield is_frame, own, "\n".join(block)


def is_own(file: str) -> bool:
    """Whether a file is neither treadle's, nor Python's, nor of an installed package, also on another
    machine."""
    if _PYTHON.search(file) or _CODE.search(file):
        return False
    return is_users(file) and not package_of(file)
