"""Audit."""

from .backend import MemoryBackend


def audit(backend: MemoryBackend) -> list[str]:
    return []
