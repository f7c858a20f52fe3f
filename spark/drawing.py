"""The plots of a report, as SVG: a time line of faults and silences; latencies, logarithmic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape

from spark.summary import Summary

WIDTH = 900
LEFT = 120  # names of lanes stand there
RIGHT = 20
LANE = 16
LANES = 24  # the groups with the longest silences
TICKS = 8
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600)
TIMES = {"before": "#6e7781", "during": "#b3261e", "after": "#1a7f37"}
DECADES = (2, 7)  # of microseconds: the axis shows at least 0.1 ms to 10 s
TOLD_FIRST = ("p50", "max", "p99")  # numbers that are written if not all have room


def timeline(summary: Summary) -> str:
    """A lane for each kind of fault, and one for each group where an ack was waited for in vain."""
    if summary.end <= summary.start:
        return "<p>A time line needs one run with acknowledged publications.</p>"
    worst: dict[int, int] = {}
    for group, since, until in summary.silences:
        worst[group] = max(until - since, worst.get(group, 0))
    groups = sorted(sorted(worst, key=lambda group: -worst[group])[:LANES])
    kinds = sorted({name for name, _, _ in summary.bands})
    lanes = [*kinds, *(f"group {group}" for group in groups)]
    tall = LANE * len(lanes) + 4
    scale = (WIDTH - LEFT - RIGHT) / (summary.end - summary.start)

    def bar(since: int, until: int, y: int, height: int, paint: str, title: str) -> str:
        x, wide = LEFT + (since - summary.start) * scale, max(1.5, (until - since) * scale)
        return (
            f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{height}" {paint}>'
            f"<title>{escape(title)}</title></rect>"
        )

    drawn = _grid(tall, (summary.end - summary.start) / 1_000_000)
    for name, on, off in summary.bands:
        y = kinds.index(name) * LANE + 3
        drawn.append(bar(on, off, 0, tall, 'fill="#b3261e" fill-opacity=".06"', name))
        drawn.append(bar(on, off, y, LANE - 5, 'fill="#5b6470"', f"{name}, {_ms(off - on)}"))
    for group, since, until in summary.silences:
        if group in groups:
            y = (len(kinds) + groups.index(group)) * LANE + 3
            drawn.append(bar(since, until, y, LANE - 5, 'fill="#b3261e"', _ms(until - since)))
    drawn += [
        f'<text x="0" y="{n * LANE + 12}">{escape(lane)}</text>' for n, lane in enumerate(lanes)
    ]
    return _svg(tall + LANE, drawn) + (
        '<p class="note">Grey: faults. Red: a group gave no ack while one was waited for, of '
        f"{len(worst)} groups with such times {len(groups)} are shown. Point at a bar to see how "
        "long it lasted.</p>"
    )


def _grid(tall: int, seconds: float) -> list[str]:
    """Lines at round numbers of seconds."""
    step = next((each for each in STEPS if seconds / each <= TICKS), 7200)
    drawn = []
    for n in range(int(seconds // step) + 1):
        x = LEFT + (WIDTH - LEFT - RIGHT) * n * step / seconds
        drawn.append(f'<path d="M{x:.1f} 0V{tall}" stroke="#d0d7de"/>')
        drawn.append(f'<text x="{x:.1f}" y="{tall + 12}" text-anchor="middle">{n * step} s</text>')
    return drawn


def latency(name: str, times: Mapping[str, Mapping[str, int]]) -> str:
    """A line for each time that has any, with a mark and a number for each percentile."""
    shown = {time: times[time] for time in TIMES if time in times}
    most = max((points["max"] for points in shown.values()), default=0)
    low, high = DECADES[0], max(DECADES[1], math.ceil(math.log10(max(most, 1))))
    drawn, tall = [f'<text x="0" y="12" style="font-weight:600">{escape(name)}</text>'], LANE

    def x_of(micros: int) -> float:
        place = (math.log10(max(micros, 10**low)) - low) / (high - low)
        return LEFT + (WIDTH - LEFT - RIGHT - 20) * place

    bottom = tall + len(shown) * 2 * LANE + 4
    for decade in range(low, high + 1):
        x = x_of(10**decade)
        drawn.append(f'<path d="M{x:.1f} {tall}V{bottom}" stroke="#d0d7de"/>')
        label = _round(10**decade)
        drawn.append(f'<text x="{x:.1f}" y="{bottom + 12}" text-anchor="middle">{label}</text>')
    for time, points in shown.items():
        drawn += _marks(time, points, tall, [x_of(took) for took in points.values()])
        tall += 2 * LANE
    return _svg(bottom + LANE, drawn)


def _marks(time: str, points: Mapping[str, int], y: int, places: list[float]) -> list[str]:
    """One line of a latency plot; a number that would touch another is left out."""
    colour, middle = TIMES[time], y + 2 * LANE - 8
    line = f"M{places[0]:.1f} {middle}H{places[-1]:.1f}"
    drawn = [
        f'<text x="0" y="{middle + 4}">{time}</text>',
        f'<path d="{line}" stroke="{colour}" stroke-width="2"/>',
    ]
    taken: list[tuple[float, float]] = []
    at = dict(zip(points, places, strict=True))
    for label in (*TOLD_FIRST, *(each for each in points if each not in TOLD_FIRST)):
        x, told = at[label], f"{label} {_round(points[label])}"
        dot = f'cx="{x:.1f}" cy="{middle}" r="4" fill="{colour}"'
        drawn.append(f"<circle {dot}><title>{told}</title></circle>")
        half = 3.2 * len(told) + 4
        if all(x + half <= left or x - half >= right for left, right in taken):
            drawn.append(f'<text x="{x:.1f}" y="{middle - 8}" text-anchor="middle">{told}</text>')
            taken.append((x - half, x + half))
    return drawn


def _round(micros: int) -> str:
    """A time with three digits."""
    if micros >= 1_000_000:
        return f"{micros / 1_000_000:.3g} s"
    return f"{micros / 1000:.3g} ms"


def _ms(micros: int) -> str:
    return f"{micros / 1000:,.0f} ms"


def _svg(height: int, drawn: Iterable[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(drawn)}</svg>'
