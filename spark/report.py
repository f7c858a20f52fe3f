"""The report: report.json for programs, one self-contained report.html for people.

Everything from the trace is escaped; plots are SVG inside the page; nothing is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from html import escape
from pathlib import Path

from spark.summary import PERCENTILES, Summary

WIDTH = 900
LEFT = 120  # of the time line: names of lanes stand there
LANE = 16
LANES = 24  # the groups with the longest silences
COLOURS = {"valid": "#1a7f37", "invalid": "#b3261e", "unknown": "#9a6700"}
TIMES = {"before": "#6e7781", "during": "#b3261e", "after": "#1a7f37"}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Trace report: {verdict}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em;
  color: #1f2328; background: #fff }}
h1 span {{ color: {colour} }} table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; padding: .25em .6em; border-bottom: 1px solid #d0d7de;
  vertical-align: top }}
code {{ background: #f6f8fa; padding: .1em .3em; overflow-wrap: anywhere }}
.fails {{ color: #b3261e }} .holds {{ color: #1a7f37 }} svg {{ max-width: 100% }}
svg text {{ font: 11px system-ui, sans-serif; fill: #1f2328 }}
</style></head><body>
<h1>Verdict: <span>{verdict}</span></h1>
{body}
</body></html>
"""


def write_report(summary: Summary, out: Path) -> None:
    """Both files, in a directory that is made if it is not there."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(asdict(summary), indent=1) + "\n")
    (out / "report.html").write_text(page(summary))


def page(summary: Summary) -> str:
    """The whole page."""
    faults = "".join(f"<li>{escape(str(fault))}</li>" for fault in summary.faults)
    parts = [
        f"<h2>Faults of the trace itself</h2><ul>{faults}</ul>" if faults else "",
        "<h2>Counts</h2>",
        _pairs(summary.counts),
        "<h2>Faults</h2>",
        _pairs(summary.fault_kinds),
        "<h2>Time line</h2>",
        _timeline(summary),
        "<h2>Latency</h2>",
        *(_latency(name, times) for name, times in summary.latencies.items()),
        "<h2>How subscriptions began and went on</h2>",
        _pairs(summary.outcomes),
        "<h2>Checks</h2>",
        _checks(summary),
        "<h2>Once more</h2>",
        *(f"<p><code>{escape(line)}</code></p>" for line in summary.replay),
    ]
    colour = COLOURS[summary.verdict]
    return PAGE.format(verdict=summary.verdict, colour=colour, body="\n".join(parts))


def _pairs(values: Mapping[str, int]) -> str:
    if not values:
        return "<p>None.</p>"
    cells = (
        f"<tr><th>{escape(name)}</th><td>{count:,}</td></tr>" for name, count in values.items()
    )
    return _table(cells)


def _table(rows: Iterable[str]) -> str:
    return f"<table>{''.join(rows)}</table>"


def _checks(summary: Summary) -> str:
    rows = []
    for name, sentence in summary.checks.items():
        found = [each for each in summary.violations if each.check == name]
        state = "fails" if found else "holds"
        witnesses = "".join(
            f"<li>{escape(each.run)} ({each.count}): {escape(witness)}</li>"
            for each in found
            for witness in each.witnesses
        )
        told = f"{escape(sentence)}<ul>{witnesses}</ul>" if found else escape(sentence)
        rows.append(f'<tr><th>{name}</th><td class="{state}">{state}</td><td>{told}</td></tr>')
    return _table(rows)


def _timeline(summary: Summary) -> str:
    """A lane for each fault, and one for each group where somebody waited for an ack in vain."""
    if summary.end <= summary.start:
        return "<p>A time line needs one run with acknowledged publications.</p>"
    worst: dict[int, int] = {}
    for group, since, until in summary.silences:
        worst[group] = max(until - since, worst.get(group, 0))
    lanes = sorted(sorted(worst, key=lambda group: -worst[group])[:LANES])
    kinds = sorted({name for name, _, _ in summary.bands})
    height = LANE * (len(kinds) + len(lanes) + 2)
    scale = (WIDTH - LEFT - 10) / (summary.end - summary.start)

    def bar(since: int, until: int, y: int, tall: int, paint: str, title: str) -> str:
        x, wide = LEFT + (since - summary.start) * scale, max(1.0, (until - since) * scale)
        return (
            f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{tall}" {paint}>'
            f"<title>{escape(title)}</title></rect>"
        )

    drawn = []
    for name, on, off in summary.bands:
        drawn.append(bar(on, off, 0, height - LANE, 'fill="#b3261e" fill-opacity=".08"', name))
        y = kinds.index(name) * LANE + 3
        drawn.append(bar(on, off, y, LANE - 6, 'fill="#5b6470"', f"{name} {_ms(off - on)}"))
    for lane, kind in enumerate(kinds):
        drawn.append(f'<text x="0" y="{lane * LANE + 12}">{escape(kind)}</text>')
    for lane, group in enumerate(lanes, len(kinds)):
        drawn.append(f'<text x="0" y="{lane * LANE + 12}">group {group}</text>')
        drawn += [
            bar(since, until, lane * LANE + 3, LANE - 6, 'fill="#b3261e"', _ms(until - since))
            for of, since, until in summary.silences
            if of == group
        ]
    seconds = (summary.end - summary.start) / 1_000_000
    drawn.append(f'<text x="{LEFT}" y="{height - 3}">0 s</text>')
    drawn.append(f'<text x="{WIDTH - 60}" y="{height - 3}">{seconds:.1f} s</text>')
    return _svg(height, drawn) + (
        "<p>Grey bars and the bands behind them are faults. Red bars are times without an ack "
        f"while one was waited for; {len(worst)} groups had any worth showing.</p>"
    )


def _latency(name: str, times: Mapping[str, list[int]]) -> str:
    """Bars per percentile, one for each time that has any."""
    most = max((points[-1] for points in times.values()), default=0)
    drawn, y = [f'<text x="0" y="12" font-weight="bold">{escape(name)}</text>'], LANE + 4
    for nth, percentile in enumerate(PERCENTILES):
        label = "max" if percentile == 100 else f"p{percentile}"
        for time in (time for time in TIMES if time in times):
            took = times[time][nth]
            wide = max(1.0, (WIDTH - 260) * took / most) if most else 1.0
            drawn.append(
                f'<text x="0" y="{y + 11}">{label} {time}</text>'
                f'<rect x="90" y="{y + 2}" width="{wide:.1f}" height="{LANE - 5}" '
                f'fill="{TIMES[time]}"/>'
                f'<text x="{96 + wide:.1f}" y="{y + 11}">{_ms(took)}</text>'
            )
            y += LANE
        y += 4
    return _svg(y, drawn)


def _ms(micros: int) -> str:
    return f"{micros / 1000:,.1f} ms"


def _svg(height: int, drawn: Iterable[str]) -> str:
    box = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{"".join(drawn)}</svg>'
