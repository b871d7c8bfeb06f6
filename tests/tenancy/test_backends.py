"""Tenancy in every verb of every backend: what a tenant is told does not depend on another one."""

from __future__ import annotations

import os
from typing import Any

import pytest
from msgspec.structs import replace

from tests.tenancy.conftest import NewPlace, Place, in_memory
from tests.tenancy.resident import VERBS, Resident, Told
from tests.tenancy.world import World, compare
from treadle.backend import Backend
from treadle.item import OPEN, TERMINAL, Demand, Filter

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
        assert f"of {other}" not in repr([answer for _, answer in together[tenant]])
        compare(alone[tenant], together[tenant])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_neither_observes_nor_changes_the_other(new_place: NewPlace, seed: int) -> None:
    await apart(new_place, seed)


async def test_the_programs_use_every_verb_and_get_somewhere() -> None:
    """A test of nothing would pass as well."""
    told: list[Told] = []
    for seed in range(40):
        async with in_memory() as place:
            told += (await lived(place, seed, ACME))[ACME]
    assert {asked.split()[0] for asked, _ in told} >= set(VERBS)
    answers = repr(told)
    for word in (*OPEN, *TERMINAL, *("aborted", "unsatisfiable", "expired"), *("moved", "stale", "rejected")):
        assert f"'{word}'" in answers, word
    for word in ("NotFound", "AlreadyEnded", "NotTriggerable", "ReferencedError", "duplicate_id", "cycle"):
        assert f"'{word}'" in answers, word
    assert "'existing': True" in answers


# -- a leak in any verb is found --------------------------------------------------------------------------


class Leaky:
    """A backend that forgets the tenant in one verb."""

    def __init__(self, inner: Backend, verb: str) -> None:
        self._inner = inner
        self._verb = verb

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        return (
            method
            if name != self._verb
            else lambda *args, **given: method(*_forget(args), **_all(name, given))
        )


def _forget(args: tuple[Any, ...]) -> tuple[Any, ...]:
    match args:
        case (Demand() as demand, *rest):
            return (replace(demand, tenants=None), *rest)
        case (Filter() as where, *rest):
            return (replace(where, tenant=None), *rest)
        case _:
            return args


def _all(verb: str, given: dict[str, Any]) -> dict[str, Any]:
    everybody = "everybody" if verb == "claim_key" else None
    return given | ({"tenant": everybody} if "tenant" in given else {})


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
