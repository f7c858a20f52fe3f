"""The whole loop: a real cluster is broken by a random plan, and its trace proves that it held."""

from __future__ import annotations

from argparse import ArgumentParser

import msgspec
from pyspark.sql import SparkSession

from chaos.checker import Bounds, check, verdict
from spark.job import add_arguments, run
from tests.spark.conftest import RealRun

# What is checked here is safety: how long a machine under test is silent says nothing of it.
# A repeated publication needs a connection that breaks between a commit and its answer.
GENEROUS = {"silence_ms": 20_000, "lag_ms": 20_000, "heal_ms": 30_000, "ack_ms": 20_000}
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
    rows = [
        msgspec.json.decode(line)
        for path in traces.glob("*.jsonl")
        for line in path.read_bytes().splitlines()
    ]
    assert verdict(check(rows, Bounds(**GENEROUS, require=REQUIRED))) == "valid"
    page = (out / "report" / "report.html").read_text()
    assert "valid" in page
