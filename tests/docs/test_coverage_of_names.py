"""Every name that a user can write is in the docs: as code, not as a word of prose."""

from __future__ import annotations

import inspect
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import treadle
from treadle import (
    Client,
    Context,
    Handle,
    Retry,
    Treadle,
    Work,
    Worker,
    WorkType,
    bulk_action,
    doers,
    errors,
    events,
    logging,
    metrics,
    ports,
    testing,
)
from treadle import flow_control as flow
from treadle.bulk_action import BulkItem, BulkRefusal, BulkState
from treadle.bulk_runner import BulkRunner
from treadle.client import ClientSettings
from treadle.contrib import celery as contrib_celery
from treadle.contrib import django as django_contrib
from treadle.contrib import fastapi as contrib_fastapi
from treadle.contrib import starlette as contrib_starlette
from treadle.contrib.celery import ApplyOptions, CeleryGroup, CeleryGroupResult, CeleryResult, CelerySignature
from treadle.contrib.django import testing as django_testing
from treadle.contrib.flask import FlaskTreadle
from treadle.contrib.otel import OpenTelemetry, export_metrics
from treadle.contrib.starlette import AcceptedWork, WorkAccess, WorkDeath, WorkGroup, WorkState
from treadle.define.decorators import Definer
from treadle.handle import EnqueueCall
from treadle.handler.context import Interrupt
from treadle.item import Count, GroupState, ItemState, Lease, Page, WorkerState
from treadle.item_facts import LimitHolder, LimitUse, Overview, QueueAge, UnservedType
from treadle.manual_lease import ClaimedLease
from treadle.operate.bulk import Bulk
from treadle.operate.dead_letters import DeadLetters
from treadle.options import EnqueueOptions, NextOptions, Options, TypeOptions, UpdateOptions
from treadle.problems import PROBLEM_KINDS, Problem
from treadle.records import Line, Related, RelatedItem
from treadle.store_metrics import StoreMetrics
from treadle.submit_middleware import NewItem, SubmitNext
from treadle.sync import SyncApp, SyncHandle
from treadle.why import Reason, ReasonKind, Why
from treadle.worker_info import UndecodableType, WorkerInfo

