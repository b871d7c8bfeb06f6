"""The files in `deploy/kubernetes`: the command and the probes, with a real worker; the query of KEDA, on
PostgreSQL, as the role of `deploy/postgres`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psutil
import psycopg
import pytest
import yaml

from treadle import Treadle, work
from treadle.operate.operator import core_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PATIENCE = 40.0
UNSHARE = ("unshare", "--fork", "--pid", "--mount-proc", "--kill-child")
"""Starts a program as the first process of a new namespace of processes. Root may do that."""


def documents(name: str) -> dict[str, Any]:
    """The objects of a file, by kind."""
    text = (DEPLOY / "kubernetes" / name).read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = documents(name)["Deployment"]["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("name", [file.name for file in sorted((DEPLOY / "kubernetes").iterdir())])
def test_manifests_are_objects_with_names(name: str) -> None:
    for kind, each in documents(name).items():
        assert {"apiVersion", "kind", "metadata", "spec"} <= set(each)
        assert each["metadata"]["name"].startswith("shop")
        labels = each["spec"].get("template", {}).get("metadata", {}).get("labels", {})
        selector = each["spec"].get("selector", {}).get("matchLabels", {})
        assert kind == "PodDisruptionBudget" or selector.items() <= labels.items()


def test_the_pods_have_time_to_drain() -> None:
    drain = core_of(Treadle("memory://")).settings.drain
    assert pod("worker.yaml")["terminationGracePeriodSeconds"] >= drain + 30


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=3) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Started:
    """The command of the pod, with another app and another port, in a process of its own."""

    def __init__(
        self, command: list[str], url: str, directory: Path, *, wrapper: tuple[str, ...] = ()
    ) -> None:
        here = {"shop.jobs:app": "tests.cli.shop:app", ":9100": "127.0.0.1:0"}
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, "-m", *(here.get(part, part) for part in command)],
                cwd=ROOT,
                env={**os.environ, "SHOP_URL": url},
                stderr=log,
                start_new_session=True,
            )

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def port(self) -> int:
        def said() -> int | None:
            match = re.search(r"metrics at http://127\.0\.0\.1:(\d+)/", self.log.read_text())
            return int(match[1]) if match else None

        return self.until(said)

    def until(self, seen: Any) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := seen()):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def test_the_probes_of_the_file_against_its_command(tmp_path: Path) -> None:
    """Where that is possible it is the first process of a namespace, as in a container: it gets SIGTERM, and
    leaves no dead processes behind."""
    (container,) = pod("worker.yaml")["containers"]
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {"metrics"}
    wrapper = UNSHARE if can_unshare() else ()
    started = Started(container["command"], f"sqlite:///{tmp_path / 'work.db'}", tmp_path, wrapper=wrapper)
    try:
        port = started.port()
        assert get(port, probes["liveness"]["path"]) == (200, "live\n")
        started.until(lambda: get(port, probes["startup"]["path"])[0] == 200)
        assert get(port, probes["readiness"]["path"]) == (200, "ready\n")
        supervisor = psutil.Process(started.process.pid)
        if wrapper:
            (supervisor,) = supervisor.children()
        killed = supervisor.children()[0]
        killed.kill()
        started.until(lambda: killed not in supervisor.children() and len(supervisor.children()) == 2)
        if wrapper:
            leave_process(supervisor)
            started.until(lambda: [each.status() for each in supervisor.children()].count("zombie") == 0)
        supervisor.send_signal(signal.SIGTERM)
        assert started.process.wait(PATIENCE) == 0
        dead = [each for each in started.records() if each["level"] == "error"]
        assert len(dead) == 1
        assert "was killed by SIGKILL" in dead[0]["message"]
    finally:
        started.end()


def leave_process(first: psutil.Process) -> None:
    """Let a process die in the namespace whose parent is dead already: it is left to the first process."""
    enter = ("nsenter", "--pid", "--target", str(first.pid), "sh", "-c")
    left = subprocess.run([*enter, "sleep 0.2 & echo left"], stdout=subprocess.DEVNULL, check=True)
    assert left.returncode == 0
    deadline = time.monotonic() + PATIENCE
    while not any(each.name() == "sleep" or each.status() == "zombie" for each in first.children()):
        assert time.monotonic() < deadline
    while any(each.name() == "sleep" and each.status() != "zombie" for each in first.children()):
        time.sleep(0.01)


def can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


# -- KEDA ----------------------------------------------------------------------------------------------


@work(name="greet")
async def greet(name: str) -> None: ...


def keda_query() -> str:
    (trigger,) = documents("keda.yaml")["ScaledObject"]["spec"]["triggers"]
    query: str = trigger["metadata"]["query"]
    return query


def test_the_query_of_keda_counts_what_only_a_worker_moves_on(prepared_url: str) -> None:
    role = f"keda_{uuid.uuid4().hex[:12]}"
    rights = re.sub(r"\bkeda\b", role, (DEPLOY / "postgres" / "keda.sql").read_text())
    parts = urlsplit(prepared_url)
    with psycopg.connect(prepared_url, autocommit=True) as admin:
        admin.execute(rights)
        try:
            as_keda = urlunsplit(parts._replace(netloc=f"{role}@"))
            with psycopg.connect(as_keda, autocommit=True) as connection:
                look(connection, prepared_url)
        finally:
            admin.execute(f"drop owned by {role}; drop role {role}")


def look(connection: psycopg.Connection[Any], url: str) -> None:
    def count() -> int:
        (found,) = connection.execute(keda_query().encode()).fetchone() or (None,)
        assert isinstance(found, int)
        return found

    assert count() == 0
    app = Treadle(url, work=[greet])
    sync = app.sync
    sync.enqueue(greet("later"), delay=3600)
    assert count() == 0
    sync.enqueue_many([greet("now"), greet("now too")])
    assert count() == 2
    sync.enqueue(greet("soon"), delay=0.05)  # no worker promotes it: it is due by the clock
    deadline = time.monotonic() + PATIENCE
    while count() != 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert count() == 3
    sync.enqueue(greet("held back"), queue="mail")
    assert count() == 4
    sync.pause("mail")
    assert count() == 3
    sync.start()
    for item in sync.list(queue="default", status=["ready", "running", "scheduled"]).items:
        if item.due_at <= time.time():
            sync.handle(item.id).result(timeout=PATIENCE)
    assert count() == 0
    sync.stop()
    sync.close()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("select input from treadle.item")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("delete from treadle.open_item")
