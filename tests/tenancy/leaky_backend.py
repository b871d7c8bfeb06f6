"""LeakyBackend: a planted leak that the tests must find."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from treadle.backend import Backend
from treadle.item import Demand, Filter, Order


class LeakyBackend:
    """A backend that ignores the tenant in one verb."""

    def __init__(self, inner: Backend, verb: str) -> None:
        self._inner = inner
        self._verb = verb

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        return (
            method
            if name != self._verb
            else lambda *args, **given: method(*_without_tenant(args), **_for_all_tenants(name, given))
        )


def _without_tenant(args: tuple[Any, ...]) -> tuple[Any, ...]:
    match args:
        case (Demand() as demand, *rest):
            return (replace(demand, tenants=None), *rest)
        case (Filter() as where, *rest):
            return (replace(where, tenant=None), *rest)
        case (Order() as order, *rest):
            return (replace(order, tenant=None), *rest)
        case _:
            return args


def _for_all_tenants(verb: str, given: dict[str, Any]) -> dict[str, Any]:
    all_tenants = "all_tenants" if verb == "claim_key" else None
    return given | ({"tenant": all_tenants} if "tenant" in given else {})
