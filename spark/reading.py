"""Reading a trace: JSON lines or Parquet, with everything that is wrong told by file and row.

Rows that cannot be read, lack what their kind needs or are missing are faults: the others are still
checked, and the verdict is unknown. A trace without any rows is an error. An address with a scheme
(`hdfs://...`) is a Parquet directory on a cluster's storage; its files are not looked into.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)
from pyspark.sql.types import StringType, StructField, StructType

from spark.faults import TraceError, TraceFault
from spark.schemas import COLUMNS, KINDS, NEEDS, REQUIRED, TRACE

TOLD = 50  # more faults than a person reads
CORRUPT = "_corrupt"
MAGIC = b"PAR1"


class Reading(NamedTuple):
    """The rows that can be used, and what is wrong with the others."""

    rows: DataFrame
    faults: list[TraceFault]


def read_trace(session: SparkSession, traces: str) -> Reading:
    """The rows of a trace directory, of one file, or of a remote Parquet directory."""
    if "://" in traces:
        return checked(_parquet(session, [traces]), [])
    lines, tables = _files(Path(traces))
    if lines and tables:
        remedy = "check one of the two: convert to a directory of its own"
        raise TraceError("MIXED_TRACE", f"{traces} has .jsonl and .parquet files", remedy)
    if lines:
        return checked(_json_lines(session, lines), [])
    whole = [path for path in tables if _is_whole(path)]
    broken = [TraceFault(p.name, "whole file", "no Parquet file") for p in tables if p not in whole]
    if not whole:
        raise TraceError("NO_TRACE", f"no Parquet file of {traces} can be read")
    return checked(_parquet(session, [str(path) for path in whole]), broken)


def _files(traces: Path) -> tuple[list[Path], list[Path]]:
    if not traces.exists():
        remedy = "name the directory that the run wrote its trace to"
        raise TraceError("NO_TRACE", f"there is no {traces}", remedy)
    found = sorted(traces.iterdir()) if traces.is_dir() else [traces]
    lines = [path for path in found if path.suffix == ".jsonl"]
    tables = [path for path in found if path.suffix == ".parquet"]
    if not lines and not tables:
        remedy = "a trace is a directory of <proc>.<k>.jsonl or *.parquet files"
        raise TraceError("NO_TRACE", f"{traces} has no trace files", remedy)
    return lines, tables


def _is_whole(table: Path) -> bool:
    """Parquet begins and ends with the same four letters; what was cut off does not."""
    with table.open("rb") as opened:
        begins = opened.read(4)
        opened.seek(max(0, table.stat().st_size - 4))
        return begins == MAGIC and opened.read(4) == MAGIC


def _json_lines(session: SparkSession, files: Sequence[Path]) -> DataFrame:
    lines = session.read.text([str(path) for path in files])
    return parsed(
        lines.select(F.col("value").alias("raw"), F.col("_metadata.file_path").alias("file"))
    )


def parsed(lines: DataFrame) -> DataFrame:
    """Lines (`raw`) of files (`file`) as rows, with what is corrupt."""
    schema = StructType([*TRACE.fields, StructField(CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    return (
        lines.where(F.trim("raw") != "")
        .select("raw", "file", F.from_json("raw", schema, options).alias("row"))
        .select("raw", "file", "row.*")
    )


def _parquet(session: SparkSession, files: Sequence[str]) -> DataFrame:
    try:
        found = session.read.parquet(*files)
    except AnalysisException as wrong:
        raise TraceError(
            "NO_TRACE", f"{files[0]} cannot be read: {wrong.getCondition()}"
        ) from wrong
    types = {field.name: field.dataType for field in found.schema.fields}
    faulty = [
        f"{field.name} is {types[field.name].simpleString() if field.name in types else 'missing'}"
        for field in TRACE.fields
        if types.get(field.name) != field.dataType
    ]
    if faulty:
        wrong_schema = f"{files[0]} is no trace: {', '.join(faulty)}"
        raise TraceError("WRONG_SCHEMA", wrong_schema, "see docs/traces.md for the columns")
    nothing = F.lit(None).cast("string")
    file = F.col("_metadata.file_path").alias("file")
    return found.select(nothing.alias("raw"), file, *COLUMNS, nothing.alias(CORRUPT))


def checked(found: DataFrame, faults: list[TraceFault]) -> Reading:
    """What can be used of the rows found, and what is wrong with the others."""
    rows = found.withColumn("wrong", _wrong()).persist(StorageLevel.MEMORY_AND_DISK)
    bad = rows.where(F.col("wrong").isNotNull()).select("file", "raw", "proc", "n", "wrong")
    usable = rows.where(F.col("wrong").isNull())
    told = [
        TraceFault(_name(row.file), _place(row.file, row.raw, row.proc, row.n), row.wrong)
        for row in bad.limit(TOLD).collect()
    ]
    holes = [
        TraceFault(_name(row.file), _place(row.file, row.raw, row.proc, row.n), row.wrong)
        for row in _holes(usable).limit(TOLD).collect()
    ]
    if usable.isEmpty():
        said = "".join(f"\n  {fault}" for fault in [*faults, *told])
        raise TraceError("NO_ROWS", f"the trace has no row that can be read{said}")
    return Reading(usable.select(*COLUMNS), [*faults, *told, *holes])


def _wrong() -> Column:
    """What is wrong with a row by itself, or null."""
    lacks = F.lit(None).cast("string")
    for kind, columns in NEEDS.items():
        absent = [F.when(F.col(c).isNull(), F.lit(c)) for c in columns]
        some = F.concat_ws(", ", *absent)
        is_lacking = (F.col("kind") == kind) & (some != "")
        lacks = F.when(is_lacking, F.concat(F.lit(f"{kind} without "), some)).otherwise(lacks)
    common = F.concat_ws(", ", *(F.when(F.col(c).isNull(), F.lit(c)) for c in REQUIRED))
    return (
        F.when(F.col(CORRUPT).isNotNull(), F.lit("truncated, or not of the schema"))
        .when(common != "", F.concat(F.lit("a row without "), common))
        .when(~F.col("kind").isin(*KINDS), F.concat(F.lit("unknown kind "), F.col("kind")))
        .otherwise(lacks)
    )


def _holes(rows: DataFrame) -> DataFrame:
    """Rows before which others of their process are missing, or which are there twice."""
    in_process = Window.partitionBy("run", "proc").orderBy("n")
    previous = F.lag("n", 1, -1).over(in_process)
    wrong = F.when(F.col("n") == F.col("previous"), F.lit("this row is there twice")).otherwise(
        F.concat(F.lit("rows after "), F.col("previous"), F.lit(" are missing in "), F.col("proc"))
    )
    return (
        rows.drop("wrong")
        .withColumn("previous", previous)
        .where("n != previous + 1")
        .select("file", "raw", "proc", "n", wrong.alias("wrong"))
    )


def _name(address: str) -> str:
    return unquote(address.rsplit("/", 1)[-1])


def _place(address: str, raw: str | None, proc: str | None, n: int | None) -> str:
    """The line, if the file lies here; else the number that the row has in its process."""
    path = Path(unquote(urlsplit(address).path))
    if raw is not None and path.is_file():
        with path.open(errors="replace") as opened:
            for number, line in enumerate(opened, 1):
                if line.rstrip("\r\n") == raw:
                    return f"line {number}"
    return f"row {n} of {proc}"
