"""Handlers that do not fit their declaration, and bad batch functions. Wrong lines are marked."""

from tests.typing.declarations import add, flow
from tests.typing.definitions import resize
from treadle import Context, Result, work


@add.handler  # E: wrong type of a parameter
async def wrong_parameter(a: int, b: str) -> int:
    return a


@add.handler  # E: a parameter is missing
async def too_few(a: int) -> int:
    return a


@add.handler  # E: other names
async def other_names(x: int, y: int) -> int:
    return x + y


@add.handler  # E: wrong return type
async def wrong_return(a: int, b: int) -> str:
    return ""


@add.handler  # E: the same, as a Result
def wrong_result(ctx: Context, a: int, b: int) -> Result[str]:
    return ctx.result("")


@flow.handler  # E: the group's value cannot be bytes
async def wrong_group(ctx: Context, n: int) -> Result[None, bytes]:
    return ctx.queue(resize("p"))


@work.batch(size=10)  # E: not a list of inputs
async def one_by_one(text: str) -> list[int]:
    return []


@work.batch(size=10)  # E: not a list of outputs
async def all_in_one(texts: list[str]) -> int:
    return 0


@work.batch(size=10)  # E: a batch has no Context
async def with_context(ctx: Context, texts: list[str]) -> list[int]:
    return []


@work.batch(size="10")  # E: not a number
async def wrong_size(texts: list[str]) -> list[int]:
    return []
