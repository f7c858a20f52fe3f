"""The same job on a real Spark cluster of one master and two workers, by spark-submit."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.job import add_arguments, run
from spark.reading import read_trace
from tests.spark.good_trace import good_trace
from tests.spark.mutants import delivery_lost
from tests.spark.standalone import cluster, report, submit
from tests.spark.trace_dir import renumbered, write


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster that ends with these tests."""
    with cluster(tmp_path_factory.mktemp("workers")) as address:
        yield address


def check(session: SparkSession, traces: Path, out: Path) -> int:
    """The exit code of the same check in the local session."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(session, parser.parse_args([str(traces), "--report", str(out)]))


def test_json_lines_are_judged_alike(master: str, session: SparkSession, tmp_path: Path) -> None:
    """A valid trace of JSON lines: exit code 0, and the report of a local session."""
    traces, far, near = tmp_path / "traces", tmp_path / "far", tmp_path / "near"
    write(traces, good_trace("good"))
    done = submit(master, str(traces), "--report", str(far))
    assert done.returncode == 0, done.stdout + done.stderr
    assert check(session, traces, near) == 0
    assert report(far) == report(near)


def test_parquet_is_judged_alike(master: str, session: SparkSession, tmp_path: Path) -> None:
    """An invalid trace of Parquet: exit code 1, and the report of a local session."""
    traces, tables = tmp_path / "traces", tmp_path / "tables"
    far, near = tmp_path / "far", tmp_path / "near"
    write(traces, renumbered(delivery_lost(good_trace("bad"))))
    read_trace(session, str(traces)).rows.write.parquet(str(tables))
    done = submit(master, str(tables), "--report", str(far))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NO_GAP (1) in bad: s/a expected 4, got 5" in done.stdout
    assert check(session, tables, near) == 1
    assert report(far) == report(near)


def test_bad_input_ends_with_2(master: str, tmp_path: Path) -> None:
    """An error is told in one sentence, and the exit code passes through spark-submit."""
    done = submit(master, str(tmp_path / "nowhere"))
    assert done.returncode == 2
    # What Python says, spark-submit puts into one stream.
    assert f"NO_TRACE: there is no {tmp_path / 'nowhere'}" in done.stdout
