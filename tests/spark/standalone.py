"""A Spark cluster on this machine: one master and two workers, and the checks by spark-submit.

    ./dev python -m tests.spark.standalone TRACES

checks a trace, as JSON lines and as Parquet, in a local session and on the cluster, prints a table
of times, and says whether the reports are the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pyspark

from spark.session import use_java

HOME = Path(pyspark.__file__).parent
JOB = Path(__file__).parents[2] / "spark" / "job.py"
PATIENCE = 300.0  # seconds for one check
LIFETIME = 1800.0  # seconds after which no process of the cluster is left, whatever happens
HERE = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "256m",
    "PYSPARK_PYTHON": sys.executable,
}
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "800m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@contextmanager
def daemon(kind: str, *words: str) -> Iterator[IO[str]]:
    """A process of the cluster and what it says; it ends with the block, or after LIFETIME."""
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | HERE
    ) as process:
        assert process.stdout is not None
        limit = threading.Timer(LIFETIME, process.kill)
        limit.start()
        try:
            yield process.stdout
        finally:
            limit.cancel()
            process.kill()


def heard(said: IO[str], text: str) -> str:
    """The first line with this text; what is said later is read and forgotten."""
    for line in said:
        if text in line:
            threading.Thread(target=_forget, args=(said,), daemon=True).start()
            return line.strip()
    raise RuntimeError(f"a process ended before it said: {text}")


def _forget(said: IO[str]) -> None:
    """Keep a pipe from filling up, until its process ends."""
    with contextlib.suppress(ValueError):  # it is closed when the process was ended
        for _ in said:
            pass


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """The address of a master whose two workers have registered."""
    use_java()
    with ExitStack() as stack:
        on_loopback = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = stack.enter_context(daemon("master.Master", *on_loopback))
        address = heard(master, "Starting Spark master at").rsplit(" ", 1)[-1]
        for name in ("one", "two"):
            small = ("--cores", "1", "--memory", "1g", "--work-dir", str(directory / name))
            worker = daemon("worker.Worker", *on_loopback, *small, address)
            heard(stack.enter_context(worker), "Successfully registered with master")
        yield address


def submit(master: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The job by spark-submit; its exit code is the verdict's."""
    settings = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    command = [str(HOME / "bin" / "spark-submit"), "--master", master, *settings, str(JOB), *words]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ | HERE,
    )


def check_here(*words: str) -> subprocess.CompletedProcess[str]:
    """The same in a local session."""
    command = [sys.executable, "-m", "spark", "check", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def report(out: Path) -> dict[str, Any]:
    """What a report says, apart from how long the check took."""
    told: dict[str, Any] = json.loads((out / "report.json").read_text())
    del told["seconds"]
    return told


def main(traces: str) -> int:
    """Check a trace in four ways and print how long each took, start included."""
    with tempfile.TemporaryDirectory() as directory, cluster(Path(directory)) as master:
        tables = f"{directory}/tables"
        subprocess.run(
            [sys.executable, "-m", "spark", "convert", traces, "--out", tables],
            capture_output=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        reports = []
        print("form         where        seconds  exit code")
        for form, path in (("JSON lines", traces), ("Parquet", tables)):
            for where in ("local", "standalone"):
                out = Path(directory, f"{form} {where}")
                words, began = (path, "--report", str(out)), time.monotonic()
                done = check_here(*words) if where == "local" else submit(master, *words)
                took = time.monotonic() - began
                print(f"{form:<12} {where:<12} {took:7.1f}  {done.returncode}", flush=True)
                reports.append(report(out))
        same = all(each == reports[0] for each in reports)
        rows = reports[0]["counts"]["rows"]
        print(f"{rows:,} rows; the reports are {'the same' if same else 'NOT the same'}")
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
