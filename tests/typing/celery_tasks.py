"""treadle.contrib.celery: the arguments and the values of tasks have types."""

from typing import assert_type

from treadle import Context, Result, Treadle, work
from treadle.contrib.celery import CeleryGroupResult, CeleryResult, CelerySignature, CeleryTask, group


@work
def add_numbers(a: int, b: int = 1) -> int:
    return a + b


@work
def sum_up(ctx: Context, numbers: list[int]) -> Result[None, int]:
    return ctx.queue([add_numbers(number) for number in numbers])


app = Treadle("memory://", work=[add_numbers, sum_up])
add = CeleryTask(app, add_numbers)
total = CeleryTask(app, sum_up)


def calls() -> None:
    assert_type(add.delay(1, b=2), CeleryResult[int])
    assert_type(add.delay(1).get(timeout=5), int)
    assert_type(add.apply_async((1,), {"b": 2}, countdown=5, queue="sums"), CeleryResult[int])
    assert_type(total.delay([1, 2]).get(), int)
    assert_type(add.s(1), CelerySignature[int])
    assert_type(group(add.s(1), add.s(2)).delay(), CeleryGroupResult[int])
    assert_type(group(add.s(n) for n in range(3)).delay().get(), list[int])
    assert_type(add(1), int)


async def calls_async() -> None:
    assert_type(await add.adelay(1), CeleryResult[int])
    assert_type(await (await add.adelay(1)).aget(), int)
