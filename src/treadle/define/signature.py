"""What `@work` reads from a function: its name, whether it is async, whether it takes a Context, its
parameters and its return type.

Annotations are resolved at the first call, not at definition, since they may name classes that the module
defines later. There are two exceptions. The first parameter is inspected at definition, for `Context`. The
annotations of a function inside a function are resolved at definition, because its scope is gone later.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

import msgspec

from treadle.errors import DefinitionError, class_name
from treadle.handler.context import Context
from treadle.handler.result import Result

_MAIN: Final = ("__main__", "__mp_main__")
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Handler(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A function that runs a work type, or that only declares its parameters."""

    fn: Callable[..., Any]
    is_async: bool
    wants_context: bool
    parameters: Mapping[str, inspect.Parameter]
    """The parameters of a call, without the Context."""
    early: Mapping[str, Any] | None = None
    """Its annotations, if they were resolved at definition."""
    wants_contexts: bool = False
    """It is a batch function that takes the contexts of its inputs first."""

    def annotations(self) -> Mapping[str, Any]:
        """Return the types of `parameters` and of the result (as `return`). A missing annotation is Any.

        DefinitionError if one cannot be resolved.
        """
        return self.early or _resolved(self.fn, self.parameters)


def inspect_handler(fn: Callable[..., Any], *, lambdas: bool = False) -> Handler:
    """Read what is known of `fn` at its definition. TypeError if it cannot be a handler. lambdas: it needs no
    name."""
    _check_function(fn, lambdas)
    parameters = list(inspect.signature(fn).parameters.values())
    _check_not_method(fn, parameters)
    names = _names(fn)
    first = _context_form(parameters[0].annotation, names) if parameters else None
    for each in parameters[1:]:
        if _context_form(each.annotation, names) is not None:
            raise TypeError(f"@work: {fn.__name__} takes its Context as {each.name!r}: it must come first")
    if first is not None and parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise TypeError(f"@work: {fn.__name__} takes its Context by keyword: it must come first, without `*`")
    calls = {each.name: each for each in parameters[first is not None :]}
    return Handler(
        fn,
        # A plain wrapper around an async function returns a coroutine too.
        is_async=inspect.iscoroutinefunction(inspect.unwrap(fn)),
        wants_context=first == "one",
        parameters=calls,
        early=_early(fn, calls),
        wants_contexts=first == "list",
    )


STEPS: Final = frozenset(("step", "step_tx", "sleep", "signal", "run", "progress", "emit"))
"""The methods of a Context that only handlers of single items in this process have."""


def steps_used(fn: Callable[..., Any]) -> str | None:
    """Return a method of `STEPS` that a function calls, as its code shows: `ctx.step`, `ctx.sync.step`."""
    codes = [inspect.unwrap(fn).__code__]
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        before = ""
        for each in dis.get_instructions(code):
            name = each.argval if isinstance(each.argval, str) else ""
            if name in STEPS and before in ("ctx", "context", "sync"):
                return name
            before = name
    return None


def _check_function(fn: Any, lambdas: bool) -> None:
    if isinstance(fn, str):
        raise TypeError(f"@work takes a function; its name goes by keyword: @work(name={fn!r})")
    if isinstance(fn, classmethod):
        raise TypeError("@work: a class method needs a class, and a call has none: define a function instead")
    if isinstance(fn, functools.partial) or not inspect.isroutine(fn):
        raise TypeError(f"@work takes a function, not {fn!r:.80}")
    if fn.__name__ == "<lambda>" and not lambdas:
        raise TypeError("@work takes no lambda: define the function with `def`, so that it has a name")
    unwrapped = inspect.unwrap(fn)
    if inspect.isgeneratorfunction(unwrapped) or inspect.isasyncgenfunction(unwrapped):
        raise TypeError(f"@work: {fn.__name__} is a generator: a handler must return its result, not yield")


def _check_not_method(fn: Any, parameters: list[inspect.Parameter]) -> None:
    """Raise TypeError for a function that a class body defines with `self`: no call would give it one."""
    owner = fn.__qualname__.rpartition(".")[0]
    if not owner or owner.endswith("<locals>") or not parameters:
        return
    if parameters[0].name in ("self", "cls") and not inspect.ismethod(fn):
        raise TypeError(
            f"@work: {fn.__qualname__} is a method, and a call has no {parameters[0].name!r}: define a "
            "function outside of the class"
        )


