"""Charts: SVG made on the server. Colours come from the style sheet, by class."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from markupsafe import Markup

WIDTH: Final = 720
HEIGHT: Final = 140
LEFT: Final = 44
BOTTOM: Final = 18
TOP: Final = 8


class Bar(msgspec.Struct, frozen=True):
    """What happened in one step of time."""

    at: float
    parts: tuple[int, ...]
    """One number for each series, from the bottom to the top."""


def bars(
    points: Sequence[Bar],
    series: Sequence[tuple[str, str]],
    *,
    since: float,
    until: float,
    step: float,
    label: str,
) -> Markup:
    """Bars over time, stacked. series: the name and the class of each part. Steps without a bar are empty."""
    highest = max((sum(point.parts) for point in points), default=0)
    top = nice_ceiling(highest)
    count = max(1, round((until - since) / step))
    width, height = (WIDTH - LEFT) / count, HEIGHT - BOTTOM - TOP
    drawn: list[Markup] = []
    for point in points:
        x, base = LEFT + (point.at - since) / step * width, float(HEIGHT - BOTTOM)
        if x < LEFT - 0.5 or x > WIDTH:
            continue
        title = ", ".join(f"{name} {value:,}" for (name, _), value in zip(series, point.parts, strict=True))
        rects: list[Markup] = []
        for (_, kind), value in zip(series, point.parts, strict=True):
            tall = value / top * height if top else 0.0
            if tall > 0:
                base -= tall
                rects.append(
                    Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"/>').format(
                        kind, _n(x), _n(base), _n(max(0.6, width - min(1.0, width / 4))), _n(tall)
                    )
                )
        if rects:
            text = Markup("<title>{}: {}</title>").format(_clock(point.at, step), title)
            drawn.append(Markup("<g>{}{}</g>").format(Markup().join(rects), text))
    axis = _axis(since, until, top, height)
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}</svg>').format(
        WIDTH, HEIGHT, label, axis, Markup().join(drawn)
    )


def _axis(since: float, until: float, top: int, height: float) -> Markup:
    parts: list[Markup] = []
    for share in (0.0, 0.5, 1.0):
        if share == 0.5 and top < 2:
            continue
        y = HEIGHT - BOTTOM - share * height
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(LEFT, WIDTH, _n(y), _n(y))
        )
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="end">{}</text>').format(
                LEFT - 6, _n(y + 4), short_number(top * share)
            )
        )
    for place in range(5):
        at = since + (until - since) * place / 4
        anchor = "start" if place == 0 else "end" if place == 4 else "middle"
        x = LEFT + (WIDTH - LEFT) * place / 4
        parts.append(
            Markup('<text class="tick" x="{}" y="{}" text-anchor="{}">{}</text>').format(
                _n(x), HEIGHT - 4, anchor, _clock(at, (until - since) / 4)
            )
        )
    return Markup().join(parts)


def sparkline(values: Sequence[float], label: str) -> Markup:
    """A small line without axes."""
    wide, tall = 96, 22
    top = max(values, default=0) or 1
    step = wide / max(1, len(values) - 1)
    points = " ".join(
        f"{_n(n * step)},{_n(tall - 2 - value / top * (tall - 4))}" for n, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        '<polyline points="{}"/></svg>'
    ).format(wide, tall, wide, tall, label, points)


def meter(part: float, whole: float, kind: str = "") -> Markup:
    """A horizontal bar that shows a share."""
    filled = 0.0 if whole <= 0 else min(1.0, part / whole)
    return Markup(
        '<svg class="meter" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/><rect class="fill {}" width="{}" height="8"/></svg>'
    ).format(kind, _n(filled * 100))


def nice_ceiling(value: float) -> int:
    """The next round number: 1, 2, 5, 10, 20, 50 …"""
    if value <= 0:
        return 1
    power = 1
    while True:
        for digit in (1, 2, 5):
            if value <= digit * power:
                return digit * power
        power *= 10


def short_number(value: float) -> str:
    """1,200 as 1.2k."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.1f}".removesuffix(".0") + name
    return f"{value:.1f}".removesuffix(".0")


def _clock(at: float, step: float) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    return moment.strftime("%b %d" if step >= 86_400 else "%b %d %H:%M" if step >= 3600 * 12 else "%H:%M")


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
