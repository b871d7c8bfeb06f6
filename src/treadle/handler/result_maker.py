"""ResultMaker: the methods of a Context that say what happens next.

Each makes a Result. The overloads of `queue` and `group` are those of `Result.next`: see `treadle.result`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from typing_extensions import TypeVar, Unpack

from treadle.base.callables import check_plain
from treadle.base.ids import generate_id
from treadle.define.work import Items
from treadle.options import Options, check_options

from .result import G1, G2, G3, G4, G5, G6, G7, G8, Result, check_members, flatten

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
