"""Processes ask each other which groups they wait for, perhaps faster than that can be answered."""

from treadle import Treadle
from treadle.engine.wait.wakeups import MOST_IDS
from treadle.item import Wake
from treadle.operate.operator import core_of


async def test_answers_are_bounded() -> None:
    """While none can be published, each is kept once, and no more than fit into a few wake-ups."""
    core = core_of(Treadle("memory://"))  # it is not connected
    groups = [("acme", f"root-{n}") for n in range(MOST_IDS + 100)]
    for portion in (groups[:500] * 3, groups[:500], groups[500:], groups):
        core.wakeups.answer(portion)
        core.wakeups.ask(portion)
    await core.wakeups.open()
    heard: list[Wake] = []
    await core.backend.subscribe(heard.append)
    core.wakeups.ready()
    await core.wakeups.flush()
    core.wakeups.close()
    assert sum(len(wake.awaited) for wake in heard) == MOST_IDS
    assert sum(len(wake.asking) for wake in heard) == MOST_IDS
