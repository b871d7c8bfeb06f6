"""What `@work` learns of a function: its name, whether it is async, whether it wants a Context, what
it takes and what it returns.

Annotations are read late, at the first call rather than at definition: they may name what stands
further down in the module. Only the first parameter is looked at early, for `Context`; and those of
functions inside functions, whose scope is gone later.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from .codec import hints
from .context import Context
from .errors import DefinitionError
from .result import Result

_MAIN: Final = ("__main__", "__mp_main__")
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Handler(msgspec.Struct, frozen=True, eq=False):
    """A function that carries out a work type, or only says what its calls look like."""

    fn: Callable[..., Any]
    is_async: bool
    wants_context: bool
    parameters: Mapping[str, inspect.Parameter]
    """Those of a call: without the Context."""
    early: Mapping[str, Any] | None = None
    """Its annotations, if they could be read at its definition."""

    def annotations(self) -> Mapping[str, Any]:
        """The types of `parameters` and of what it returns (as `return`); Any where nothing is written.

        DefinitionError if one cannot be resolved.
        """
        return self.early or _resolved(self.fn, self.parameters)


def inspect_handler(fn: Callable[..., Any]) -> Handler:
    """What can be known of `fn` at its definition. TypeError if it cannot be a handler."""
    _check_function(fn)
    parameters = list(inspect.signature(fn).parameters.values())
    with_context = bool(parameters) and _is_context(parameters[0].annotation, _names(fn))
    calls = {each.name: each for each in parameters[with_context:]}
    return Handler(
        fn,
        # A plain wrapper around an async function returns what that one does: a coroutine.
        is_async=inspect.iscoroutinefunction(inspect.unwrap(fn)),
        wants_context=with_context,
        parameters=calls,
        early=_early(fn, calls),
    )


def _check_function(fn: Any) -> None:
    if isinstance(fn, str):
        raise TypeError(f"@work takes a function; its name goes by keyword: @work(name={fn!r})")
    if not inspect.isroutine(fn):
        raise TypeError(f"@work takes a function, not {fn!r:.80}")
    if fn.__name__ == "<lambda>":
        raise TypeError("@work takes no lambda: write it with `def`, so that it has a name")
    unwrapped = inspect.unwrap(fn)
    if inspect.isgeneratorfunction(unwrapped) or inspect.isasyncgenfunction(unwrapped):
        raise TypeError(f"@work: {fn.__name__} is a generator: a handler returns, it does not yield")


def function_name(fn: Callable[..., Any]) -> str:
    """`module.function`."""
    return f"{module_name(fn.__module__)}.{fn.__qualname__.rpartition('<locals>.')[2]}"


def module_name(module: str) -> str:
    """A script's module is named after its file: another process that imports it must find the same name."""
    return _script_name(module) if module in _MAIN else module


def _script_name(module: str) -> str:
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None) or "<stdin>"
    return module if file.startswith("<") else Path(file).stem


def _is_context(annotation: Any, names: dict[str, Any]) -> bool:
    if isinstance(annotation, str):
        return _names_context(annotation, names)
    return annotation is Context or Context in get_args(annotation)


def _names_context(annotation: str, names: dict[str, Any]) -> bool:
    try:
        resolved = eval(annotation, names)
    except Exception:  # noqa: BLE001  an annotation is any expression
        # Imported for type checkers only, or inside a function: its name is all there is to go by.
        return annotation.rpartition(".")[2] == Context.__name__
    return not isinstance(resolved, str) and _is_context(resolved, names)


def _names(fn: Callable[..., Any]) -> dict[str, Any]:
    """Where the annotations of `fn` find their names."""
    return dict(getattr(inspect.unwrap(fn), "__globals__", {}))


