"""A chart of a run: how far each goal is reached."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.goals import Row

WIDTH, LABELS, BAR, LINE = 960, 370, 400, 24
MOST = 4.0
"""Bars end at four times the goal."""


def svg(rows: Sequence[Row], machine: str) -> str:
    """Bars of the results as a share of the goals. The line is at 1."""
    height = 70 + LINE * len(rows)
    must = LABELS + BAR / MOST
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="10" y="20" font-size="15">treadle: results as a share of the goals (the line)</text>',
        f'<text x="10" y="38" fill="#666">{escape(machine)}</text>',
    ]
    parts += [_bar(row, 52 + LINE * i) for i, row in enumerate(rows)]
    parts += [f'<line x1="{must}" x2="{must}" y1="48" y2="{height - 14}" stroke="#333"/>', "</svg>"]
    return "\n".join(parts)


def _bar(row: Row, top: int) -> str:
    must, found = row.shown
    length = max(1.0, min(row.share, MOST) * BAR / MOST)
    color = "#4a8f5c" if row.share >= 1 else "#c0504d"
    base = top + 14
    return (
        f'<text x="{LABELS - 8}" y="{base}" text-anchor="end">{escape(row.case)}</text>'
        f'<rect x="{LABELS}" y="{top + 2}" width="{length:.1f}" height="{LINE - 8}" fill="{color}"/>'
        f'<text x="{LABELS + BAR + 8}" y="{base}">{escape(found)} ({escape(must)})</text>'
    )
