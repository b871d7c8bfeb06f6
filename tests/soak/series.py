"""Series: samples of what must not grow, the verdict, and a chart of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 460, 150, 44
COLUMNS = 2


class Series:
    """The samples of one quantity. slack: a rise of at most this much is not growth."""

    def __init__(self, name: str, unit: str = "", slack: float = 0.0, *, may_grow: bool = False) -> None:
        self.name = name
        self.unit = unit
        self._slack = slack
        self._may_grow = may_grow
        self.values: list[float] = []

    @property
    def steady(self) -> Sequence[float]:
        """The second half. In the first, everything fills up."""
        return self.values[len(self.values) // 2 :]

    @property
    def growth(self) -> float:
        """The rise of a line fitted to the steady samples, from start to end."""
        values = self.steady
        if len(values) < 6:
            return 0.0
        return statistics.linear_regression(range(len(values)), values).slope * (len(values) - 1)

    @property
    def grows(self) -> bool:
        allowed = self._slack + 0.1 * abs(statistics.median(self.steady or [0.0]))
        return not self._may_grow and self.growth > allowed

    def row(self) -> dict[str, object]:
        """What is stored of it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "values": [round(value, 3) for value in self.values],
            "growth in the second half": round(self.growth, 3),
            "grows": self.grows,
        }


def svg(title: str, series: Sequence[Series], seconds: float) -> str:
    """One small chart for each series, with zero as its base."""
    rows = (len(series) + COLUMNS - 1) // COLUMNS
    width, height = COLUMNS * WIDTH + 20, rows * HEIGHT + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{escape(title)}</text>',
    ]
    for number, each in enumerate(series):
        row, column = divmod(number, COLUMNS)
        parts.append(_chart(each, 10 + column * WIDTH, 34 + row * HEIGHT, seconds))
    return "\n".join([*parts, "</svg>"])


def _chart(series: Series, left: int, top: int, seconds: float) -> str:
    most = max([*series.values, 1e-9]) * 1.1
    x0, y0 = left + MARGIN, top + HEIGHT - 30
    wide, high = WIDTH - MARGIN - 16, HEIGHT - 54
    last = max(1, len(series.values) - 1)
    points = " ".join(
        f"{x0 + n * wide / last:.1f},{y0 - value / most * high:.1f}" for n, value in enumerate(series.values)
    )
    color = "#c0504d" if series.grows else "#4a8f5c"
    label = f"{series.name}, {series.unit}".rstrip(", ")
    return (
        f'<text x="{left}" y="{top + 14}" font-size="12">{escape(label)} '
        f"({series.growth:+,.1f} in the second half)</text>"
        f'<line x1="{x0}" x2="{x0 + wide}" y1="{y0}" y2="{y0}" stroke="#999"/>'
        f'<line x1="{x0}" x2="{x0}" y1="{y0}" y2="{y0 - high}" stroke="#999"/>'
        f'<text x="{x0 - 4}" y="{y0 - high + 8}" text-anchor="end">{most / 1.1:,.0f}</text>'
        f'<text x="{x0 - 4}" y="{y0}" text-anchor="end">0</text>'
        f'<text x="{x0 + wide}" y="{y0 + 14}" text-anchor="end">{seconds / 60:.0f} min</text>'
        f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    )
