"""How long the checks take on Spark, by the number of rows, start of the program included.

    ./dev python -m tests.benchmarks.spark_rows [--rows 1000000] [--fault quorum] [--keep DIR]

Makes a valid trace as Parquet (tests/benchmarks/spark_story.py), runs `python -m spark check` on it
as anybody would, and prints rows, seconds, CPU seconds, peak memory and rows per second. With a
planted fault the verdict must be invalid.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.spark_story import FAULTS, make
from tests.benchmarks.spark_trace import rows_of

LOOK_EVERY = 0.5


class Use(NamedTuple):
    """What processes have in memory, in bytes, and what they have used, in CPU seconds."""

    memory: int
    cpu: float


def use_of(parent: int) -> Use:
    """What a process and all below it use."""
    below: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            sizes[int(folder.name)] = int((folder / "statm").read_text().split()[1])
        except OSError:
            continue
        ticks[int(folder.name)] = int(fields[11]) + int(fields[12])
        below.setdefault(int(fields[1]), []).append(int(folder.name))
    found, wanted = set[int](), [parent]
    while wanted:
        found.add(one := wanted.pop())
        wanted += below.get(one, [])
    pages, used = (sum(of.get(one, 0) for one in found) for of in (sizes, ticks))
    return Use(pages * os.sysconf("SC_PAGE_SIZE"), used / os.sysconf("SC_CLK_TCK"))


def check(traces: Path) -> tuple[int, float, float, int]:
    """Exit code, seconds, CPU seconds and peak memory of one check."""
    began, peak, cpu = time.monotonic(), 0, 0.0
    child = subprocess.Popen([sys.executable, "-m", "spark", "check", str(traces)])
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak, cpu
        while not ended.wait(LOOK_EVERY):
            use = use_of(child.pid)
            peak, cpu = max(peak, use.memory), max(cpu, use.cpu)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = child.wait()
    ended.set()
    watcher.join()
    return code, time.monotonic() - began, cpu, peak


def main() -> int:
    """Make, check, print; 1 if the verdict is not what it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--fault", choices=FAULTS, default="")
    parser.add_argument("--keep", type=Path, help="an existing trace, or where to make one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        traces = given.keep or Path(scratch) / "trace"
        if not traces.exists():
            began = time.monotonic()
            rows = make(traces, given.rows, given.fault)
            print(f"made {rows:,} rows in {time.monotonic() - began:.0f} s", flush=True)
        rows = rows_of(traces)
        code, seconds, cpu, peak = check(traces)
    print(
        f"{rows:,} rows: {seconds:.0f} s, {cpu:.0f} CPU s, peak {peak / 2**30:.1f} GiB, "
        f"{rows / seconds:,.0f} rows/s, exit code {code}"
    )
    return 0 if code == (1 if given.fault else 0) else 1


if __name__ == "__main__":
    sys.exit(main())
