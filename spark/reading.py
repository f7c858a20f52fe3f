"""Reading a trace: JSON lines or Parquet, with everything that is wrong told by file and row.

Rows that cannot be read, lack what their kind needs or are missing are faults: the others are still
checked, and the verdict is unknown. A trace without any rows is an error. An address with a scheme
(`hdfs://...`) is a Parquet directory on a cluster's storage; its files are not looked into.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)
from pyspark.sql.types import StringType, StructField, StructType

from spark.columns import extra, number
from spark.faults import TraceError, TraceFault
from spark.schemas import COLUMNS, KINDS, NEEDS, NUMBERS, REQUIRED, TRACE

TOLD = 50  # more faults than a person reads
CORRUPT = "_corrupt"
MAGIC = b"PAR1"
LIFE = re.compile(r"(.+-[0-9]+)\.([0-9]+)\.jsonl")  # a member's files, as docs/traces.md names them
LONGEST = 1 << 20  # bytes of a line
ROW_BYTES = (250, 20)  # of a row as a line, in a table


class Reading(NamedTuple):
    """The rows that can be used, what is wrong with the others, and what memory they take."""

    rows: DataFrame
    faults: list[TraceFault]
    kept: DataFrame | None = None

    def release(self) -> None:
        """Give the memory of the parsed lines back."""
        if self.kept is not None:
            self.kept.unpersist()


def read_trace(session: SparkSession, traces: str) -> Reading:
    """The rows of a trace directory, of one file, or of a remote Parquet directory."""
    if "://" in traces:
        return checked(_parquet(session, [traces]), [])
    lines, tables = _files(Path(traces))
    if lines and tables:
        remedy = "check one of the two: convert to a directory of its own"
        raise TraceError("MIXED_TRACE", f"{traces} has .jsonl and .parquet files", remedy)
    if lines:
        # Parsing lines costs more than everything else: once is enough.
        rows = _json_lines(session, lines).persist(StorageLevel.MEMORY_AND_DISK)
        return checked(without_torn(rows, lines), [])._replace(kept=rows)
    whole = [path for path in tables if _is_whole(path)]
    broken = [TraceFault(p.name, "whole file", "no Parquet file") for p in tables if p not in whole]
    if not whole:
        raise TraceError("NO_TRACE", f"no Parquet file of {traces} can be read")
    return checked(_parquet(session, [str(path) for path in whole]), broken)


def rows_in(traces: str) -> int:
    """About how many rows there are, by the size of the files; 0 where that is not known."""
    path = Path(traces)
    if "://" in traces or not path.exists():
        return 0
    lines, tables = _files(path)
    lengths = (sum(file.stat().st_size for file in files) for files in (lines, tables))
    return sum(length // each for length, each in zip(lengths, ROW_BYTES, strict=True))


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


def without_torn(found: DataFrame, files: Sequence[Path]) -> DataFrame:
    """Leave out the line in whose middle a member was killed: nobody can know what it tells.

    A member sends nothing before its rows are written. Only the end of a life's last file is such
    a line; whatever else is missing stays a hole in the numbers.
    """
    known = {path.name for path in files}
    for path in files:
        life = LIFE.fullmatch(path.name)
        if life and f"{life[1]}.{int(life[2]) + 1}.jsonl" not in known and (end := _torn_end(path)):
            found = found.where(
                ~(
                    F.col(CORRUPT).isNotNull()
                    & F.endswith("file", F.lit("/" + quote(path.name)))
                    & (F.col("raw") == end)
                )
            )
    return found


def _torn_end(path: Path) -> str:
    """What stands behind the last whole line of a file."""
    with path.open("rb") as opened:
        opened.seek(max(0, path.stat().st_size - LONGEST))
        return opened.read().rpartition(b"\n")[2].decode(errors="replace")


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
    """Tell what is wrong; rows are only filtered where some are."""
    usable, bad, suspects = _tally(found)
    told = _placed(found.where(~_is_right()).withColumn("wrong", _wrong())) if bad else []
    if not usable:
        said = "".join(f"\n  {fault}" for fault in [*faults, *told])
        raise TraceError("NO_ROWS", f"the trace has no row that can be read{said}")
    rows = found.where(_is_right()) if bad else found
    holes = _placed(_holes(rows, suspects)) if suspects else []
    return Reading(rows.select(*COLUMNS), [*faults, *told, *holes])


def _tally(found: DataFrame) -> tuple[int, int, list[tuple[str, str]]]:
    """How many rows are right and wrong, and the processes whose numbers are not 0, 1, 2, ...

    Numbers are gathered in bitmaps of a few thousand each: no process is sorted as a whole.
    """
    right = _is_right()
    number = F.when(right, F.col("n"))
    some = F.bitmap_construct_agg(F.bitmap_bit_position(number))
    by_process = (
        found.groupBy("run", "proc", F.bitmap_bucket_number(number).alias("bucket"))
        .agg(
            F.count("*").alias("all"),
            F.count(number).alias("right"),
            F.bitmap_count(some).alias("distinct"),
            F.max(number).alias("last"),
        )
        .groupBy("run", "proc")
        .agg(*(F.sum(name).alias(name) for name in ("all", "right", "distinct")), F.max("last"))
        .withColumnRenamed("max(last)", "last")
    )
    odd = (F.col("right") != F.col("distinct")) | (F.col("last") + 1 != F.col("right"))
    rows = by_process.groupBy(F.coalesce(odd, F.lit(False)).alias("odd")).agg(
        F.sum("all").alias("all"),
        F.sum("right").alias("right"),
        F.slice(F.collect_list(F.struct("run", "proc")), 1, TOLD).alias("some"),
    )
    usable, total, suspects = 0, 0, []
    for row in rows.collect():
        usable, total = usable + row.right, total + row["all"]
        suspects += [(one.run, one.proc) for one in row.some] if row.odd else []
    return usable, total - usable, suspects


def _is_right() -> Column:
    """Whether a row by itself can be used."""
    right = F.col(CORRUPT).isNull() & F.col("kind").isin(*KINDS)
    for column in COLUMNS:
        if column in REQUIRED:
            right = right & F.col(column).isNotNull()
        elif kinds := [kind for kind, needs in NEEDS.items() if column in needs]:
            right = right & (F.col(column).isNotNull() | ~F.col("kind").isin(*kinds))
    numbers = F.when(~F.col("kind").isin(*NUMBERS), F.lit(True)).otherwise(_strange() == "")
    return F.coalesce(right & numbers, F.lit(False))


def _strange() -> Column:
    """Which values of a row's `extra` should be numbers and are not."""
    wrong = [
        F.when((F.col("kind") == kind) & extra(key).isNotNull() & number(key).isNull(), key)
        for kind, keys in NUMBERS.items()
        for key in keys
    ]
    return F.concat_ws(", ", *wrong)


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
        .when(lacks.isNotNull(), lacks)
        .otherwise(F.concat(F.col("kind"), F.lit(": no number is "), _strange()))
    )


