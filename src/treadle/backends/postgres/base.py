"""Base: what the groups of verbs share."""

from __future__ import annotations

from .calls import Calls


class Verbs:
    """Some verbs of the backend; `_calls` is their way to the server."""

    _calls: Calls
