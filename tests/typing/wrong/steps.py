"""Steps whose undo takes another value than theirs. Wrong lines are marked."""

from treadle import Context, Step, Undo, work


@work
async def refund(charge: str) -> None: ...


@work
async def restock(undo: Undo[int]) -> None: ...


async def pay(total: int) -> str:
    return f"charge of {total}"


REFUND = Step("pay", undo=refund)
RESTOCK = Step("pay", undo=restock)
WRONG = Step[int]("pay", undo=refund)  # E: the undo takes a str
WRONG_UNDO = Step[str]("pay", undo=restock)  # E: the undo takes an Undo[int]


@work
async def order(ctx: Context) -> None:
    await ctx.step(REFUND, pay, 5)
    await ctx.step(RESTOCK, pay, 5)  # E: the undo takes an int
    await ctx.step(REFUND, len, "a")  # E: the undo takes a str
