"""Loop marks: which event loop, of which process, something belongs to.

An app may outlive its event loop (`asyncio.run` twice, a loop for each test), and it may be carried into a
forked process (`gunicorn --preload`, `multiprocessing`). What belongs to the old loop is of no use then.
"""

from __future__ import annotations

import asyncio
import os

_forks = 0
_inherited: list[object] = []


def forks() -> int:
    """A number that is another one in a forked process than in its parent."""
    return _forks


def keep_for_ever(thing: object) -> None:
    """Keep something that a forked process has inherited. Its destructor would act on what the parent
    uses."""
    _inherited.append(thing)


class LoopMark:
    """The event loop, and the process, in which it was made."""

    __slots__ = ("_forks", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._forks = _forks

    @property
    def is_inherited(self) -> bool:
        """Whether it was made before this process was forked."""
        return self._forks != _forks

    @property
    def is_gone(self) -> bool:
        """Whether its loop is closed, or runs in the parent of this process."""
        return self.is_inherited or self.loop.is_closed()


def _count_fork() -> None:
    global _forks  # noqa: PLW0603  one number for the whole process
    _forks += 1


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_count_fork)
