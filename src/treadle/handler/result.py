"""Result: what a handler wants to happen next, as plain data.

The context makes four kinds: a `value`, a `queue` of more work, a `group` of more work, which forms a group
of its own, and `void`. Each may have `.next` links.
Nothing happens until the handler has returned the Result. Then `treadle.handler.result_plan` says what the
engine has to do.

The type parameters of `Result[S, G]` are structural: S is the type of the item's own value, G of the group's.
`ctx.queue(fetch("a"), add(1, 2))` is `Result[None, str | int]`, and `.next(...)` widens G. The overloads
exist for mypy, which infers `object` for arguments of different types where pyright infers their union.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeAlias, Union, overload

import msgspec
from typing_extensions import TypeIs, TypeVar, Unpack

from treadle.base.callables import check_plain
from treadle.base.ids import generate_id
from treadle.define.condition import AtLeast, When
from treadle.define.work import G_co, Items, Queueable, S_co, Work, WorkTypeBase
from treadle.errors import InputError
from treadle.options import NEXT_OPTIONS, NextOptions, Options, check_options, check_when

G1 = TypeVar("G1")
G2 = TypeVar("G2")
G3 = TypeVar("G3")
G4 = TypeVar("G4")
G5 = TypeVar("G5")
G6 = TypeVar("G6")
G7 = TypeVar("G7")
G8 = TypeVar("G8")

Kind: TypeAlias = Literal["value", "queue", "group", "void"]
Node: TypeAlias = Union[Work[Any, Any], "Result[Any, Any]"]


class Link(msgspec.Struct, frozen=True, eq=False):
    """One `.next`: `items` are released when the works before them meet `when`."""

    items: tuple[Node, ...]
    when: When
    options: dict[str, Any]


class Result(msgspec.Struct, Queueable[G_co], Generic[S_co, G_co], eq=False):
    """What a handler wants to happen next. Made by `ctx.result`, `ctx.queue`, `ctx.group` and `ctx.void`."""

    kind: Kind
    value: Any = None
    final: bool = False
    append: Callable[[Any], Any] | None = None
    items: tuple[Node, ...] = ()
    options: dict[str, Any] = {}
    """Checked options for the works among `items`. Nested Results have their own."""
    links: tuple[Link, ...] = ()
    id: str = ""
    """For a group: its id, which is the id of the item that closes it."""

    @overload
    def next(self, a: Items[G1], /, **options: Unpack[NextOptions]) -> Result[S_co, G_co | G1]: ...
    @overload
    def next(
        self, a: Items[G1], b: Items[G2], /, **options: Unpack[NextOptions]
    ) -> Result[S_co, G_co | G1 | G2]: ...
    @overload
    def next(
        self, a: Items[G1], b: Items[G2], c: Items[G3], /, **options: Unpack[NextOptions]
    ) -> Result[S_co, G_co | G1 | G2 | G3]: ...
    @overload
    def next(
        self, a: Items[G1], b: Items[G2], c: Items[G3], d: Items[G4], /, **options: Unpack[NextOptions]
    ) -> Result[S_co, G_co | G1 | G2 | G3 | G4]: ...
    @overload
    def next(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        /,
        **options: Unpack[NextOptions],
    ) -> Result[S_co, G_co | G1 | G2 | G3 | G4 | G5]: ...
    @overload
    def next(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        /,
        **options: Unpack[NextOptions],
    ) -> Result[S_co, G_co | G1 | G2 | G3 | G4 | G5 | G6]: ...
    @overload
    def next(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        g: Items[G7],
        /,
        **options: Unpack[NextOptions],
    ) -> Result[S_co, G_co | G1 | G2 | G3 | G4 | G5 | G6 | G7]: ...
    @overload
    def next(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        g: Items[G7],
        h: Items[G8],
        /,
        **options: Unpack[NextOptions],
    ) -> Result[S_co, G_co | G1 | G2 | G3 | G4 | G5 | G6 | G7 | G8]: ...
    @overload
    def next(self, *works: Items[G1], **options: Unpack[NextOptions]) -> Result[S_co, G_co | G1]: ...
    def next(self, *works: Items[Any], when: When = "all_success", **options: Any) -> Result[Any, Any]:
        """Run `works` when the works before them have met `when`. `options` apply to `works`.

        The works before them are those of the previous link or of `ctx.queue`, including those of nested
        Results and of their links, but not the works that their handlers queue. A `ctx.group` among them
        counts as one: it has ended when everything in it has. After `ctx.result` and `ctx.void` it is this
        item. An empty link is skipped: the next one waits for the link before it.

        It extends this Result and returns it.
        """
        nodes = flatten(works, ".next")
        for node in nodes:
            self._check_follower(node)
        if isinstance(when, AtLeast):
            check_when(when, len(self._last_works()))
        else:
            check_when(when, 1)
        self.links += (Link(nodes, when, check_options(options, ".next", NEXT_OPTIONS)),)
        return self

    def _last_works(self) -> Sequence[object]:
        """Return what the next link would wait for."""
        for link in reversed(self.links):
            if ids := cohort(link.items):
                return ids
        return first_cohort(self, "this item")

    def _check_follower(self, node: Node) -> None:
        for part in walk(node):
            if part is self:
                raise InputError(".next: a Result cannot follow itself")
            if isinstance(part, Work):
                continue
            if part.kind not in ("queue", "group"):
                raise InputError(
                    f".next takes works, queues and groups of works, not ctx.{_MAKERS[part.kind]}: "
                    "return that from the handler of a work, and queue the work"
                )
            if part.options.get("after"):
                raise InputError(
                    f".next takes no {part.kind} that has after=: it always waits for the works before it",
                    parameters=("after",),
                )

    def __repr__(self) -> str:
        shown = repr(self.value) if self.kind == "value" else ", ".join(map(repr, self.items))
        chain = "".join(f".next({', '.join(map(repr, link.items))})" for link in self.links)
        return f"ctx.{_MAKERS[self.kind]}({shown}){chain}"


def is_result(value: object) -> TypeIs[Result[Any, Any]]:
    return isinstance(value, Result)


_MAKERS: dict[Kind, str] = {"value": "result", "queue": "queue", "group": "group", "void": "void"}


def flatten(items: Iterable[object], where: str) -> tuple[Node, ...]:
    """Return the works and Results in `items` and in sequences inside it, in order."""
    nodes: list[Node] = []
    for item in items:
        if _is_node(item):
            nodes.append(item)
        elif _is_sequence(item):
            nodes.extend(flatten(item, where))
        else:
            raise TypeError(f"{where} takes works, Results and sequences of them, {_hint(item)}")
    return tuple(nodes)


def _is_node(item: object) -> TypeIs[Node]:
    return isinstance(item, Work | Result)


def _is_sequence(item: object) -> TypeIs[Sequence[object]]:
    return isinstance(item, Sequence) and not isinstance(item, str | bytes)


def _hint(item: object) -> str:
    if isinstance(item, WorkTypeBase):
        return f"not the work type {item.name!r} itself: call it, as in {item.__name__}(...)"
    return f"not {type(item).__name__}: {item!r:.80}"


def cohort(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the ids of the works in `nodes`, including those of nested Results and of their links. A group
    is represented by its own id; an empty group by none."""
    ids: list[str] = []
    stack = list(nodes)[::-1]
    while stack:
        node = stack.pop()
        if isinstance(node, Work):
            ids.append(node.id)
            continue
        stack += [item for link in reversed(node.links) for item in reversed(link.items)]
        if node.kind != "group":
            stack += reversed(node.items)
        elif has_work(node):
            ids.append(node.id)
    return tuple(ids)


