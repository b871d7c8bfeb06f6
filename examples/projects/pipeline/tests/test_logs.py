"""What is found in a file."""

from pathlib import Path

from pipeline.logs import Summary, merge, summarize

TEXT = """\
10.0.0.1 - - [17/Nov/2026:05:00:00 +0000] "GET /cart?item=7 HTTP/1.1" 200 5
10.0.0.2 - - [17/Nov/2026:05:00:00 +0000] "POST /cart HTTP/1.1" 500 2
what is this?
"""


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    file.write_text(TEXT)
    found = summarize(file)
    assert found == Summary(2, 7, 1, {"200": 1, "500": 1}, {"/cart": 2})
    assert merge([found, found]) == Summary(4, 14, 2, {"200": 2, "500": 2}, {"/cart": 4})
