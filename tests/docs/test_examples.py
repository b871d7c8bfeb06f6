"""Every example runs in its own process and directory, and prints what it demonstrates."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.forks import common_server

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT = 45

SHOWN = {
    "agent": [
        "approved: {'sent': True}",
        "streamed: I look for old files. I delete them.",
        "['model 0', 'find', 'model 1', 'delete', 'model 2']",
    ],
    "batch_embed": ["49 vectors", "'   ' failed: nothing to embed (after 2 attempts)", "[16, 16, 16, 2, 1]"],
    "crawl": ["failed: /blog/2025/nested does not answer", "open again:", "9 pages: / /about /blog"],
    "fastapi_orders": [
        "202 existing: False",
        "202 existing: True",
        "then:  2 x lamp shipped",
        "events: event: end",
        "another tenant: 404",
    ],
    "flask_orders": ["202 existing: True", "200 {'result': 'lamp shipped from Lyon'}", "404"],
    "flask_style_sync": ['"existing": true', '{"month": "2024-05", "turnover": 1234}', "404 Not Found"],
    "order_approval": [
        "an order waits for: approval",
        "click 2: known",
        "shipped with label-1.pdf and invoice-1.pdf",
        "{'ada': 60, 'bob': 100}",
    ],
    "producer_and_worker": ["cat.jpg is 200 pixels wide", "dog.jpg is 64", "the worker ended with 0"],
    "queue_only": ["sent to bob@example.org, attempt 2", "dead     Abort", "too late: cancelled"],
    "quickstart": ["1 + 2 = 3", "Thumbnail(path='cat-64.jpg', width=64)", "doubles: [0, 2, 4, 6, 8]"],
    "rate_limited_api": ["ada: 0.", "bob: 0.", "calls"],
    "retries_and_compensation": [
        "trip.hotel   success, 3 of 4 attempts",
        "refunded 100 to ada",
        "(reason: aborted)",
        "ada has 400 left",
    ],
    "schedule_nightly": [
        "03:00 in Paris",
        "Europe: all is well",
        "  beat\n  beat\n  beat\n",
        "'nightly report'",
    ],
    "tenants": ["zoo sees 3 items", "existing=True, the same item: True", "another tenant: existing=False"],
    "testing_your_work": ["passed: test_that_it_gives_up_in_time"],
    "third_party_backend": ['{"verb": "submit", "outcome": "ok"}', "paid o-1", '{"verb": "cancel"'],
    "transactional_outbox_sqlite": [
        "mailed: dear Ada",
        "refused: no lamp left",
        "[('Ada', 'lamp', 'confirmed')]",
        "[('success', 1)]",
    ],
    "trial": ["day  7: Bob, 23 days are left", "day 10: thank you, Ada", "day 30: goodbye, Bob"],
    "workflow": ["bolt  0.10  Bricks Ltd", "no prices: Closed Corp", "compare  success"],
}


LOGGED = {
    "order_approval": "is dead after attempt 1 of 3, aborted: Abort: not approved",
    "batch_embed": "is dead after attempt 2 of 2, exhausted: ValueError: nothing to embed",
    "crawl": "is dead after attempt 1 of 3, aborted: Abort: /blog/2025/nested does not answer",
    "queue_only": "is dead after attempt 1 of 2, aborted: Abort: 'no-address' is not an address",
    "retries_and_compensation": "is dead after attempt 1 of 3, aborted: Abort: no seat left for ada",
    "testing_your_work": "tried again in 1 min: ConnectionError: 451 try again later",
    "workflow": "is dead after attempt 1 of 3, aborted: Abort: Closed Corp has gone out of business",
}
"""What is on standard error: examples whose items fail say so. The others write nothing there."""


def test_every_example_has_an_expected_output() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} - {"demo", "demo_web"} == set(SHOWN)


@pytest.mark.usefixtures("processes")
@pytest.mark.timeout(LIMIT + 15)
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_the_example_runs_and_prints_the_expected_output(name: str, tmp_path: Path) -> None:
    file = EXAMPLES / f"{name}.py"
    done = common_server().run(["python", "-W", "error", str(file)], tmp_path, os.environ, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    if name in LOGGED:
        assert LOGGED[name] in done.stderr
    else:
        assert done.stderr == ""
    for text in SHOWN[name]:
        assert text in done.stdout


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_examples_are_short(name: str) -> None:
    most = 130 if name == "agent" else 80  # it has a web page
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < most


@pytest.mark.usefixtures("processes")
def test_pytest_collects_the_tests_of_the_example() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(EXAMPLES.parent)]
    done = subprocess.run(
        [*command, "examples/testing_your_work.py"],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert "4 passed" in done.stdout, done.stdout
