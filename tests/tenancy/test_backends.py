"""Tenancy in every verb of every backend: what a tenant is told does not depend on another one."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.tenancy.conftest import NewPlace, Place, in_memory
from tests.tenancy.leaky import Leaky
from tests.tenancy.resident import VERBS, Resident, Told
from tests.tenancy.world import World, compare
from treadle.item import OPEN, TERMINAL

SEEDS = int(os.environ.get("TREADLE_TENANCY_SEEDS", "4"))
ACME, ZOO = "acme", "zoo'; --"


async def lived(place: Place, seed: int, *tenants: str, backend: Any = None) -> dict[str, list[Told]]:
    """What each of these tenants was told in the course of this seed."""
    other = {ACME: ZOO, ZOO: ACME}
    inside = backend or place.backend
    residents = [Resident(inside, tenant, other[tenant], seed) for tenant in tenants]
    await World(place, residents, seed).turn()
    return {resident.tenant: resident.told for resident in residents}


async def apart(new_place: NewPlace, seed: int, leak: str | None = None) -> None:
    alone: dict[str, list[Told]] = {}
    for tenant in (ACME, ZOO):
        async with new_place() as place:
            alone |= await lived(place, seed, tenant)
    async with new_place() as place:
        together = await lived(place, seed, ACME, ZOO, backend=leak and Leaky(place.backend, leak))
    for tenant, other in ((ACME, ZOO), (ZOO, ACME)):
        heard_of = f"of {other}" in repr([answer for _, answer in together[tenant]])
        assert not heard_of
        compare(alone[tenant], together[tenant])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_neither_observes_nor_changes_the_other(new_place: NewPlace, seed: int) -> None:
    await apart(new_place, seed)


WORDS = {
    *(f"'{word}'" for word in (*OPEN, *TERMINAL, "aborted", "unsatisfiable", "expired", "moved", "stale")),
    *("NotFound", "AlreadyEnded", "NotTriggerable", "ReferencedError", "duplicate_id", "cycle"),
    "'existing': True",
}


async def test_the_programs_use_every_verb_and_get_somewhere() -> None:
    """A test of nothing would pass as well."""
    verbs, words = set(VERBS), set(WORDS)
    for seed in range(60):
        async with in_memory() as place:
            told = (await lived(place, seed, ACME))[ACME]
        answers = repr(told)
        verbs -= {asked.split()[0] for asked, _ in told}
        words = {word for word in words if word not in answers}
        if not verbs and not words:
            break
    assert (verbs, words) == (set(), set())


# -- a leak in any verb is found --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "verb",
    [
        *("claim", "get", "group", "list", "counts", "cancel"),
        *("complete", "requeue", "trigger", "delete", "pause", "claim_key"),
    ],
)
async def test_a_leak_in_one_verb_is_found(verb: str) -> None:
    with pytest.raises(AssertionError):
        await until_found(verb)


async def until_found(leak: str) -> None:
    for seed in range(20):
        await apart(in_memory, seed, leak)
