"""Following a trace while it is written: Spark's streaming over pieces that are cut off its files.

Spark reads a file once, when it appears; trace files grow. So whatever was appended is copied,
whole lines only and each byte once, into pieces that never change. A stream reads the pieces, keeps
their rows as Parquet, and looks for violations that no later row can undo. When the run has ended
all rows are judged as a trace that was read at once, so the verdict is the same; rows are numbered,
so one that was lost or doubled on the way would be told as a fault.

A look sees the latest batches and, of what is older, the rows that later ones are measured against:
all rare rows, the latest entries of each group, the last act of each kind of each member's group,
and where each subscription is: its last message, or how it goes on if that was told later.
What it cannot see of a violation across more time than that, the judgement at the end does.

A cut may hold an effect without its cause, whose file was read a moment earlier; the next cut has
it. So a violation is told when two looks have seen it.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO
from urllib.parse import quote

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)
from pyspark.sql.streaming.query import StreamingQuery

from spark.bounds import Bounds
from spark.checks import all_violations
from spark.faults import TraceError
from spark.prepared import STREAM, Prepared, extra
from spark.reading import Reading, checked, parsed, without_torn
from spark.schemas import COLUMNS

CUT_EVERY = 2.0  # seconds
AT_ONCE = 16 << 20  # bytes that are copied
RECENT = 6  # batches that a look sees whole
TOLD = 100  # violations per look
ENTRIES = 300  # of a group, that later ones are compared with
SAY_EVERY = 10.0  # seconds
# What these find in the rows so far, no later row explains.
LASTING = (
    *("AGREE", "NO_GAP", "PUB_ORDER", "ONCE", "EPOCH_MONO", "ONE_COORD", "NO_BELOW_PROMISE"),
    "RECOVER_SILENT",
)
OF_MEMBERS = ("append", "commit", "ack")  # the last of each
OF_STREAMS = ("sub_open", "sub_status", "deliver")  # where each subscription is
PASSING = (  # older ones say nothing of later rows
    *("pub_send", "pub_ack", "pub_nack", "sub_close", "link_up", "link_down", "window"),
    *("quorum", "told", "final_read", "final_head"),
)


class Cutter:
    """Copies what is new in the files of a trace into pieces, whole lines only.

    A piece is one cut through all files, each line behind the name of its file and a tab.
    """

    def __init__(self, traces: Path, pieces: Path) -> None:
        self._traces = traces
        self._pieces = pieces
        self._offsets: dict[str, int] = {}
        self._cuts = 0

    def cut(self, *, last: bool = False) -> int:
        """Copy what came since; the last time also a line that was never finished. Bytes copied."""
        name = f"{self._cuts:09d}.txt"
        unfinished = self._pieces / f".{name}"  # Spark looks at no name with a dot in front
        with unfinished.open("wb") as piece:
            files = sorted(self._traces.glob("*.jsonl"))
            copied = sum(self._copy(path, piece, last=last) for path in files)
        if copied:
            unfinished.rename(self._pieces / name)
            self._cuts += 1
        return copied

    def _copy(self, path: Path, piece: IO[bytes], *, last: bool) -> int:
        begun = offset = self._offsets.get(path.name, 0)
        prefix = quote(path.name).encode() + b"\t"
        try:
            with path.open("rb") as opened:
                opened.seek(offset)
                while lines := opened.read(AT_ONCE):
                    whole = len(lines) if last and len(lines) < AT_ONCE else lines.rfind(b"\n") + 1
                    if not whole:
                        break
                    text = lines[:whole].removesuffix(b"\n").replace(b"\n", b"\n" + prefix)
                    piece.write(prefix + text + b"\n")
                    offset += whole
                    opened.seek(offset)
        except FileNotFoundError:
            pass  # its turn to be deleted came first: the numbers of its rows will be missing
        self._offsets[path.name] = offset
        return offset - begun


class Follower:
    """What is known of a trace so far, batch by batch."""

    def __init__(self, session: SparkSession, traces: Path, work: Path, bounds: Bounds) -> None:
        self.pieces, self._rows = work / "pieces", work / "rows"
        self.count = 0
        self.told: set[tuple[object, ...]] = set()
        self._session, self._traces, self._work, self._bounds = session, traces, work, bounds
        self._recent: deque[str] = deque()
        self._standing = ""
        self._took = 0.0
        self._suspected: set[tuple[object, ...]] = set()
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self.pieces.mkdir()

    def __str__(self) -> str:
        told = f"{self.count:,} rows so far, {len(self.told)} violations"
        return f"{told}; the last batch took {self._took:.1f} s" if self._took else told

    @property
    def has_ended(self) -> bool:
        """Whether every run that began has ended."""
        return bool(self._begun) and self._begun == self._ended

    def start(self) -> StreamingQuery:
        """The stream over all pieces, those to come included."""
        pieces = self._session.readStream.options(cleanSource="delete", lineSep="\n")
        address = F.concat(
            F.lit(self._traces.absolute().as_uri() + "/"), F.substring_index("value", "\t", 1)
        )
        raw = F.expr("substring(value, instr(value, '\t') + 1)")
        lines = pieces.text(str(self.pieces)).select(raw.alias("raw"), address.alias("file"))
        writer = parsed(lines).writeStream.foreachBatch(self.take)
        return writer.option("checkpointLocation", str(self._work / "checkpoint")).start()

    def read_all(self) -> Reading:
        """All rows that came, as `read_trace` would have read them."""
        kept = [str(path) for path in self._rows.iterdir()]
        rows = self._session.read.parquet(*kept)
        return checked(without_torn(rows, sorted(self._traces.glob("*.jsonl"))), [])

    def take(self, batch: DataFrame, number: int) -> None:
        """Keep the rows of a batch, then look. A batch that comes again replaces itself."""
        began = time.monotonic()
        path = str(self._rows / f"{number:09d}")
        batch.write.mode("overwrite").parquet(path)
        session = batch.sparkSession
        runs = (
            F.collect_set(F.when(F.col("kind") == each, F.col("run"))) for each in ("run", "end")
        )
        (came,) = session.read.parquet(path).agg(F.count("*"), *runs).collect()
        self.count += came[0]
        self._begun.update(came[1])
        self._ended.update(came[2])
        self._recent.append(path)
        self._look(session)
        if len(self._recent) > RECENT:
            self._reduce(session, str(self._work / f"standing-{number:09d}"))
        self._took = time.monotonic() - began

    def _known(self, session: SparkSession, paths: list[str]) -> DataFrame:
        """Rows of these batches and those carried on, without what cannot be read."""
        standing = [self._standing] if self._standing else []
        found = session.read.parquet(*paths, *standing).where("run is not null and n is not null")
        return found.select(*COLUMNS)

    def _look(self, session: SparkSession) -> None:
        """Tell violations that this look and the one before have seen."""
        prepared = Prepared(self._known(session, list(self._recent)), self._bounds)
        rows = all_violations(prepared, LASTING).distinct().limit(TOLD).collect()
        prepared.release()
        found = {tuple(row) for row in rows}
        for violation in sorted(found & self._suspected - self.told, key=str):
            run, check, group, topic, witness = violation
            where = topic or f"group {group}"
            print(f"seen: {check} in {run}: {witness} — {where}", flush=True)
            self.told.add(violation)
        self._suspected = found

    def _reduce(self, session: SparkSession, path: str) -> None:
        """Let the oldest batch go, except for what later rows are measured against."""
        oldest = self._recent.popleft()
        carried(self._known(session, [oldest])).write.mode("overwrite").parquet(path)
        if self._standing:
            shutil.rmtree(self._standing)
        self._standing = path


def carried(rows: DataFrame) -> DataFrame:
    """Of older rows, those that later ones are measured against.

    There are so many as subscriptions were made, as groups have latest entries, and rare ones,
    which grow with faults.
    """
    kind = F.col("kind")
    rare = rows.where(~kind.isin(*OF_MEMBERS, *OF_STREAMS, *PASSING))
    return rare.unionByName(_of_members(rows)).unionByName(_of_streams(rows))


def _of_members(rows: DataFrame) -> DataFrame:
    """The last act of each kind of a life in a group, and of each group the latest entries."""
    keys = [F.col("run"), F.col("proc"), F.col("group"), F.col("kind"), extra("role").alias("role")]
    acts = rows.where(F.col("kind").isin(*OF_MEMBERS))
    last = acts.groupBy(*keys).agg(_last()).select("row.*")
    end = F.max(F.struct("epoch", "idx")).over(Window.partitionBy("run", "group"))
    latest = (
        rows.where("kind = 'commit'")
        .withColumn("end", end)
        .where(F.col("idx").between(F.col("end.idx") - ENTRIES, F.col("end.idx")))
        .groupBy("run", "group", "idx", "epoch")
        .agg(_last())
        .select("row.*")
    )
    return last.unionByName(latest).dropDuplicates(["run", "proc", "n"])


def _of_streams(rows: DataFrame) -> DataFrame:
    """Where each subscription is: its last message, and what it was told after that."""
    anew = extra("outcome").isin("gap", "reset", "fresh")
    told = (
        rows.where(F.col("kind").isin(*OF_STREAMS))
        .where((F.col("kind") != "sub_status") | anew)
        .select(*COLUMNS, (F.col("kind") == "sub_status").alias("status"))
    )
    held = told.where("not status").groupBy(*STREAM).agg(_last())
    later = told.where("status").groupBy(*STREAM).agg(_last().alias("on"))
    both = held.join(later, STREAM, "full")
    goes_on = both.where("on is not null and (row is null or on.n > row.n)").select("on.*")
    return both.where("row is not null").select("row.*").unionByName(goes_on)


def _last() -> Column:
    """The last row of a process."""
    return F.max_by(F.struct(*COLUMNS), "n").alias("row")


def follow(
    session: SparkSession, traces: Path, work: Path, bounds: Bounds, patience: float
) -> Reading:
    """Follow until the run has ended, until nothing comes any more, or until SIGINT or SIGTERM."""
    follower = Follower(session, traces, work, bounds)
    cutter = Cutter(traces, follower.pieces)
    with _stopped_by_signal() as stop:
        query = follower.start()
        try:
            _until_end(follower, cutter, query, stop, patience)
            cutter.cut(last=True)
            query.processAllAvailable()
        except PySparkException as wrong:
            remedy = "check the trace without --follow when the run has ended"
            raise TraceError("FOLLOW_FAILED", str(wrong).split("\n")[0], remedy) from wrong
        finally:
            query.stop()
    if not follower.count:
        remedy = "name the directory that a run writes its .jsonl files to, or raise --patience"
        raise TraceError("NOTHING_CAME", f"no row came to {traces}", remedy)
    return follower.read_all()


def _until_end(
    follower: Follower,
    cutter: Cutter,
    query: StreamingQuery,
    stop: threading.Event,
    patience: float,
) -> None:
    came = said = time.monotonic()
    while not follower.has_ended:
        if failure := query.exception():
            raise failure
        now = time.monotonic()
        if cutter.cut():
            came = now
        elif now - came > patience:
            print(f"nothing came for {patience:g} s: the run is over", flush=True)
            return
        if now - said > SAY_EVERY:
            said = now
            print(follower, flush=True)
        if stop.wait(CUT_EVERY):
            print("stopped: what came so far is judged", flush=True)
            return


@contextmanager
def _stopped_by_signal() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one does what it always does."""
    stop = threading.Event()
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop.set()

    for each in before:
        signal.signal(each, on_signal)
    try:
        yield stop
    finally:
        restore()
