"""The whole loop: a real cluster is broken by a random plan, and its trace proves that it held."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from chaos.checker import Bounds, check, verdict
from spark.bounds import Bounds as SparkBounds
from spark.checks import all_violations
from spark.job import add_arguments, run
from spark.prepared import Prepared
from spark.schemas import TRACE
from tests.chaos.judging import rows_of
from tests.spark.conftest import RealRun
from tests.spark.real_mutants import mutant_of

# What is checked here is safety, and that the cluster heals: other tests use the machine meanwhile.
# A repeated publication needs a connection that breaks between a commit and its answer.
GENEROUS = {"silence_ms": 10_000, "lag_ms": 10_000, "ack_ms": 4000}
REQUIRED = ("takeover", "sync", "gap", "resume")


def test_a_broken_cluster_kept_every_promise(real_run: RealRun, session: SparkSession) -> None:
    """A minute of random faults, then Spark and the quick checker both say: valid."""
    out = real_run.out
    traces = out / "traces"
    parser = ArgumentParser()
    add_arguments(parser)
    bounds = [f"--{name.replace('_', '-')}={value}" for name, value in GENEROUS.items()]
    given = [str(traces), "--report", str(out / "report"), "--require", ",".join(REQUIRED)]
    assert run(session, parser.parse_args([*given, *bounds])) == 0
    assert verdict(check(rows_of(traces), Bounds(**GENEROUS, require=REQUIRED))) == "valid"
    page = (out / "report" / "report.html").read_text()
    assert "silence_ms 10000" in page


def test_what_is_wrong_amid_a_real_run_is_seen(
    real_run: RealRun, session: SparkSession, tmp_path: Path
) -> None:
    """A row that is lost, doubled, swapped or changed sets off the same checks of both checkers."""
    rows, wanted = mutant_of(rows_of(real_run.out / "traces"))
    by_python = {each.check for each in check(rows, Bounds(**GENEROUS, require=REQUIRED))}
    assert by_python >= wanted
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    (tmp_path / "rows.jsonl").write_bytes(lines)
    frame = session.read.schema(TRACE).json(str(tmp_path))
    prepared = Prepared(frame, SparkBounds(**GENEROUS, require=REQUIRED))
    found = all_violations(prepared).select("check").distinct().collect()
    prepared.release()
    assert {row["check"] for row in found} == by_python
