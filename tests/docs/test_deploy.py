"""The dashboard and the alert rules in `deploy/` are PromQL that names existing metrics, labels, values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import promql_parser
import pytest

from treadle.item import DeathReason, Loss, Status
from treadle.metrics import METRICS, PROCESS_METRICS, STORE_METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
LABELS: dict[str, set[str]] = {}
for metric in (*METRICS, *PROCESS_METRICS, *STORE_METRICS):
    if metric.kind == "histogram":
        LABELS[f"{metric.exported}_bucket"] = {*metric.labels, "le"}
        LABELS[f"{metric.exported}_sum"] = LABELS[f"{metric.exported}_count"] = set(metric.labels)
    else:
        LABELS[metric.exported] = set(metric.labels)
VALUES = {"reason": {*get_args(DeathReason), *get_args(Loss)}, "status": set(get_args(Status))}

METRIC = re.compile(r"\b(treadle_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on) \(([^)]*)\)\s*")


def problems(query: str) -> list[str]:
    """What a query names that does not exist."""
    found: list[str] = []
    for name, selector in METRIC.findall(query):
        if name not in LABELS:
            found.append(name)
            continue
        for label, operator, value in MATCHER.findall(selector):
            if label not in LABELS[name]:
                found.append(f"{name}{{{label}}}")
            if operator in ("=", "!=") and label in VALUES and value not in VALUES[label]:
                found.append(f"{label}={value}")
    for grouping in GROUPING.finditer(query):
        labels = {label.strip() for label in grouping[1].split(",")}
        for name, _ in METRIC.findall(_argument(query[grouping.end() :])):
            missing = labels - LABELS.get(name, labels) - {"instance"}
            found += [f"{name}{{{label}}}" for label in sorted(missing)]
    return found


def _argument(text: str) -> str:
    """What a grouping is about: the parentheses that follow, or what `on (...)` compares with."""
    depth = 0
    for end, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0 and character == ")":
            return text[: end + 1]
    return text


def _targets() -> Iterator[tuple[str, dict[str, Any]]]:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target


TARGETS = list(_targets())
ALERTS = {
    block.split("\n")[0]: re.search(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", block, re.DOTALL)
    for block in (DEPLOY / "alerts.yml").read_text().split("- alert: ")[1:]
}


def test_every_metric_of_the_store_and_most_of_a_process_are_on_the_dashboard() -> None:
    shown = {name for _, target in TARGETS for name, _ in METRIC.findall(target["expr"])}
    missing = {name for name in LABELS if not name.endswith(("_bucket", "_sum", "_count"))} - shown
    assert missing == {
        "treadle_active",
        "treadle_expired_total",
        "treadle_last_failed_timestamp_seconds",
        "treadle_last_queued_timestamp_seconds",
        "treadle_last_started_timestamp_seconds",
        "treadle_last_succeeded_timestamp_seconds",
        "treadle_peak_active",
        "treadle_queued_total",
        "treadle_retried_total",
        "treadle_steps_total",
        "treadle_worker_last_beat_timestamp_seconds",
    }


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=[title for title, _ in TARGETS])
def test_the_dashboard_names_what_exists(title: str, target: dict[str, Any]) -> None:
    query = target["expr"]
    assert METRIC.search(query), title
    assert problems(query) == []
    grouped = {label.strip() for labels in GROUPING.findall(query) for label in labels.split(",")}
    assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= grouped


def test_variables_of_the_dashboard_name_what_exists() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    queries = [each["definition"] for each in dashboard["templating"]["list"] if "definition" in each]
    found = [re.fullmatch(r"label_values\((\w+), (\w+)\)", query) for query in queries]
    assert [each is not None and each[2] in LABELS[each[1]] for each in found] == [True, True]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "query",
    [
        *(target["expr"].replace("$__rate_interval", "5m") for _, target in TARGETS),
        *(" ".join(match[1].split()) for match in ALERTS.values() if match is not None),
    ],
)
def test_every_query_is_promql(query: str) -> None:
    assert isinstance(promql_parser.parse(query), promql_parser.Expr)


def test_the_alerts_are_these() -> None:
    assert list(ALERTS) == [
        "TreadleStoreDown",
        "TreadleNoWorker",
        "TreadleNoWorkerForType",
        "TreadleOldestReady",
        "TreadleDeadRate",
        "TreadleDeadItems",
        "TreadleLeaseLost",
        "TreadleScheduleOrphaned",
        "TreadleScheduleFailing",
        "TreadleLimitReached",
    ]


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_name_what_exists(name: str) -> None:
    match = ALERTS[name]
    assert match is not None
    assert METRIC.search(match[1])
    assert problems(match[1]) == []
    block = match.string
    grouped = {label.strip() for labels in GROUPING.findall(match[1]) for label in labels.split(",")}
    assert set(re.findall(r"\$labels\.(\w+)", block)) <= grouped
    assert {"severity:", "summary:", "description:"} <= set(block.split())
    assert [word for word in re.findall(r"treadle_\w+", block) if not _is_known(word)] == []


def _is_known(name: str) -> bool:
    return name in LABELS or f"{name}_bucket" in LABELS


@pytest.mark.parametrize(
    ("query", "wrong"),
    [
        ("treadle_itmes", ["treadle_itmes"]),
        ('treadle_items{tenant="a"}', ["treadle_items{tenant}"]),
        ('treadle_dead_total{reason="tired"}', ["reason=tired"]),
        ("sum by (queue) (rate(treadle_dead_total[5m])) / treadle_workers", ["treadle_dead_total{queue}"]),
        ("treadle_wait_seconds > 1", ["treadle_wait_seconds"]),
    ],
)
def test_wrong_names_are_found(query: str, wrong: list[str]) -> None:
    assert problems(query) == wrong
