"""Records of long runs. `make reliability` writes them as a table into tests/README.md."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

PROJECT = Path(__file__).parents[2]
RECORDS = PROJECT / ".proof"
PAGE = PROJECT / "tests" / "README.md"
BEGIN, END = "<!-- runs: made by `make reliability` -->", "<!-- end of runs -->"


def record(name: str, command: str, **figures: object) -> None:
    """Store the figures of a run. A later run of the same name replaces it."""
    RECORDS.mkdir(exist_ok=True)
    run = {"name": name, "command": command, "machine": machine(), "figures": figures}
    (RECORDS / f"{name.replace(' ', '-')}.json").write_text(json.dumps(run, indent=1))


def machine() -> str:
    """What a run is made on."""
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"


def table(earlier: str) -> str:
    """All recorded runs as a table, and the rows of `earlier` that were not run again."""
    rows = {row.split(" | ")[0].strip("| "): row for row in earlier.splitlines() if row.startswith("| ")}
    for path in RECORDS.glob("*.json"):
        run = json.loads(path.read_text())
        if "figures" not in run:  # samples of a soak
            continue
        figures = "; ".join(f"{name} {_format(value)}" for name, value in run["figures"].items())
        rows[run["name"]] = f"| {run['name']} | `{run['command']}` | {run.get('machine', '')} | {figures} |"
    for heading in ("run", "---"):
        rows.pop(heading, None)
    return "\n".join(
        [
            "| run | command | on | what it came to |",
            "| --- | --- | --- | --- |",
            *(rows[name] for name in sorted(rows)),
        ]
    )


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    earlier, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table(earlier)}\n{END}{after}")


if __name__ == "__main__":
    main()
