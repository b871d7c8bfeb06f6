"""What was enqueued, read from the store.

await signup("ada@example.org")
await assert_enqueued(app, send, to="ada@example.org")     # some arguments
await assert_enqueued(app, send("ada@example.org"))        # all arguments, as a type checker sees them
assert not await enqueued(app, refund)
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from treadle.client import Client
from treadle.define.dependency import BUILT_IN
from treadle.define.work import Work
from treadle.define.work_type import WorkType
from treadle.engine.registry import AnyType
from treadle.errors import PayloadError
from treadle.item import ItemState
from treadle.operate.operator import core_of

_SHOWN = 10
"""How many items a failed assertion shows."""


async def enqueued(
    app: Client, work: AnyType | Work[Any, Any] | str | None = None, /, **input: Any
) -> list[ItemState]:
    """Return the items that were enqueued, oldest first: by the test, what it calls, and handlers. Those that
    have ended are among them.

    work: only items of this type, or with this name. For a Work, such as `send("ada@example.org")`: only
        items with the same arguments.
    input: only items that have these arguments. Other arguments may be anything.
    """
    name = _name(work)
    wanted = _wanted(work, input)
    found = [state for state in await _items(app, name) if name is not None or state.type not in BUILT_IN]
    return [state for state in found if _has(_read(app, state, work), wanted)] if wanted else found


async def assert_enqueued(app: Client, work: AnyType | Work[Any, Any] | str, /, **input: Any) -> ItemState:
    """Return the first item that `enqueued` finds. AssertionError if there is none; it says what there is."""
    __tracebackhide__ = True
    found = await enqueued(app, work, **input)
    if found:
        return found[0]
    wanted = _wanted(work, input)
    there = [_shown(state.type, _read(app, state, work)) for state in await enqueued(app)]
    more = [f"and {len(there) - _SHOWN} more"] if len(there) > _SHOWN else []
    raise AssertionError(
        f"not enqueued: {_shown(_name(work) or '', wanted)}\n"
        + ("enqueued:\n  " + "\n  ".join(there[:_SHOWN] + more) if there else "nothing was enqueued")
    )


async def _items(app: Client, type: str | None) -> list[ItemState]:
    found: list[ItemState] = []
    page = await app.list(type=type, oldest_first=True)
    found += page.items
    while page.cursor is not None:
        page = await app.list(type=type, oldest_first=True, cursor=page.cursor)
        found += page.items
    return found


def _name(work: AnyType | Work[Any, Any] | str | None) -> str | None:
    if isinstance(work, Work):
        return work.type
    return work.name if isinstance(work, WorkType) else work


def _read(app: Client, state: ItemState, work: AnyType | Work[Any, Any] | str | None) -> Mapping[str, Any]:
    """The arguments of an item, with the defaults. Empty if they cannot be read here."""
    registry = core_of(app).registry
    type: Any = registry.get(state.type)
    if type is None and _name(work) == state.type:
        type = work.definition if isinstance(work, Work) else work
    if not isinstance(type, WorkType):
        return {}
    try:
        return _with_defaults(type, type.decode_input(state.input, registry.codec))
    except PayloadError:
        return {}


def _wanted(work: AnyType | Work[Any, Any] | str | None, input: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(work, Work):
        return input
    return {**_with_defaults(work.definition, work.input), **input}


def _with_defaults(type: Any, input: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(type).parameters.values()
    return {**{each.name: each.default for each in parameters if each.default is not each.empty}, **input}


def _has(input: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(name in input and input[name] == value for name, value in wanted.items())


def _shown(name: str, input: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r:.80}' for key, value in input.items())})"