DOCS = Path(__file__).parents[2] / "docs"
CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+(?:\n[^`\n]+)?)`", re.MULTILINE | re.DOTALL)
WORD = re.compile(r"[A-Za-z_]\w*")

# Names without an underscore that are for the engine, or for authors of extensions.
INTERNAL = {
    "treadle": {"__version__"},
    "doers": {"Task"},
    "ports": {"Answer"},
    "flow": {"AdaptiveDelay", "BacklogWatch"},
    "metrics": {"MAX_QUEUES", "MAX_TYPES", "METRICS", "PROCESS_METRICS", "STORE_METRICS"}
    | {"Histogram", "Kind", "Metric", "Metrics", "ProcessMetrics", "Sample", "TypeMetrics", "Value"}
    | {metrics.OTHER},
}


@cache
def words_in_code() -> frozenset[str]:
    text = "\n".join(file.read_text() for file in sorted((*DOCS.glob("*.md"), *DOCS.glob("moving/*.md"))))
    code = (match[1] or match[2] for match in CODE.finditer(text))
    return frozenset(word for part in code for word in WORD.findall(part))


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def defined_in(module: Any) -> set[str]:
    """Return the names that a module itself defines."""
    return {
        name for name in public(module) if getattr(getattr(module, name), "__module__", "") == module.__name__
    }


def parameters(function: Any) -> set[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {
        each.name for each in inspect.signature(function).parameters.values() if each.kind not in kinds
    } - {"self"}


def _struct_names(*structs: type[msgspec.Struct]) -> set[str]:
    return {name for each in structs for name in (each.__name__, *each.__struct_fields__)}


WEB_STATES = (AcceptedWork, WorkDeath, WorkGroup, WorkState)
NAMES: dict[str, set[str]] = {
    "treadle": set(treadle.__all__),
    "NextOptions": set(NextOptions.__annotations__),
    "Options": set(Options.__annotations__),
    "EnqueueOptions": set(EnqueueOptions.__annotations__),
    "TypeOptions": set(TypeOptions.__annotations__),
    "UpdateOptions": set(UpdateOptions.__annotations__),
    "ClientSettings": set(ClientSettings.__annotations__),
    "Treadle(...)": parameters(Treadle.__init__),
    "Client(...)": parameters(Client.__init__),
    "Worker(...)": parameters(Worker.__init__),
    "Retry(...)": parameters(Retry.__init__),
    "app.schedule(...)": parameters(Client.schedule),
    "app.list(...)": parameters(Client.list),
    "errors": {name for name in defined_in(errors) if name[0].isupper()} - {"Directive"},
    "Treadle": public(Treadle),
    "Client": public(Client),
    "Worker": public(Worker),
    "Handle": public(Handle),
    "EnqueueCall": public(EnqueueCall),
    "Context": public(Context),
    "Interrupt": public(Interrupt),
    "Work": set(Work.__struct_fields__),
    "WorkType": public(WorkType) | {"name", "options", "batch"},
    "Result": {"Result", "next"},
    "Definer": public(Definer),
    "Retry": public(Retry),
    "SyncApp": public(SyncApp),
    "SyncHandle": public(SyncHandle),
    "ClaimedLease": public(ClaimedLease),
    "DeadLetters": public(DeadLetters),
    "Bulk": public(Bulk) | parameters(Bulk.start),
    "bulk_action": {*bulk_action.__all__} | _struct_names(BulkState, BulkItem, BulkRefusal),
    "bulk_runner": {BulkRunner.__name__, *public(BulkRunner)},
    "ItemState": set(ItemState.__struct_fields__),
    "item": {each.__name__ for each in (ItemState, GroupState, Page, Count, Lease)},
    "options": {each.__name__ for each in (NextOptions, Options, EnqueueOptions, TypeOptions)},
    "manual_lease": {ClaimedLease.__name__},
    "store_metrics": {StoreMetrics.__name__, *public(StoreMetrics)},
    "doers": set(doers.__all__),
    "events": {name for name in defined_in(events) if name[0].isupper()} | {"Event"},
    "flow": defined_in(flow),
    "metrics": {
        value if isinstance(value := getattr(metrics, name), str) else name for name in metrics.__all__
    },
    "logging": set(logging.__all__),
    "ports": set(ports.__all__) | parameters(ports.RedisPubSub) | parameters(ports.NatsPubSub),
    "testing": set(testing.__all__),
    "why": {"ReasonKind"} | _struct_names(Why, Reason),
    "overview": _struct_names(Overview, QueueAge, UnservedType, LimitUse, LimitHolder),
    "problems": {Problem.__name__, *Problem._fields},
    "bounded reads": _struct_names(Line, Related, RelatedItem),
    "workers": _struct_names(WorkerState, WorkerInfo, UndecodableType),
    "submit_middleware": {NewItem.__name__, SubmitNext.__name__, *public(NewItem)},
    "django": {
        *django_contrib.__all__,
        *django_testing.__all__,
        *django_contrib.TreadleTask.__annotations__,
        *parameters(django_contrib.app),
        *parameters(django_contrib.dashboard),
    },
    "OpenTelemetry": {OpenTelemetry.__name__, *parameters(OpenTelemetry.__init__)},
    "starlette": {
        *contrib_starlette.__all__,
        *(name for each in WEB_STATES for name in each.__dataclass_fields__),
        *WorkAccess.__struct_fields__,
        *parameters(contrib_starlette.accepted),
        *parameters(contrib_starlette.work_router),
        *parameters(contrib_starlette.lifespan),
    },
    "fastapi": {*contrib_fastapi.__all__, *parameters(contrib_fastapi.client)},
    "celery": {
        *contrib_celery.__all__,
        *ApplyOptions.__annotations__,
        *(public(CeleryResult) | public(CeleryGroupResult) | public(CelerySignature) | public(CeleryGroup)),
        *public(contrib_celery.CeleryTask),
        "redis_priorities",
    },
    "flask": {FlaskTreadle.__name__, *public(FlaskTreadle), *parameters(FlaskTreadle.mount_dashboard)},
    "export_metrics": {export_metrics.__name__, *parameters(export_metrics)},
}


@pytest.mark.parametrize("where", NAMES)
def test_every_public_name_is_in_the_docs(where: str) -> None:
    missing = NAMES[where] - INTERNAL.get(where, set()) - words_in_code()
    assert sorted(missing) == []


def test_words_in_code_finds_code_and_not_prose() -> None:
    assert {"Treadle", "enqueue", "durability"} <= words_in_code()
    assert "refactorings" not in words_in_code(), "it is only in the prose"


@pytest.mark.parametrize("where", INTERNAL)
def test_every_internal_name_exists(where: str) -> None:
    assert sorted(INTERNAL[where] - NAMES[where]) == []


@pytest.mark.parametrize(
    ("page", "heading", "column", "kinds"),
    [
        ("why.md", "## The kinds", 2, get_args(ReasonKind)),
        ("inspect-and-repair.md", "## Is all well?", 1, PROBLEM_KINDS),
    ],
)
def test_every_kind_of_reason_and_problem_has_a_row(
    page: str, heading: str, column: int, kinds: tuple[str, ...]
) -> None:
    section = (DOCS / page).read_text().partition(heading)[2].partition("\n#")[0]
    cells = [line.split("|")[column] for line in section.splitlines() if line.startswith("|")]
    assert sorted(set(kinds) - {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}) == []


def test_the_readme_names_every_extra() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    named = re.findall(
        r"^pip install 'treadle\[(\w+)\]'", (DOCS.parent / "README.md").read_text(), re.MULTILINE
    )
    assert sorted(named) == sorted(project["optional-dependencies"])


def test_links_have_a_target() -> None:
    root = DOCS.parent
    for file in [*root.glob("*.md"), *DOCS.glob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", file.read_text()):
            place = (file.parent / target).resolve() if target else file
            assert place.exists(), f"{file.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
                assert anchor[1:] in anchors, f"{file.name}: {target}{anchor}"
