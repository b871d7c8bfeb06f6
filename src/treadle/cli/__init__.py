"""The command line: `treadle worker module:app`, `treadle migrate`, `treadle schema`.

Needs the extra `cli` (`pip install 'treadle[cli]'`).
"""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from treadle.cli.commands import commands
    except ModuleNotFoundError as error:
        sys.exit(f"the command line needs {error.name}: pip install 'treadle[cli]'")
    commands()
