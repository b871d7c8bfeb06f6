"""Collections of the standard library: stored as a dict or a list, and rebuilt where they are declared.

A `defaultdict` is refused: its factory is code, which is not stored.
"""

from __future__ import annotations

import typing
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, Final

_STORED: Final[dict[type, Any]] = {OrderedDict: dict, Counter: dict, deque: list}


def stored_as(cls: Any) -> Any:
    """Return the type that values of `cls` are stored as, such as `dict[str, int]` for `Counter[str]`. None
    if `cls` is no such collection."""
    origin, args = typing.get_origin(cls) or cls, typing.get_args(cls)
    stored: Any = _STORED.get(origin) if isinstance(origin, type) else None
    if stored is None:
        return None
    if origin is Counter:
        args = (*(args or (Any,)), int)
    if not args:
        args = (Any,) if stored is list else (Any, Any)
    return stored.__class_getitem__(args)


def plain(cls: Any, value: Any) -> Any:
    """Return the dict or list that stands for `value`. Raises TypeError for a value of another kind."""
    origin = typing.get_origin(cls) or cls
    stored = _STORED[origin]
    if not isinstance(value, (origin, stored)):
        raise TypeError(f"Expected `{origin.__name__}`, got `{type(value).__name__}`")
    if isinstance(value, deque) and value.maxlen is not None:
        raise ValueError("a deque with a maxlen, which is not stored")
    return stored(value)


def rebuild(cls: Any, value: Any) -> Any:
    return (typing.get_origin(cls) or cls)(value)


def is_defaultdict(cls: Any) -> bool:
    origin = typing.get_origin(cls) or cls
    return isinstance(origin, type) and issubclass(origin, defaultdict)
