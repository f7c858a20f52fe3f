"""What tests of the checks share: one Spark session, and one run of a real cluster.

Starting a session takes longer than using it. The run takes a minute and little of the machine, so
it goes on while the other tests do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from spark.session import local_session

PATIENCE = 300.0


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """A local session that ends with the tests."""
    started = local_session(cores="2")
    yield started
    started.stop()


class RealRun(NamedTuple):
    """A minute of random faults in a cluster of its own."""

    out: Path
    program: subprocess.Popen[bytes]

    def finish(self) -> None:
        """Wait for its end; it must have been carried out."""
        code = self.program.wait(PATIENCE)
        assert code == 0, self.out.with_suffix(".log").read_text()


@pytest.fixture(scope="session", autouse=True)
def started_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealRun | None]:
    """Begun before the first test, if any test wants it."""
    if not any("real_run" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    out = tmp_path_factory.mktemp("chaos") / "run"
    words = ["--scenario", "random", "--minutes", "1", "--seed", "100", "--out", str(out)]
    with out.with_suffix(".log").open("wb") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", "chaos", "run", *words],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield RealRun(out, program)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGTERM)
            program.wait(PATIENCE)


@pytest.fixture
def real_run(started_run: RealRun | None) -> RealRun:
    """The run, finished."""
    assert started_run is not None
    started_run.finish()
    return started_run
