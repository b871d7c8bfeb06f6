"""The templates of the dashboard are compiled once for all tests of a process, not for each dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType
from unittest.mock import patch

from jinja2 import BytecodeCache
from jinja2.bccache import Bucket

from treadle.dashboard import site


class CompiledTemplates(BytecodeCache):
    """The code of each template, by its name and its source."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.code


COMPILED = CompiledTemplates()


@contextmanager
def compiled_once() -> Iterator[None]:
    with patch.object(site, "Environment", partial(site.Environment, bytecode_cache=COMPILED)):
        yield
