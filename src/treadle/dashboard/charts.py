"""Charts: SVG made on the server. Colours come from the style sheet, by class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec
from markupsafe import Markup, escape

WIDTH: Final = 1000
HEIGHT: Final = 100
"""In units of the picture, which is stretched to the room that there is. Texts stand beside it."""


_number: Final = "{:,}".format


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
    ceiling: Callable[[float], int] | None = None,
    say: Callable[[float], str] | None = None,
) -> Markup:
    """Bars over time, stacked. series: the name and the class of each part. Steps without a bar are empty.

    ceiling, say: the top of the chart, and the text of a value: of counts, unless they are given.
    """
    top = (ceiling or nice_ceiling)(max((sum(point.parts) for point in points), default=0))
    width = WIDTH / max(1, round((until - since) / step))
    wide, said = _n(width * 0.88), say or _number
    escaped = tuple((name, str(escape(kind))) for name, kind in series)
    drawn = [
        _bar(point, escaped, _n(x), wide, top, step, said)
        for point in points
        if -0.5 < (x := (point.at - since) / step * width) < WIDTH
    ]
    # A format of Markup takes five times as long: the texts are escaped here.
    grid = [f'<line x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>' for y in (0, HEIGHT // 2)]
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{"".join(grid)}{"".join(drawn)}</svg>'
    )
    high = "".join(f"<span>{escape((say or short_number)(top * part))}</span>" for part in (1, 0.5, 0))
    places = [since + (until - since) * place / 4 for place in range(5)]
    along = "".join(_tick(at, (until - since) / 4, named=at == places[-1]) for at in places)
    return Markup(
        f'<div class="chart"><div class="high" aria-hidden="true">{high}</div>{picture}'
        f'<div class="along">{along}</div></div>'
    )


@lru_cache(2048)  # pages that are open ask for the same bars until the next step begins
def _bar(
    point: Bar,
    series: tuple[tuple[str, str], ...],
    left: str,
    wide: str,
    top: int,
    step: float,
    say: Callable[[float], str],
) -> str:
    """A page has hundreds."""
    base = float(HEIGHT)
    rects: list[str] = []
    for (_, kind), value in zip(series, point.parts, strict=True):
        tall = value / top * HEIGHT
        if tall > 0:
            base -= tall
            place = f'x="{left}" y="{_n(base)}" width="{wide}" height="{_n(tall)}"'
            rects.append(f'<rect class="{kind}" {place}/>')
    said = ", ".join(f"{name} {say(value)}" for (name, _), value in zip(series, point.parts, strict=True))
    form = f'data-at="{_iso(point.at)}" data-form="{_form(step)}"'
    title = f"<title {form}>{_clock(point.at, step)} UTC: {escape(said)}</title>"
    return f"<g>{''.join(rects)}{title}</g>"


def share_bar(part: float, whole: float, kind: str = "") -> Markup:
    """A horizontal bar that shows a share."""
    filled = 0.0 if whole <= 0 else min(1.0, max(0.0, part / whole))
    return Markup(
        '<svg class="meter" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="8"/>'
        f'<rect class="fill {escape(kind)}" width="{_n(filled * 100)}" height="8"/></svg>'
    )


def nice_ceiling(value: float) -> int:
    """The next round number: 1, 2, 4, 6, 8, 10, 20, 40 …"""
    if value <= 0:
        return 1
    power = 1
    while True:
        for digit in (1, 2, 4, 6, 8):
            if value <= digit * power:
                return digit * power
        power *= 10


def nice_duration(seconds: float) -> int:
    """The next duration whose half is round too: 2, 10, 20, 40 s, 1, 2, 10 min, …, 1, 2, 4, 12 h, 1 d …"""
    units = ((1, (2, 10, 20, 40)), (60, (1, 2, 10, 20, 40)), (3600, (1, 2, 4, 12)))
    steps = (unit * each for unit, numbers in units for each in numbers)
    return next((step for step in steps if seconds <= step), nice_ceiling(seconds / 86_400) * 86_400)


def short_number(value: float) -> str:
    """1,200 as 1.2k."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.1f}".removesuffix(".0") + name
    return f"{value:.1f}".removesuffix(".0")


def _tick(at: float, step: float, *, named: bool) -> str:
    """An instant under a chart. In the browser it becomes local time. named: with the name of the zone."""
    form = f'data-form="{_form(step)}"{" data-named" * named}'
    return f'<time datetime="{_iso(at)}" {form}>{_clock(at, step)}{" UTC" * named}</time>'


@lru_cache(4096)  # the steps of a chart are those of the last look
def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _form(step: float) -> str:
    return "day" if step >= 86_400 else "both" if step >= 3600 * 6 else "clock"


@lru_cache(4096)
def _clock(at: float, step: float) -> str:
    form = {"day": "%b %d", "both": "%b %d %H:%M", "clock": "%H:%M"}[_form(step)]
    return datetime.fromtimestamp(at, UTC).strftime(form)


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