def _holes(rows: DataFrame, suspects: list[tuple[str, str]]) -> DataFrame:
    """Rows before which others of their process are missing, or which are there twice."""
    in_process = Window.partitionBy("run", "proc").orderBy("n")
    previous = F.lag("n", 1, -1).over(in_process)
    wrong = F.when(F.col("n") == F.col("previous"), F.lit("this row is there twice")).otherwise(
        F.concat(F.lit("rows after "), F.col("previous"), F.lit(" are missing in "), F.col("proc"))
    )
    theirs = F.lit(False)
    for run, proc in suspects:
        theirs = theirs | ((F.col("run") == run) & (F.col("proc") == proc))
    return (
        rows.where(theirs)
        .select("file", "raw", "run", "proc", "n")
        .withColumn("previous", previous)
        .where("n != previous + 1")
        .select("file", "raw", "proc", "n", wrong.alias("wrong"))
    )


def _placed(bad: DataFrame) -> list[TraceFault]:
    """The faults by file and line; each file is read once, however many of its rows are wrong."""
    rows = bad.select("file", "raw", "proc", "n", "wrong").limit(TOLD).collect()
    lines: dict[str, dict[str, int]] = {}
    for file in {row.file for row in rows}:
        lines[file] = _lines(file, {row.raw for row in rows if row.file == file and row.raw})
    return [
        TraceFault(
            _name(row.file),
            f"line {lines[row.file][row.raw]}"
            if row.raw in lines[row.file]
            else f"row {row.n} of {row.proc}",
            row.wrong,
        )
        for row in rows
    ]


def _name(address: str) -> str:
    return unquote(address.rsplit("/", 1)[-1])


def _lines(address: str, wanted: set[str]) -> dict[str, int]:
    """The numbers of these lines, if the file lies here."""
    path = Path(unquote(urlsplit(address).path))
    found: dict[str, int] = {}
    if wanted and path.is_file():
        with path.open(errors="replace") as opened:
            for number, line in enumerate(opened, 1):
                text = line.rstrip("\r\n")
                if text in wanted:
                    found.setdefault(text, number)
    return found
