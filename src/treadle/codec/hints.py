"""The annotations of a function, resolved one by one.

One by one, because a name that exists for type checkers only (`if TYPE_CHECKING:`) is no trouble
until a value has to be stored by it: the annotation of a context parameter, for instance.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from treadle.errors import DefinitionError


def resolve(fn: Callable[..., Any], name: str, localns: Mapping[str, Any] | None = None) -> Any:
    """The type of one parameter, or of `"return"`; Any when it has no annotation.

    `localns` holds names that only the function's surroundings know. Raises DefinitionError.
    """
    bare = inspect.unwrap(fn)
    annotations: Mapping[str, Any] = getattr(bare, "__annotations__", {})
    if name not in annotations:
        return Any
    holder = SimpleNamespace(__annotations__={name: annotations[name]})
    try:
        hints = typing.get_type_hints(
            holder, getattr(bare, "__globals__", {}), dict(localns or {}), include_extras=True
        )
    except Exception as error:
        raise DefinitionError(
            f"the annotation {annotations[name]!r} of {name!r} in {bare.__qualname__} cannot be resolved "
            f"({error}): import or define the name at module level"
        ) from error
    return hints[name]
