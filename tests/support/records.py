"""Records of long runs. `make reliability` writes them as a table into docs/reliability.md."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

PROJECT = Path(__file__).parents[2]
RECORDS = PROJECT / ".proof"
PAGE = PROJECT / "docs" / "reliability.md"
BEGIN, END = "<!-- runs: made by `make reliability` -->", "<!-- end of runs -->"


def record(name: str, command: str, **figures: object) -> None:
    """Store the figures of a run. A later run of the same name replaces it."""
    RECORDS.mkdir(exist_ok=True)
    run = {"name": name, "command": command, "figures": figures}
    (RECORDS / f"{name.replace(' ', '-')}.json").write_text(json.dumps(run, indent=1))


def table() -> str:
    lines = [
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}.",
        "",
        "| run | command | result |",
        "| --- | --- | --- |",
    ]
    for path in sorted(RECORDS.glob("*.json")):
        run = json.loads(path.read_text())
        figures = "; ".join(f"{name} {_format(value)}" for name, value in run["figures"].items())
        lines.append(f"| {run['name']} | `{run['command']}` | {figures} |")
    return "\n".join(lines)


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}")


if __name__ == "__main__":
    main()