def function_name(fn: Callable[..., Any]) -> str:
    """`module.function`."""
    return f"{module_name(fn.__module__)}.{fn.__qualname__.rpartition('<locals>.')[2]}"


def module_name(module: str) -> str:
    """Return the module name. A script is named after its file, as in a process that imports it."""
    return _script_name(module) if module in _MAIN else module


def class_path(error: BaseException) -> str:
    """The qualified name of its class, as in `shop.errors.CardDeclined`. Classes of Python and of treadle
    have their plain names."""
    try:
        module, name = module_name(type(error).__module__), type(error).__qualname__
        own = module != "builtins" and module.partition(".")[0] != "treadle"
        return f"{module}.{name}" if own else class_name(error)
    except BaseException:  # noqa: BLE001  a metaclass may have names of its own
        return class_name(error)


def _script_name(module: str) -> str:
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None) or "<stdin>"
    return module if file.startswith("<") else Path(file).stem


_ContextForm: TypeAlias = Literal["one", "list"] | None


def _context_form(annotation: Any, names: dict[str, Any]) -> _ContextForm:
    """Whether a parameter takes a Context, or a list of them. None: neither."""
    if isinstance(annotation, str):
        return _named_form(annotation, names)
    if annotation is Context:
        return "one"
    if Context not in get_args(annotation):
        return None
    origin = get_origin(annotation)
    return "list" if isinstance(origin, type) and issubclass(list, origin) else "one"


_NAMED: Final = re.compile(r"(?:(?:\w+\.)*(list|List|Sequence)\[)?(?:\w+\.)*Context\]?")


def _named_form(annotation: str, names: dict[str, Any]) -> _ContextForm:
    try:
        resolved = eval(annotation, names)
    except Exception:  # noqa: BLE001  an annotation may be any expression
        # It is imported for type checkers only, or inside a function. Only its name is known here.
        match = _NAMED.fullmatch(annotation)
        return None if match is None else "list" if match[1] else "one"
    return None if isinstance(resolved, str) else _context_form(resolved, names)


