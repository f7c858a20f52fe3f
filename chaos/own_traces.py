"""The members' rows of a run on a cluster that others started: brought here, and looked at.

Members write rows of whatever run their configuration names, for as long as they live. Only whole
lines of this run are taken. Dropping a line without its end loses nothing: a member sends nothing
before its rows are written, so nobody can know of what that line tells.

Invariant: a run is judged only by rows that it made. Its name is used once, its topics bear that
name, and nothing is broken before each member's present life was seen to write rows of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from chaos.own_file import OwnFile
from migratory.errors import MigratoryError
from migratory.wire.trace import decode_rows


def prefix_of(file: OwnFile) -> str:
    """What the topics of a run begin with."""
    return f"/chaos/{file.trace.run}"


def copy_traces(source: Path, traces: Path, run: str, members: Iterable[str]) -> None:
    """Take the rows of a run that these members wrote."""
    begins = b'{"run":' + msgspec.json.encode(run) + b","
    try:
        for path in _files(source, members):
            with path.open("rb") as rows, (traces / path.name).open("wb") as taken:
                taken.writelines(
                    row for row in rows if row.startswith(begins) and row.endswith(b"\n")
                )
            if not (traces / path.name).stat().st_size:
                (traces / path.name).unlink()  # all of another run
    except OSError as error:
        remedy = "trace.directory or hooks.collect must bring the members' <proc>.<k>.jsonl files"
        raise MigratoryError("NO_TRACE", f"{source} cannot be read: {error}", remedy) from error


def check_traces(traces: Path, file: OwnFile, boots: Mapping[str, int]) -> None:
    """Whether each member's present life writes rows of this run, and nobody ran it before."""
    run = file.trace.run
    for member, boot in boots.items():
        first = traces / f"{member}-{boot}.0.jsonl"
        rows = decode_rows(_beginning(first))
        if not rows or rows[0].n != 0:
            wrong = f"{member} writes no rows of run {run} in its present life (boot {boot})"
            remedy = f'restart it with [trace] mode = "full", run = "{run}"; see docs/sre_guide.md'
            raise MigratoryError("NO_TRACE", wrong, remedy)
        copies = int((rows[0].extra or {}).get("copies", 0))
        if copies != file.cluster.faults + 1:
            wrong = f"{member} survives {copies - 1} faults, the file says {file.cluster.faults}"
            raise MigratoryError("OTHER_CLUSTER", wrong, "mend cluster.faults of the file")
    if used := _topics(_files(traces, boots), prefix_of(file)):
        wrong = f"run {run} was used before: members have rows of {min(used).decode()}"
        remedy = "restart the members with another trace.run, and write it into the file"
        raise MigratoryError("RUN_USED", wrong, remedy)


def check_fullness(traces: Path, file: OwnFile) -> None:
    """Whether members wrote rows of every topic that something was acknowledged on."""
    members = [member.id for member in file.cluster.members]
    written = _topics(_files(traces, members), prefix_of(file))
    acked = _topics(sorted(traces.glob("workload*.jsonl")), prefix_of(file), b'"pub_ack"')
    if lacking := acked - written:
        wrong = f"members wrote nothing of {len(lacking)} of {len(acked)} topics"
        remedy = 'their configuration needs [trace] mode = "full", and trace.files for all rows'
        raise MigratoryError("TRACE_NOT_FULL", wrong, remedy)


def _files(place: Path, members: Iterable[str]) -> list[Path]:
    """The files of all lives of these members, and of nobody whose name only begins alike."""
    lives = re.compile(rf"(?:{'|'.join(members)})-[0-9]+\.[0-9]+\.jsonl")
    return sorted(path for path in place.iterdir() if lives.fullmatch(path.name))


def _beginning(path: Path) -> bytes:
    """The first lines of a file that may not be there."""
    if not path.exists():
        return b""
    with path.open("rb") as opened:
        return opened.read(1 << 16)


def _topics(files: Iterable[Path], prefix: str, having: bytes = b"") -> set[bytes]:
    """The topics below a prefix that rows name."""
    topic = re.compile(b'"topic":"(' + re.escape(prefix.encode()) + b'/[^"]*)"')
    return {found[1] for row in _rows(files) if having in row and (found := topic.search(row))}


def _rows(files: Iterable[Path]) -> Iterator[bytes]:
    for path in files:
        with path.open("rb") as rows:
            yield from rows
