"""Calls that the signature of the work type does not allow. Wrong lines are marked."""

from tests.typing.declarations import embed
from tests.typing.definitions import add, configured, mail, nothing, resize, send
from treadle import Schedule, Treadle, work

add("1", 2)  # E: wrong type
add(1)  # E: missing
add()  # E: missing
add(1, 2, 3)  # E: too many
add(1, c=2)  # E: unknown keyword
add(1, b="2")  # E: wrong type, by keyword
resize("a", 100)  # E: keyword-only
send()  # E: missing, the Context does not count
send(None, "you")  # E: the Context is not an argument
nothing(1)  # E: takes nothing
mail(5)  # E: wrong type, with options on the decorator
configured("1")  # E: wrong type
embed(["hello"])  # E: one input, not a list
embed(5)  # E: wrong type
add(1, 2).result()  # E: a Work is not a handle
number: int = add(1, 2)  # E: a call of the type runs nothing


@work(nmae="x")  # E: unknown option
def misnamed() -> None: ...


@work(retry=5)  # E: not a Retry
def misvalued() -> None: ...


@work(run_in="fiber")  # E: not a value of run_in
def misplaced() -> None: ...


@work(on_dead=resize)  # E: it takes a str, and gets a Failure
def undone_wrongly() -> None: ...


@work(on_dead=add)  # E: it takes two arguments
def undone_twice() -> None: ...


@work(on_dead="refund")  # E: not a work type
def undone_by_text() -> None: ...


Schedule("c", every=1, run=add, queues="q")  # E: no such option
Treadle(schedules=["nightly"])  # E: not a schedule
