"""The report: report.json for programs, one self-contained report.html for people.

Everything from the trace is escaped; plots are SVG inside the page; nothing is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from html import escape
from pathlib import Path

from spark.drawing import latency, timeline
from spark.faults import TraceError
from spark.summary import Summary

COLOURS = {"valid": "#1a7f37", "invalid": "#b3261e", "unknown": "#9a6700"}
# As docs/checks.md says it.
MEANINGS = {
    "valid": "Everything that was promised was kept, and enough happened to prove it.",
    "invalid": "A promise was broken. The witnesses below are the place to begin.",
    "unknown": "Nothing was proved: rows are missing, or too little happened.",
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Trace report: {verdict}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em;
  color: #1f2328; background: #fff }}
h1 {{ margin-bottom: 0 }} h1 span {{ color: {colour} }} h2 {{ margin: 1.6em 0 .4em }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; padding: .25em .6em; border-bottom: 1px solid #d0d7de;
  vertical-align: top; font-weight: normal }}
thead th {{ color: #59636e; font-size: 13px }}
.numbers thead th + th {{ text-align: right }} tbody th {{ font-weight: 600; white-space: nowrap }}
.number {{ text-align: right; font-variant-numeric: tabular-nums }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(140px, 1fr)); gap: .6em;
  margin: 0 }}
dl div {{ border: 1px solid #d0d7de; border-radius: 6px; padding: .3em .7em }}
dt {{ color: #59636e; font-size: 13px }}
dd {{ margin: 0; font-size: 20px; font-variant-numeric: tabular-nums }}
code {{ background: #f6f8fa; padding: .1em .3em; overflow-wrap: anywhere }}
.fails {{ color: #b3261e }} .holds {{ color: #1a7f37 }}
ul {{ margin: .2em 0 .8em; padding-left: 1.2em }}
svg {{ max-width: 100%; height: auto; display: block }} p.note {{ color: #59636e; margin: .3em 0 }}
svg text {{ font: 11px system-ui, sans-serif; fill: #1f2328 }}
</style></head><body>
<h1>Verdict: <span>{verdict}</span></h1>
{body}
</body></html>
"""


def claim_report(out: Path) -> None:
    """Make the directory and see that it takes files, before anything long begins."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in ("report.json", "report.html"):
            (out / name).open("a").close()
    except OSError as wrong:
        remedy = "let --report name a directory that can be made and written"
        raise TraceError("BAD_REPORT", f"{out} cannot be written: {wrong}", remedy) from wrong


def write_report(summary: Summary, out: Path) -> None:
    """Both files, in a directory that was claimed."""
    try:
        (out / "report.json").write_text(json.dumps(asdict(summary), indent=1) + "\n")
        (out / "report.html").write_text(page(summary))
    except OSError as wrong:
        raise TraceError("BAD_REPORT", f"{out} cannot be written: {wrong}") from wrong


def page(summary: Summary) -> str:
    """The whole page."""
    plots = [latency(name, times) for name, times in summary.latencies.items()]
    parts = [
        f"<p>{MEANINGS[summary.verdict]}</p>",
        *(f"<p>{escape(run)}</p>" for run in summary.runs),
        _reasons(summary),
        _counts(summary.counts),
        "<h2>Failovers</h2>",
        _failovers(summary),
        "<h2>Time line</h2>",
        timeline(summary),
        "<h2>Latency before, during and after the faults</h2>",
        *(plots or ["<p>Latencies need one run with acknowledged publications.</p>"]),
        "<h2>How subscriptions began and went on</h2>",
        _counts(summary.outcomes),
        "<h2>Checks</h2>",
        _checks(summary),
        f'<p class="note">{escape(_bounds(summary))}</p>',
        "<h2>Once more</h2>",
        *(f"<p><code>{escape(line)}</code></p>" for line in summary.replay),
        f'<p class="note">Checked in {summary.seconds:.0f} s.</p>',
    ]
    colour = COLOURS[summary.verdict]
    return PAGE.format(verdict=summary.verdict, colour=colour, body="\n".join(parts))


def _reasons(summary: Summary) -> str:
    """Why it is not valid, before anything else."""
    told = [f"{escape(str(fault))}" for fault in summary.faults]
    told += [
        f'<b class="fails">{found.check}</b> in {escape(found.run)}: {escape(found.witnesses[0])}'
        + (f" and {found.count - 1:,} more" if found.count > 1 else "")
        for found in summary.violations
    ]
    return "<ul>" + "".join(f"<li>{line}</li>" for line in told) + "</ul>" if told else ""


def _counts(values: Mapping[str, int]) -> str:
    if not values:
        return "<p>None.</p>"
    tiles = (
        f"<div><dt>{escape(name.replace('_', ' '))}</dt><dd>{count:,}</dd></div>"
        for name, count in values.items()
    )
    return f"<dl>{''.join(tiles)}</dl>"


def _table(heads: Iterable[str], rows: Iterable[str], name: str = "") -> str:
    titles = "".join(f"<th>{head}</th>" for head in heads)
    body = f"<thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<table class="{name}">{body}</table>'


def _failovers(summary: Summary) -> str:
    """Every kind of fault that happened, with how long groups took to answer again."""
    if not summary.fault_kinds:
        return "<p>No fault happened.</p>"
    rows = []
    for kind, happened in summary.fault_kinds.items():
        took = summary.failovers.get(kind)
        told = [happened, took["count"] if took else 0]
        cells = "".join(f'<td class="number">{count:,}</td>' for count in told)
        for name in ("p50_ms", "p99_ms", "max_ms"):
            shown = f"{took[name]:,} ms" if took else ""
            cells += f'<td class="number">{shown}</td>'
        rows.append(f"<tr><th>{escape(kind)}</th>{cells}</tr>")
    heads = ("fault", "times", "failovers of groups", "answered again: p50", "p99", "longest")
    return _table(heads, rows, "numbers") + (
        '<p class="note">From the fault, or the first message that waited if that is later, to '
        "the first acknowledgement under a new epoch, by the clients' clocks. A fault that hits "
        "no coordinator causes none.</p>"
    )


def _bounds(summary: Summary) -> str:
    """What it was judged by: another run's valid may be one of wider bounds."""
    told = (
        f"{name} {', '.join(value) if isinstance(value, list | tuple) else value}"
        for name, value in summary.bounds.items()
    )
    return f"Judged by: {'; '.join(told)}."


def _checks(summary: Summary) -> str:
    rows = []
    for name, sentence in summary.checks.items():
        found = [each for each in summary.violations if each.check == name]
        state = "fails" if found else "holds"
        witnesses = "".join(
            f"<li>{escape(each.run)} ({each.count:,}): {escape(witness)}</li>"
            for each in found
            for witness in each.witnesses
        )
        told = f"{escape(sentence)}<ul>{witnesses}</ul>" if found else escape(sentence)
        rows.append(f'<tr><th>{name}</th><td class="{state}">{state}</td><td>{told}</td></tr>')
    return _table(("check", "", "what it says"), rows)
