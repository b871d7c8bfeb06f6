"""The base of the classes that hold the backend's verbs."""

from __future__ import annotations

from .link import RedisLink


class RedisVerbs:
    """link: carries out scripts and commands."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
