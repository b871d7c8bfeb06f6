"""Tenancy in every verb of every backend: the answers to one tenant do not depend on another tenant."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.tiers import seeds
from tests.tenancy.backend_program import VERBS, BackendProgram, Exchange
from tests.tenancy.conftest import EmptyStore, NewStore, in_memory
from tests.tenancy.leaky_backend import LeakyBackend
from tests.tenancy.shared_store import SharedStore, compare
from treadle.item import OPEN, TERMINAL

SEEDS = int(os.environ.get("TREADLE_TENANCY_SEEDS", "3"))
ACME, ZOO = "acme", "zoo'; --"


async def run_programs(
    store: EmptyStore, seed: int, *tenants: str, backend: Any = None
) -> dict[str, list[Exchange]]:
    """Run this seed and return the calls and answers of each tenant."""
    other = {ACME: ZOO, ZOO: ACME}
    inside = backend or store.backend
    programs = [BackendProgram(inside, tenant, other[tenant], seed) for tenant in tenants]
    await SharedStore(store, programs, seed).run()
    return {program.tenant: program.exchanges for program in programs}


async def run_alone(new_store: NewStore, seed: int) -> dict[str, list[Exchange]]:
    """The calls and answers of each tenant, in a store of its own."""
    alone: dict[str, list[Exchange]] = {}
    for tenant in (ACME, ZOO):
        async with new_store() as store:
            alone |= await run_programs(store, seed, tenant)
    return alone


async def compare_alone_and_together(
    new_store: NewStore, seed: int, leak: str | None = None, alone: dict[str, list[Exchange]] | None = None
) -> None:
    """alone: what `run_alone` has returned for this seed, if it has run."""
    alone = alone or await run_alone(new_store, seed)
    async with new_store() as store:
        together = await run_programs(
            store, seed, ACME, ZOO, backend=leak and LeakyBackend(store.backend, leak)
        )
    for tenant, other in ((ACME, ZOO), (ZOO, ACME)):
        leaked = f"of {other}" in repr([answer for _, answer in together[tenant]])
        assert not leaked
        compare(alone[tenant], together[tenant])


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", seeds(SEEDS))
async def test_a_tenant_gets_the_same_answers_beside_another_tenant(new_store: NewStore, seed: int) -> None:
    await compare_alone_and_together(new_store, seed)


WORDS = {
    *(f"'{word}'" for word in (*OPEN, *TERMINAL, "aborted", "unsatisfiable", "expired", "moved", "stale")),
    *("NotFound", "AlreadyEnded", "NotTriggerable", "ReferencedError", "duplicate_id", "cycle"),
    "'existing': True",
}


async def test_the_programs_use_every_verb_and_reach_every_status() -> None:
    """Otherwise the comparison would prove nothing."""
    verbs, words = set(VERBS), set(WORDS)
    for seed in range(60):
        async with in_memory() as store:
            exchanges = (await run_programs(store, seed, ACME))[ACME]
        answers = repr(exchanges)
        verbs -= {asked.split()[0] for asked, _ in exchanges}
        words = {word for word in words if word not in answers}
        if not verbs and not words:
            break
    assert (verbs, words) == (set(), set())


# -- a leak in any verb is found --------------------------------------------------------------------------


@pytest.mark.usefixtures("checks_tests")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "verb",
    [
        *("claim", "get", "group", "list", "counts", "cancel"),
        *("complete", "requeue", "trigger", "delete", "order", "claim_key", "audits"),
        *("explain", "overview", "lines", "related", "marks"),
    ],
)
async def test_a_leak_in_one_verb_is_found(verb: str) -> None:
    with pytest.raises(AssertionError):
        await run_seeds_with_leak(verb)


ALONE: dict[int, dict[str, list[Exchange]]] = {}
"""What tenants get alone, in memory, by seed. It is the same for all leaks."""

FIRST = {"trigger": 4, "claim_key": 1}
"""The first seeds that find a leak in these verbs. Those of the others are 0."""


async def run_seeds_with_leak(leak: str) -> None:
    first = FIRST.get(leak, 0)
    for seed in (*range(first, 20), *range(first)):
        if seed not in ALONE:
            ALONE[seed] = await run_alone(in_memory, seed)
        await compare_alone_and_together(in_memory, seed, leak, ALONE[seed])
