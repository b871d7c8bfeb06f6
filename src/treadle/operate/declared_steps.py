"""Declared steps: what the source of a handler says about its steps: their names, kinds, and types of values.

Steps are not registered. So this reads calls such as `ctx.step("charge", pay, order)` and
`ctx.signal("approval", Approval)` in the handler itself. Names are known that are texts, f-strings or `Step`
constants; functions and types are known that the module of the handler names. All others are not: those in
other functions, and those that are computed.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from treadle.codec import Shape
from treadle.engine.registry import Registry
from treadle.engine.run.step_calls import shape_of
from treadle.handler.steps import Step
from treadle.item import StepKind, StepRecord

from .steps import codec_for, read_step

KINDS: Final[dict[str, StepKind]] = {
    "step": "value",
    "step_tx": "value",
    "signal": "signal",
    "sleep": "sleep",
    "run": "children",
}
"""The kinds of steps, by the methods of a Context."""
_UNKNOWN: Final = object()


class DeclaredStep(NamedTuple):
    """A step in the source of a handler."""

    kind: StepKind
    name: re.Pattern[str]
    shape: Shape | None
    """How its values are stored. None: that is not known."""
    upcast: Callable[[Any], Any] | None
    exact: bool
    """Whether its name is a fixed text."""


def declared_steps(handler: Callable[..., Any]) -> list[DeclaredStep]:
    """The steps of a handler, as far as its source tells."""
    function = inspect.unwrap(handler)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        names = _names(function)
    except (OSError, TypeError, SyntaxError, ValueError, AttributeError):
        return []
    return [found for node in ast.walk(tree) if (found := _declared(node, names)) is not None]


def check_step(step: StepRecord, declared: Sequence[DeclaredStep], registry: Registry, type: str) -> str:
    """Why the handler of a type cannot go on with a step that was recorded, or "". A codec of the user may
    raise anything."""
    read_step(step, registry, type)
    kind = "value" if step.kind == "failure" else step.kind
    named = [each for each in declared if each.name.fullmatch(step.name)]
    own = [each for each in named if each.kind == kind]
    if named and not own and all(each.exact for each in named):
        return f"it is recorded as a {kind}, and is a {named[0].kind} now"
    if step.value is None or step.kind == "failure" or any(each.shape is None for each in own):
        return ""
    problem: Exception | None = None
    for each in own:
        try:
            assert each.shape is not None
            each.shape.decode(step.value, codec_for(step, registry, type), each.upcast)
        except Exception as error:  # noqa: BLE001  another one of this name may read it
            problem = error
        else:
            return ""
    if problem is not None:
        raise problem
    return ""


def _names(function: Any) -> Mapping[str, Any]:
    """What the names in the source of a function stand for. Its own variables are unknown."""
    outer = inspect.getclosurevars(function).nonlocals
    known = {**vars(builtins), **function.__globals__, **outer}
    return {name: value for name, value in known.items() if name not in function.__code__.co_varnames}


def _declared(node: ast.AST, names: Mapping[str, Any]) -> DeclaredStep | None:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) > 1):
        return None
    kind, own = KINDS.get(node.func.attr), node.args[0]
    if kind is None:
        return None
    if kind == "signal":
        own = next((each.value for each in node.keywords if each.arg == "step"), own)
    shape, step = _shape(kind, _value(node.args[1], names)), _value(own, names)
    if isinstance(step, Step):
        return DeclaredStep(kind, re.compile(re.escape(step.name)), shape, step.upcast, True)
    pattern, exact = _name(own)
    return DeclaredStep(kind, pattern, shape, None, exact) if pattern.pattern else None


def _shape(kind: StepKind, value: Any) -> Shape | None:
    """How the values of a step are stored. value: its function, or the type of a signal."""
    if value is _UNKNOWN or kind not in ("value", "signal"):
        return None
    try:
        return Shape.for_type(value) if kind == "signal" else shape_of(value)
    except Exception:  # noqa: BLE001  it is no type, or no function
        return None


def _name(node: ast.expr) -> tuple[re.Pattern[str], bool]:
    """The names that an expression may give, and whether that is only one. Empty: it may give any."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    fixed = [each.value if isinstance(each, ast.Constant) else None for each in parts]
    if not any(fixed):
        return re.compile(""), False
    text = "".join(re.escape(each) if isinstance(each, str) else ".*" for each in fixed)
    return re.compile(text, re.DOTALL), None not in fixed


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name, or an attribute of one, stands for."""
    match node:
        case ast.Name(id=name):
            return names.get(name, _UNKNOWN)
        case ast.Attribute(value=inner, attr=name):
            outer = _value(inner, names)
            return _UNKNOWN if outer is _UNKNOWN else getattr(outer, name, _UNKNOWN)
        case _:
            return _UNKNOWN
