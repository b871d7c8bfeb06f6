"""The pipe over which a child tells its supervisor what it has done."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from treadle.cli.reports import ChildReport, ReportReader, ReportWriter, make_report, merged
from treadle.metrics import Metrics


class Pipe:
    def __init__(self) -> None:
        self.reader = ReportReader()
        self.report = ChildReport()
        self.made = 0
        self.writer = ReportWriter(self.reader.writing, self.make)

    def make(self) -> ChildReport:
        self.made += 1
        return self.report


@pytest.fixture
def pipe() -> Generator[Pipe]:
    opened = Pipe()
    yield opened
    opened.reader.close()


def _large(value: float) -> ChildReport:
    """A report that the pipe has no room for."""
    return ChildReport(counts={f"type {n}": {"started": value, "succeeded": value} for n in range(10_000)})


def test_the_last_report_counts(pipe: Pipe) -> None:
    for running in range(3):
        pipe.report = ChildReport(counts={"a": {"started": 5}}, running=running)
        pipe.writer.write()
    assert pipe.reader.last == ChildReport()
    pipe.reader.read()
    assert pipe.reader.last == pipe.report
    pipe.writer.finish()


def test_a_report_larger_than_the_pipe_arrives_in_portions(pipe: Pipe) -> None:
    pipe.report = _large(7)
    for _ in range(1000):
        if pipe.reader.last == pipe.report:
            break
        pipe.writer.write()
        pipe.reader.read()
    assert pipe.made == 1
    assert pipe.reader.last.total("started") == 70_000
    pipe.writer.finish()


def test_a_writer_whose_reader_is_gone_goes_on(pipe: Pipe) -> None:
    pipe.reader.close()
    pipe.report = _large(7)
    pipe.writer.write()
    pipe.writer.write()
    assert pipe.made == 2  # nothing is left of the first, which could not be written
    pipe.writer.finish()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pipe.reader.writing)
    pipe.reader = ReportReader()
    pipe.reader.passed()


def test_the_last_report_is_read_after_the_writer_has_ended(pipe: Pipe) -> None:
    pipe.writer.write()
    pipe.report = ChildReport(counts={"a": {"dead": 1}})
    pipe.writer.finish()
    pipe.reader.read()
    assert pipe.reader.last == pipe.report


def test_reports_of_processes_are_added_up() -> None:
    metrics = Metrics()
    metrics.of("idle")
    metrics.of("mail").claimed()
    metrics.of("mail").began(0.1)
    report = make_report(metrics, 1)
    assert report == ChildReport(counts={"mail": {"started": 1}}, running=1)
    both = merged([report, ChildReport(counts={"mail": {"started": 2}, "web": {"started": 4}}, running=2)])
    assert (both.total("started"), both.total("dead"), both.running) == (7, 0, 3)
