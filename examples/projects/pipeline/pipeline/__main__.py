"""The commands.

python -m pipeline sample logs
python -m pipeline run logs
"""

import argparse
import asyncio
import sys
from pathlib import Path

from treadle import Treadle

from pipeline import steps
from pipeline.sample import write_sample


async def run(logs: Path, out: Path) -> None:
    """Run the pipeline to its end. If an earlier run was killed, go on where it stopped."""
    async with Treadle(f"sqlite:///{out / 'work.db'}", work=[steps]) as app:
        handle = await app.enqueue(steps.run(str(logs), str(out)), key=str(logs))
        print("an earlier run goes on" if handle.existing else "a new run", flush=True)
        total = await handle.group()
        assert total is not None, "the report comes last, and has a value"
        print(f"{total.requests} requests, {total.size} bytes: see {out / 'report.json'}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline")
    commands = parser.add_subparsers(dest="command", required=True)
    sample = commands.add_parser("sample", help="write log files to try it with")
    sample.add_argument("logs", type=Path)
    sample.add_argument("--files", type=int, default=100)
    sample.add_argument("--lines", type=int, default=20_000, help="in each file")
    begin = commands.add_parser("run", help="make a report of the log files in a directory")
    begin.add_argument("logs", type=Path)
    begin.add_argument("--out", type=Path, default=Path("out"), help="where results are written")
    given = parser.parse_args()
    if given.command == "sample":
        write_sample(given.logs, given.files, given.lines)
    else:
        given.out.mkdir(parents=True, exist_ok=True)
        try:
            asyncio.run(run(given.logs.resolve(), given.out.resolve()))
        except KeyboardInterrupt:
            sys.exit("stopped. The same command goes on")


if __name__ == "__main__":
    main()
