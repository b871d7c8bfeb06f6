"""Log files to try the pipeline with."""

import gzip
import random
from pathlib import Path

PAGES = ["/", "/lamp", "/sofa", "/cart?item=7", "/pay", "/imprint"]


def write_sample(directory: Path, files: int, lines: int) -> None:
    """Write log files, the same ones each time."""
    directory.mkdir(parents=True, exist_ok=True)
    chance = random.Random(1)
    for number in range(files):
        text = "".join(_line(chance) for _ in range(lines))
        (directory / f"access-{number:04}.log.gz").write_bytes(gzip.compress(text.encode(), 1))


def _line(chance: random.Random) -> str:
    page, status = chance.choice(PAGES), chance.choices([200, 404, 500], [95, 4, 1])[0]
    host, size = f"10.0.0.{chance.randrange(256)}", chance.randrange(20_000)
    return f'{host} - - [17/Nov/2026:05:00:00 +0000] "GET {page} HTTP/1.1" {status} {size}\n'
