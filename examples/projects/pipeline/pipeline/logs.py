"""What is in a log file. It takes a whole processor, and knows nothing of work."""

import gzip
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LINE = re.compile(r'\S+ \S+ \S+ \[[^]]+] "[A-Z]+ (?P<page>[^ ?]+)\S* [^"]*" (?P<status>\d{3}) (?P<size>\d+)')


@dataclass
class Summary:
    """What is in one file, or in many."""

    requests: int
    size: int
    bad_lines: int
    statuses: dict[str, int]
    pages: dict[str, int]


def summarize(path: Path) -> Summary:
    statuses, pages = Counter[str](), Counter[str]()
    size = bad_lines = 0
    for line in _lines(path):
        found = LINE.match(line)
        if found is None:
            bad_lines += 1
            continue
        size += int(found["size"])
        statuses[found["status"]] += 1
        pages[found["page"]] += 1
    return Summary(statuses.total(), size, bad_lines, dict(statuses), dict(pages))


def merge(summaries: list[Summary]) -> Summary:
    statuses, pages = Counter[str](), Counter[str]()
    for each in summaries:
        statuses.update(each.statuses)
        pages.update(each.pages)
    return Summary(
        sum(each.requests for each in summaries),
        sum(each.size for each in summaries),
        sum(each.bad_lines for each in summaries),
        dict(statuses.most_common()),
        dict(pages.most_common(10)),
    )


def _lines(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from file