def first_cohort(result: Result[Any, Any], self_id: str) -> tuple[str, ...]:
    """Return the ids that the first link of `result` waits for. `self_id`: the item that returns it."""
    if result.kind == "queue":
        return cohort(result.items)
    if result.kind == "group":
        return (result.id,) if has_work(result) else ()
    return (self_id,)


def has_work(group: Result[Any, Any]) -> bool:
    """Whether there is a Work inside a group. Works that come after it do not count."""
    for item in group.items:  # mostly works: then the first one decides
        if isinstance(item, Work) or any(isinstance(part, Work) for part in walk(item)):
            return True
    return False


def check_members(nodes: Iterable[Node], where: str) -> None:
    """Raise InputError if a Result in a group has a value: it would be this item's, not the group's."""
    for node in nodes:
        if isinstance(node, Work):
            continue
        if any(isinstance(part, Result) and part.kind == "value" for part in walk(node)):
            raise InputError(
                f"{where} takes works, queues and groups of works, not ctx.result: return that from the "
                "handler of a work in the group, or put ctx.result beside the group, in ctx.queue"
            )


def walk(node: Node) -> Iterator[Node]:
    """Yield `node` and every work and Result inside it, in the order written."""
    # With a stack, not recursion: handlers may nest Results deeper than Python recurses.
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Result):
            stack += [item for link in reversed(node.links) for item in reversed(link.items)]
            stack += reversed(node.items)


V = TypeVar("V")
A = TypeVar("A")