def _names(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the names that the annotations of `fn` may use."""
    return dict(getattr(inspect.unwrap(fn), "__globals__", {}))


def _resolved(
    fn: Callable[..., Any], parameters: Iterable[str], scope: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {name: resolve_annotation(fn, name, scope) for name in (*parameters, "return")}


def resolve_annotation(fn: Callable[..., Any], name: str, scope: Mapping[str, Any] | None = None) -> Any:
    """Return the type of one parameter, or of `"return"`. Any if it has no annotation.

    `scope` holds local names of the code around the function. Raises DefinitionError.

    Annotations are resolved one by one, because a name that exists for type checkers only
    (`if TYPE_CHECKING:`) does no harm where no value is stored by it, as for the Context parameter.
    """
    bare = inspect.unwrap(fn)
    annotations: Mapping[str, Any] = getattr(bare, "__annotations__", {})
    if name not in annotations:
        return Any
    holder = types.SimpleNamespace(__annotations__={name: annotations[name]})
    try:
        hints = typing.get_type_hints(
            holder, getattr(bare, "__globals__", {}), dict(scope or {}), include_extras=True
        )
    except Exception as error:
        raise DefinitionError(
            f"the annotation {annotations[name]!r} of {name!r} in {bare.__qualname__} cannot be resolved "
            f"({error}): import or define the name at module level"
        ) from error
    return hints[name]


def _early(fn: Callable[..., Any], parameters: Iterable[str]) -> Mapping[str, Any] | None:
    """Resolve the annotations of a function inside a function, with the local names known now."""
    scope = _enclosing_scope(fn)
    if scope is None:
        return None
    try:
        return _resolved(fn, parameters, scope)
    except DefinitionError:
        return None  # They are resolved again, and the error is raised, when they are needed.


def _enclosing_scope(fn: Callable[..., Any]) -> Mapping[str, Any] | None:
    enclosing, nested, _ = fn.__qualname__.rpartition(".<locals>.")
    frame = inspect.currentframe() if nested else None
    while frame is not None:
        if frame.f_code.co_qualname == enclosing and frame.f_globals["__name__"] == fn.__module__:
            return frame.f_locals
        frame = frame.f_back
    return None


def own_type(returned: Any) -> Any:
    """Return S for a handler annotated to return `returned`: the type itself, or S of `Result[S, ...]`."""
    if returned is Result:
        return Any
    if get_origin(returned) is Result:
        return get_args(returned)[0]
    if _is_union(returned):
        return _union([own_type(each) for each in get_args(returned)])
    return returned


GROUP_VALUE: Final = "return to the group"
"""Names the type of what a handler gives to its group, beside those of its parameters and of `return`."""


def group_type(returned: Any) -> Any:
    """Return V for a handler annotated to return `Result[S, V]`: the type of what it gives to its group.
    Without a `Result` it is what it returns."""
    if returned is Result:
        return Any
    if get_origin(returned) is Result:
        return get_args(returned)[-1]
    if _is_union(returned):
        return _union([group_type(each) for each in get_args(returned)])
    return returned


# -------------------------------------------------------------------------- handlers of declared types


def check_handler(name: str, declared: Handler, handler: Handler) -> None:
    """Raise TypeError if a call that fits `declared` does not fit `handler`."""
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
        return None  # It cannot be checked at runtime yet. Type checkers check it.
    for name in declared.parameters:
        if not _takes(_unannotated(own[name]), _unannotated(wanted[name])):
            return f"its parameter {name!r} is {type_text(own[name])}, declared is {type_text(wanted[name])}"
    given, asked = own_type(own["return"]), own_type(wanted["return"])
    if not _takes(_unannotated(asked), _unannotated(given)):
        return f"it returns {type_text(given)}, declared is {type_text(asked)}"
    return None


def _takes(wide: Any, narrow: Any) -> bool:
    """Whether a value of type `narrow` is also of type `wide`. True where only a type checker can tell."""
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


def _unannotated(annotation: Any) -> Any:
    """A type without what `Annotated` says besides, which is not for the other side."""
    origin: Any = get_origin(annotation)
    args = get_args(annotation)
    if origin is Annotated:
        return _unannotated(args[0])
    if _is_union(annotation):
        return _union([_unannotated(each) for each in args])
    plain = tuple(map(_unannotated, args))
    return annotation if plain == args else origin[plain]


def _union(members: list[Any]) -> Any:
    return functools.reduce(lambda one, other: one | other, members)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def type_text(annotation: Any) -> str:
    """Return an annotation as text, without marks: `int`, `list[str]`, `str` for `Annotated[str, Secret]`."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(inside[0])
    if _is_union(annotation):
        return " | ".join(map(type_text, inside))
    if origin in (list, dict, set, frozenset, tuple):
        names = ["..." if each is Ellipsis else type_text(each) for each in inside]
        return f"{origin.__name__}[{', '.join(names) or '()'}]"
    if annotation is types.NoneType:
        return "None"
    plain = isinstance(annotation, type) and origin is None
    name = annotation.__qualname__.rpartition("<locals>.")[2] if plain else str(annotation)
    return name.replace("typing.", "")


# --------------------------------------------------------------------------------------------- batches


class BatchItem(Handler, frozen=True, eq=False):
    """The signature of one item of a batch: an element of the list that the function takes and returns."""

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
                f"a batch function {verb} a list, and {self.fn.__name__} {verb} {type_text(annotation)}"
            )
        return next(iter(get_args(annotation)), Any)

    def _output(self, annotation: Any) -> Any:
        """Return the type of a value in the list, without exceptions, which stand for failures."""
        element = self._element(annotation, "returns")
        if not _is_union(element):
            return element
        values = [each for each in get_args(element) if not _is_exception(each)]
        return _union(values) if values else Any


def _is_exception(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)


def batch_item(handler: Handler) -> Handler:
    """Return the signature of one item of a batch. TypeError if the function does not map lists to lists."""
    if handler.wants_context:
        raise TypeError(
            f"{handler.fn.__name__} is a batch function: items share a call, so it cannot take one Context. "
            "Take one per input: `contexts: list[Context]`"
        )
    if [each.kind in _POSITIONAL for each in handler.parameters.values()] != [True]:
        raise TypeError(
            f"{handler.fn.__name__} is a batch function: it must take one list of inputs, and nothing else"
        )
    if any(each.default is not each.empty for each in handler.parameters.values()):
        raise TypeError(
            f"{handler.fn.__name__} is a batch function: its list of inputs has no default, since each Work "
            "gives one input"
        )
    item = BatchItem(*(getattr(handler, field) for field in handler.__struct_fields__))
    with contextlib.suppress(DefinitionError):  # not resolvable yet: checked again at the first call
        item.annotations()
    return item
