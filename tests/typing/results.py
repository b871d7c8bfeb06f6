"""The types of Results: exact unions of the values that the group may have."""

from typing import Any, assert_type

from tests.typing.declarations import Vector, embed
from tests.typing.declarations import add as declared_add
from tests.typing.definitions import Receipt, add, flow, notify, resize, send
from treadle import Context, Result, TreadleError, Work, at_least


def values(ctx: Context) -> None:
    assert_type(ctx.void(), Result[None, None])
    assert_type(ctx.result(5), Result[int, int])
    assert_type(ctx.result([1], final=True), Result[list[int], list[int]])
    assert_type(ctx.result(None), Result[None, None])


def folds(ctx: Context) -> None:
    def gather(old: list[int] | None) -> list[int]:
        return [*(old or []), 1]

    assert_type(ctx.result(1, append=lambda old: (old or 0) + 1), Result[int, int])
    assert_type(ctx.result(1, append=gather), Result[int, list[int]])
    assert_type(ctx.result(None, append=gather), Result[None, list[int]])


def fold_of_text(ctx: Context, text: str) -> Result[None, str]:
    return ctx.result(None, append=lambda _: text)


def fold_of_set(ctx: Context, text: str) -> Result[None, set[str]]:
    return ctx.result(None, append=lambda old: {*(old or ()), text})


def fold_in_queue(ctx: Context, text: str) -> Result[None, set[str] | int]:
    found: Result[None, set[str]] = ctx.result(None, append=lambda old: {*(old or ()), text})
    return ctx.queue(found, add(1, 2))


def queues(ctx: Context) -> None:
    assert_type(ctx.queue(), Result[None, None])
    assert_type(ctx.queue(add(1, 2)), Result[None, int])
    assert_type(ctx.queue(send("a"), add(1, 2)), Result[None, Receipt | int])
    assert_type(ctx.queue(send("a"), add(1, 2), resize("p")), Result[None, Receipt | int | bytes])
    assert_type(
        ctx.queue(add(1, 2), notify("a"), send("a"), resize("p"), delay=5, priority=3),
        Result[None, int | None | Receipt | bytes],
    )
    assert_type(ctx.queue(flow(["a"])), Result[None, int | Receipt])


def groups(ctx: Context, works: list[Work[int, int]]) -> None:
    assert_type(ctx.group(), Result[None, None])
    assert_type(ctx.group(send("a"), add(1, 2), priority=3), Result[None, Receipt | int])
    assert_type(ctx.group(works).next(resize("p")), Result[None, int | bytes])
    assert_type(ctx.queue(ctx.group(*works), send("a")), Result[None, int | Receipt])


def eight_and_more(ctx: Context) -> None:
    one, two, three, four = add(1, 2), send("a"), resize("p"), notify("a")
    assert_type(
        ctx.queue(one, two, three, four, one, two, three, four), Result[None, int | Receipt | bytes | None]
    )
    assert_type(ctx.queue(one, one, one, one, one, one, one, one, one, one), Result[None, int])


def sequences(ctx: Context, works: list[Work[int, int]]) -> None:
    assert_type(ctx.queue(works), Result[None, int])
    assert_type(ctx.queue(*works), Result[None, int])
    assert_type(ctx.queue([add(n, n) for n in range(3)]), Result[None, int])
    assert_type(ctx.queue(*[add(n, n) for n in range(3)], lane="a"), Result[None, int])
    assert_type(ctx.queue([add(n, n) for n in range(3)], send("a")), Result[None, int | Receipt])
    assert_type(ctx.queue((add(1, 2), add(3, 4))), Result[None, int])
    assert_type(ctx.queue([[add(1, 2)], [add(3, 4), add(5, 6)]]), Result[None, int])


def nested(ctx: Context) -> None:
    inner = ctx.queue(add(1, 2)).next(resize("p"))
    assert_type(inner, Result[None, int | bytes])
    assert_type(ctx.queue(send("a"), inner), Result[None, Receipt | int | bytes])
    assert_type(ctx.queue(send("a"), ctx.result(1.5, final=True)), Result[None, Receipt | float])


def links(ctx: Context, works: list[Work[int, int]]) -> None:
    assert_type(ctx.queue(send("a")).next(add(1, 2)), Result[None, Receipt | int])
    assert_type(ctx.queue(send("a")).next(add(1, 2), resize("p")), Result[None, Receipt | int | bytes])
    assert_type(ctx.queue(send("a")).next(add(1, 2)).next(resize("p")), Result[None, Receipt | int | bytes])
    assert_type(ctx.queue(send("a")).next(works, when="all_done", delay=3), Result[None, Receipt | int])
    assert_type(ctx.queue(send("a")).next(*works, when=at_least(1, of="done")), Result[None, Receipt | int])
    assert_type(ctx.queue(send("a")).next(ctx.queue(add(1, 2))), Result[None, Receipt | int])
    assert_type(ctx.result("own").next(add(1, 2)), Result[str, str | int])
    assert_type(ctx.void().next(add(1, 2)), Result[None, int | None])


# The results of dependencies have the type that the work type's own value has; those of ids have none.


async def fan_in(ctx: Context) -> None:
    assert_type(await ctx.results(add), list[int])
    assert_type(await ctx.results(send), list[Receipt])
    assert_type(await ctx.results(flow), list[None])
    assert_type(await ctx.results(embed), list[Vector])
    assert_type(await ctx.results(declared_add), list[int])
    assert_type(await ctx.results(add, return_exceptions=True), list[int | TreadleError])
    assert_type(await ctx.results(ctx.dependencies), list[Any])
    assert_type(await ctx.results(ctx.dependencies, return_exceptions=True), list[Any])
    assert_type(await ctx.result_of(send), Receipt)
    assert_type(await ctx.result_of(embed), Vector)


def plain_fan_in(ctx: Context) -> None:
    assert_type(ctx.sync.results(add), list[int])
    assert_type(ctx.sync.results(add, return_exceptions=True), list[int | TreadleError])
    assert_type(ctx.sync.results(ctx.dependencies), list[Any])
    assert_type(ctx.sync.result_of(send), Receipt)


# A list of different works: pyright infers the union, mypy needs the declaration of the handler.


def mixed_sequence(
    ctx: Context, works: list[Work[int, int] | Work[Receipt, Receipt]]
) -> Result[None, int | Receipt]:
    return ctx.queue(works) if works else ctx.queue([add(1, 2), send("a")])


def mixed_link(
    ctx: Context, works: list[Work[int, int] | Work[Receipt, Receipt]]
) -> Result[None, int | Receipt]:
    return ctx.queue(add(1, 2)).next(*works)


# A Result of fewer types can be used as one of more.


def narrower(ctx: Context) -> Result[None, int | str | bytes]:
    return ctx.queue(add(1, 2))
