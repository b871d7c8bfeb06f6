"""Records of long runs: what each came to. `make reliability` makes the table in the documents of them."""

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
    """Remember what a run came to; the last one of a name counts."""
    RECORDS.mkdir(exist_ok=True)
    told = {"name": name, "command": command, "figures": figures}
    (RECORDS / f"{name.replace(' ', '-')}.json").write_text(json.dumps(told, indent=1))


def table() -> str:
    lines = [
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}.",
        "",
        "| run | command | what it came to |",
        "| --- | --- | --- |",
    ]
    for path in sorted(RECORDS.glob("*.json")):
        told = json.loads(path.read_text())
        figures = "; ".join(f"{name} {_shown(value)}" for name, value in told["figures"].items())
        lines.append(f"| {told['name']} | `{told['command']}` | {figures} |")
    return "\n".join(lines)


def _shown(value: object) -> str:
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
