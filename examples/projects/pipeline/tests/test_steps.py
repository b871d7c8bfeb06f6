"""The steps in a worker of the test, with real processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from treadle import GroupFailed, Retry, Treadle

from pipeline import steps
from pipeline.logs import merge, summarize
from pipeline.sample import write_sample


@pytest.fixture
def treadle_settings() -> dict[str, Any]:
    return {"work": [steps], "processes": 1, "retry": Retry(attempts=2, base=0.01)}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """More files than a page has."""
    write_sample(tmp_path / "logs", files=steps.PAGE + 2, lines=10)
    return tmp_path / "logs"


async def test_all_files_are_in_one_report(treadle_app: Treadle, logs: Path, tmp_path: Path) -> None:
    total = await treadle_app.enqueue(steps.run(str(logs), str(tmp_path))).group(timeout=30)
    assert total == merge([summarize(file) for file in logs.iterdir()])
    assert total is not None
    assert total.requests == 220
    assert json.loads((tmp_path / "report.json").read_text())["statuses"] == total.statuses


async def test_no_report_without_all_files(treadle_app: Treadle, logs: Path, tmp_path: Path) -> None:
    (logs / "broken.log.gz").write_bytes(b"this is not gzip")
    handle = await treadle_app.enqueue(steps.run(str(logs), str(tmp_path)))
    with pytest.raises(GroupFailed, match="BadGzipFile"):
        await handle.group(timeout=30)
    assert not (tmp_path / "report.json").exists()
    # Once the file is good, the rest is done, and nothing twice.
    write_sample(logs, files=1, lines=10)
    (logs / "broken.log.gz").write_bytes((logs / "access-0000.log.gz").read_bytes())
    await treadle_app.repair(handle.group_id)
    total = await handle.group(timeout=30)
    assert total is not None
    assert total.requests == 230
