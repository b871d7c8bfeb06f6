"""Results that cannot be carried out. Wrong lines are marked."""

from tests.typing.definitions import add, resize, send
from treadle import Context, Result, work


def queues(ctx: Context) -> None:
    ctx.queue(5)  # E: not a work
    ctx.queue("text")  # E: a str is a sequence, but not of works
    ctx.queue(add)  # E: the type itself
    ctx.queue(add(1, 2), [send("a"), 5])  # E: not a work, inside
    ctx.queue(add(1, 2), dealy=5)  # E: unknown option
    ctx.queue(add(1, 2), priority="high")  # E: wrong type of option
    ctx.queue(add(1, 2), tx=object())  # E: transactions are for enqueue


def links(ctx: Context) -> None:
    ctx.queue(add(1, 2)).next(5)  # E: not a work
    ctx.queue(add(1, 2)).next(resize)  # E: the type itself
    ctx.queue(add(1, 2)).next(add("1", 2))  # E: wrong argument of the work
    ctx.queue(add(1, 2)).next(send("a"), when="some")  # E: not a condition
    ctx.queue(add(1, 2)).next(send("a"), after=["x"])  # E: .next decides what it waits for
    ctx.void().next(add(1, 2), delay="soon")  # E: wrong type of option


def value(ctx: Context) -> Result[str]:
    return ctx.result(5)  # E: S is str


def group(ctx: Context) -> Result[None, str]:
    return ctx.queue(add(1, 2))  # E: G is str


def widened(ctx: Context) -> Result[None, int]:
    return ctx.queue(add(1, 2)).next(resize("p"))  # E: .next widens G


def own(ctx: Context) -> Result[int]:
    return ctx.queue(add(1, 2))  # E: a queue has no value of its own


def want_words(_: list[str]) -> None: ...


@work
def name() -> str:
    return ""


async def fan_in(ctx: Context) -> None:
    want_words(await ctx.results(add))  # E: they are ints
    want_words([await ctx.result_of(add)])  # E: it is an int
    want_words(await ctx.results(name, return_exceptions=True))  # E: or errors
    await ctx.results(add(1, 2))  # E: a work, not its type
    await ctx.result_of(ctx.dependencies)  # E: not a type


def plain_fan_in(ctx: Context) -> None:
    want_words(ctx.sync.results(add))  # E: they are ints
    want_words([ctx.sync.result_of(add)])  # E: it is an int