def _resolved(
    fn: Callable[..., Any], parameters: Iterable[str], scope: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {name: hints.resolve(fn, name, scope) for name in (*parameters, "return")}


def _early(fn: Callable[..., Any], parameters: Iterable[str]) -> Mapping[str, Any] | None:
    """The annotations of a function inside a function, by the names known there now."""
    scope = _enclosing_scope(fn)
    if scope is None:
        return None
    try:
        return _resolved(fn, parameters, scope)
    except DefinitionError:
        return None  # It is tried again, and reported, when it is needed.


def _enclosing_scope(fn: Callable[..., Any]) -> Mapping[str, Any] | None:
    enclosing, nested, _ = fn.__qualname__.rpartition(".<locals>.")
    frame = inspect.currentframe() if nested else None
    while frame is not None:
        if frame.f_code.co_qualname == enclosing and frame.f_globals["__name__"] == fn.__module__:
            return frame.f_locals
        frame = frame.f_back
    return None


def own_type(returned: Any) -> Any:
    """S of a handler annotated to return `returned`: T itself, or S of `Result[S, ...]`."""
    if returned is Result:
        return Any
    origin = get_origin(returned)
    if origin is Result:
        return get_args(returned)[0]
    if _is_union(returned):
        return _union([own_type(each) for each in get_args(returned)])
    return returned


# --------------------------------------------------------------------- a handler for what was declared


def check_handler(name: str, declared: Handler, handler: Handler) -> None:
    """TypeError if calls that fit `declared` do not fit `handler`."""
    problem = _call_problem(declared.parameters, handler.parameters) or _type_problem(declared, handler)
    if problem:
        raise TypeError(f"{handler.fn.__qualname__} cannot be the handler of {name!r}: {problem}")


def _call_problem(
    declared: Mapping[str, inspect.Parameter], handled: Mapping[str, inspect.Parameter]
) -> str | None:
    if list(declared) != list(handled):
        return f"it takes ({', '.join(handled)}), declared is ({', '.join(declared)})"
    for name, wanted in declared.items():
        own = handled[name]
        if own.kind is not wanted.kind:
            return f"its parameter {name!r} is {own.kind.description}, declared is {wanted.kind.description}"
        if own.default is own.empty and wanted.default is not wanted.empty:
            return f"its parameter {name!r} needs a default, as declared"
    return None


def _type_problem(declared: Handler, handler: Handler) -> str | None:
    try:
        wanted, own = declared.annotations(), handler.annotations()
    except DefinitionError:
        return None  # It cannot be told yet; type checkers can.
    for name in declared.parameters:
        if not _takes(own[name], wanted[name]):
            return f"its parameter {name!r} is {_shown(own[name])}, declared is {_shown(wanted[name])}"
    given, asked = own_type(own["return"]), own_type(wanted["return"])
    if not _takes(asked, given):
        return f"it returns {_shown(given)}, declared is {_shown(asked)}"
    return None


def _takes(wide: Any, narrow: Any) -> bool:
    """Whether a value of type `narrow` is one of type `wide`. True where only a type checker can tell."""
    if wide == narrow or Any in (wide, narrow):
        return True
    if _is_union(narrow):
        return all(_takes(wide, member) for member in get_args(narrow))
    if _is_union(wide):
        return any(_takes(member, narrow) for member in get_args(wide))
    wide_class, narrow_class = get_origin(wide) or wide, get_origin(narrow) or narrow
    if (wide_class, narrow_class) == (float, int):
        return True
    try:
        fits = issubclass(narrow_class, wide_class)
    except TypeError:  # not classes: TypeVar, Literal, Annotated, ...
        return True
    return fits and (not get_args(wide) or get_args(wide) == get_args(narrow))


def _union(members: list[Any]) -> Any:
    return functools.reduce(lambda one, other: one | other, members)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _shown(annotation: Any) -> str:
    plain = isinstance(annotation, type) and not get_args(annotation)
    return annotation.__name__ if plain else str(annotation)


# --------------------------------------------------------------------------------------------- batches


class BatchItem(Handler, frozen=True, eq=False):
    """What a call for one item of a batch looks like: an element of each list of the function."""

    def annotations(self) -> Mapping[str, Any]:
        lists = super().annotations()
        return {
            name: self._output(each) if name == "return" else self._element(each, "takes")
            for name, each in lists.items()
        }

    def _element(self, annotation: Any, verb: str) -> Any:
        origin = get_origin(annotation) or annotation
        if annotation is not Any and not (isinstance(origin, type) and issubclass(list, origin)):
            raise TypeError(
                f"a batch function {verb} a list, and {self.fn.__name__} {verb} {_shown(annotation)}"
            )
        return next(iter(get_args(annotation)), Any)

    def _output(self, annotation: Any) -> Any:
        """The type of a value in the list; exceptions in it are failures, not values."""
        element = self._element(annotation, "returns")
        if not _is_union(element):
            return element
        values = [each for each in get_args(element) if not _is_exception(each)]
        return _union(values) if values else Any


def _is_exception(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)


def batch_item(handler: Handler) -> Handler:
    """What one item of a batch looks like. TypeError if the function is not one of lists."""
    if handler.wants_context:
        raise TypeError(
            f"{handler.fn.__name__} is a batch function: many items share a call, so it has no Context"
        )
    if [each.kind in _POSITIONAL for each in handler.parameters.values()] != [True]:
        raise TypeError(
            f"{handler.fn.__name__} is a batch function: it takes one list of inputs, and nothing else"
        )
    item = BatchItem(*(getattr(handler, field) for field in handler.__struct_fields__))
    with contextlib.suppress(DefinitionError):  # not readable yet: looked at again when it is called
        item.annotations()
    return item