class ResultMaker:
    """Makes Results, and records them for the check that the handler returned them."""

    __slots__ = ()

    _created: list[Result[Any, Any]]

    @overload
    def result(self, value: V, *, final: bool = ..., append: None = ...) -> Result[V, V]: ...
    @overload
    def result(
        self, value: None, *, final: bool = ..., append: Callable[[A | None], A]
    ) -> Result[None, A]: ...
    @overload
    def result(self, value: V, *, final: bool = ..., append: Callable[[V | None], V]) -> Result[V, V]: ...
    @overload
    def result(self, value: V, *, final: bool = ..., append: Callable[[A | None], A]) -> Result[V, A]: ...
    def result(
        self, value: Any, *, final: bool = False, append: Callable[[Any], Any] | None = None
    ) -> Result[Any, Any]:
        """Set this item's value to `value`. It also becomes the group's value, until another item sets one.

        final: lock the group's value. Later contributions are ignored.
        append: the group's value becomes `append(old)`. `old` is None if the group has no value yet. It runs
            as part of the settlement and may run more than once, so it must be quick and pure.
        """
        if append is not None:
            check_plain(append, "append")
        return self._record(Result("value", value, final, append))

    @overload
    def queue(self, **options: Unpack[Options]) -> Result[None, None]: ...
    @overload
    def queue(self, a: Items[G1], /, **options: Unpack[Options]) -> Result[None, G1]: ...
    @overload
    def queue(self, a: Items[G1], b: Items[G2], /, **options: Unpack[Options]) -> Result[None, G1 | G2]: ...
    @overload
    def queue(
        self, a: Items[G1], b: Items[G2], c: Items[G3], /, **options: Unpack[Options]
    ) -> Result[None, G1 | G2 | G3]: ...
    @overload
    def queue(
        self, a: Items[G1], b: Items[G2], c: Items[G3], d: Items[G4], /, **options: Unpack[Options]
    ) -> Result[None, G1 | G2 | G3 | G4]: ...
    @overload
    def queue(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5]: ...
    @overload
    def queue(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5 | G6]: ...
    @overload
    def queue(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        g: Items[G7],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5 | G6 | G7]: ...
    @overload
    def queue(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        g: Items[G7],
        h: Items[G8],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5 | G6 | G7 | G8]: ...
    @overload
    def queue(self, *items: Items[G1], **options: Unpack[Options]) -> Result[None, G1]: ...
    def queue(self, *items: Items[Any], **options: Unpack[Options]) -> Result[Any, Any]:
        """Queue more work in this group. This item's own value is None.

        items: works, Results (which are carried out too), or sequences of them.
        options: of the works named here, not of works inside Results.
        """
        nodes = flatten(items, "ctx.queue")
        return self._record(Result("queue", items=nodes, options=check_options(options, "ctx.queue")))

    @overload
    def group(self, **options: Unpack[Options]) -> Result[None, None]: ...
    @overload
    def group(self, a: Items[G1], /, **options: Unpack[Options]) -> Result[None, G1]: ...
    @overload
    def group(self, a: Items[G1], b: Items[G2], /, **options: Unpack[Options]) -> Result[None, G1 | G2]: ...
    @overload
    def group(
        self, a: Items[G1], b: Items[G2], c: Items[G3], /, **options: Unpack[Options]
    ) -> Result[None, G1 | G2 | G3]: ...
    @overload
    def group(
        self, a: Items[G1], b: Items[G2], c: Items[G3], d: Items[G4], /, **options: Unpack[Options]
    ) -> Result[None, G1 | G2 | G3 | G4]: ...
    @overload
    def group(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5]: ...
    @overload
    def group(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5 | G6]: ...
    @overload
    def group(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        g: Items[G7],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5 | G6 | G7]: ...
    @overload
    def group(
        self,
        a: Items[G1],
        b: Items[G2],
        c: Items[G3],
        d: Items[G4],
        e: Items[G5],
        f: Items[G6],
        g: Items[G7],
        h: Items[G8],
        /,
        **options: Unpack[Options],
    ) -> Result[None, G1 | G2 | G3 | G4 | G5 | G6 | G7 | G8]: ...
    @overload
    def group(self, *items: Items[G1], **options: Unpack[Options]) -> Result[None, G1]: ...
    def group(self, *items: Items[Any], **options: Unpack[Options]) -> Result[Any, Any]:
        """Queue more work as a group of its own inside this one. This item's own value is None.

        `.next` after it waits until everything in the group has ended: the works, and all items that they
        queue, at any depth. `await ctx.results(ctx.dependencies)` gives the next work the value of the group.
        Without `.next`, its value is contributed to this group when it has ended.

        items, options: as for `queue`.
        """
        self._check_nested("ctx.group")
        nodes = flatten(items, "ctx.group")
        check_members(nodes, "ctx.group")
        checked = check_options(options, "ctx.group")
        return self._record(Result("group", items=nodes, options=checked, id=generate_id()))

    def void(self) -> Result[None, None]:
        """End without a value, and contribute nothing to the group."""
        return self._record(Result("void"))

    def _record(self, result: Result[Any, Any]) -> Result[Any, Any]:
        self._created.append(result)
        return result

    def _check_nested(self, what: str) -> None:
        """Raise UnsupportedError if the backend has no nested groups. `what` needs them."""
