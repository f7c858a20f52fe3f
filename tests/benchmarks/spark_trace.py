"""A long valid trace, made quickly: what a cluster of three would write, without a cluster.

Time passes in segments of a minute. In each one a member is killed, its groups are taken over, it
comes back and installs their states; one subscription of each topic is away and resumes, another is
away for longer than the history lasts; a publication is repeated. The mix of kinds is that of a
chaos run. Rows are columns of numbers until they are written, and a segment at a time is in memory.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Chosen = np.ndarray[Any, np.dtype[np.bool_]]
GROUPS, TOPICS, SUBS = 100, 3, 8  # topics of each group, subscriptions of each topic
HELD = 20  # max_messages
SEGMENT = 60_000_000  # microseconds
START = 1_700_000_000_000_000
MEMBERS = ("m1", "m2", "m3")
PER_MESSAGE = 20  # rows, about
MESSAGES = 24_000  # of a segment, at most
LONGS = ("boot", "t_mono", "t_wall", "n", "epoch", "seq", "idx", "pseq")
TEXTS = ("node", "proc", "kind", "topic", "pid", "sub", "conn")
STRING = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        ("run", STRING), ("node", STRING), ("boot", pa.int64()), ("proc", STRING),
        ("t_mono", pa.int64()), ("t_wall", pa.int64()), ("n", pa.int64()), ("kind", STRING),
        ("group", pa.int32()), ("topic", STRING), ("epoch", pa.int64()), ("seq", pa.int64()),
        ("idx", pa.int64()), ("pid", STRING), ("pseq", pa.int64()), ("mid", pa.string()),
        ("sub", STRING), ("conn", STRING), ("extra", pa.map_(pa.string(), pa.string())),
    ]
)  # fmt: skip


class Words:
    """Texts by number."""

    def __init__(self) -> None:
        self.texts: list[Any] = []
        self._codes: dict[Any, int] = {}

    def code(self, text: Any) -> int:
        """The number of a text, or of a map given as pairs."""
        if text not in self._codes:
            self._codes[text] = len(self.texts)
            self.texts.append(text)
        return self._codes[text]

    def codes(self, texts: list[Any]) -> Numbers:
        """The numbers of many."""
        return np.array([self.code(text) for text in texts], np.int64)


class Sheet:
    """Rows of one segment as columns; -1 is a value that a row does not have."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._parts: dict[str, list[Numbers]] = defaultdict(list)
        self._rank = 0

    def add(
        self,
        kind: str,
        at: Numbers | int,
        proc: Numbers | int | str,
        more: Any = (),
        **columns: Any,
    ) -> None:
        """Rows of one kind; what is added later comes later where times are equal."""
        words = self._trace.words
        given = {
            name: words[name].code(value) if isinstance(value, str) else value
            for name, value in columns.items()
        }
        proc = words["proc"].code(proc) if isinstance(proc, str) else proc
        extra = words["extra"].code(more) if isinstance(more, tuple) else more
        given |= {"t_wall": at, "proc": proc, "extra": extra, "kind": words["kind"].code(kind)}
        length = next((np.size(v) for v in given.values() if np.ndim(v)), 1)
        self._rank += 1
        for name in (*LONGS[2:3], *LONGS[4:], *TEXTS[1:], "group", "mid", "extra"):
            value = given.get(name, -1)
            self._parts[name].append(np.broadcast_to(np.asarray(value, np.int64), (length,)))
        self._parts["rank"].append(np.full(length, self._rank))

    def columns(self) -> dict[str, Numbers]:
        """The rows in the order of their processes, numbered."""
        found = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        order = np.lexsort((found.pop("rank"), found["t_wall"], found["proc"]))
        found = {name: column[order] for name, column in found.items()}
        proc = found["proc"]
        starts = np.flatnonzero(np.diff(proc, prepend=-1))
        lengths = np.diff(starts, append=len(proc))
        offsets = self._trace.numbers(proc[starts], lengths)
        found["n"] = np.arange(len(proc)) - np.repeat(starts - offsets, lengths)
        return found


class Trace:
    """Writes segment after segment; what the cluster remembers between them is here."""

    def __init__(self, out: Path, rows: int, fault: str) -> None:
        self.out, self.fault = out, fault
        self.words = {name: Words() for name in (*TEXTS, "extra")}
        self.words["extra"].code(())
        self.segments = max(1, -(-rows // (MESSAGES * PER_MESSAGE)))
        self.messages = rows // PER_MESSAGE // self.segments
        self.written = 0
        self._next: dict[int, int] = defaultdict(int)
        names = [f"/bench/{t}" for t in range(GROUPS * TOPICS)]
        self.topics = self.words["topic"].codes(names)
        self.group_of = np.arange(GROUPS * TOPICS) % GROUPS
        self.heads = np.zeros(GROUPS * TOPICS, np.int64)
        self.last = np.zeros(GROUPS, np.int64)
        self.epoch = np.ones(GROUPS, np.int64)
        self.led_by = np.arange(GROUPS) % len(MEMBERS)
        self.boots = [1, 1, 1]
        self.mids = 0
        self.links = [0] * SUBS  # connections that each subscription had
        self.held = np.zeros((GROUPS * TOPICS, HELD, 3), np.int64)  # epoch, seq, mid

    def numbers(self, procs: Numbers, lengths: Numbers) -> Numbers:
        """The next free number of each process; so many are taken."""
        offsets = np.array([self._next[int(p)] for p in procs], np.int64)
        for proc, length in zip(procs, lengths, strict=True):
            self._next[int(proc)] += int(length)
        return offsets

    def proc(self, member: int) -> int:
        """A life of a member."""
        return self.words["proc"].code(f"{MEMBERS[member]}-{self.boots[member]}")

    def write(self, sheet: Sheet) -> None:
        """One file."""
        columns = sheet.columns()
        words = self.words
        lives = [text.rpartition("-") for text in words["proc"].texts]
        lives = [(a, int(c)) if a in MEMBERS else (text, 0) for (a, _, c), text in
                 zip(lives, words["proc"].texts, strict=True)]  # fmt: skip
        columns["boot"] = np.array([boot for _, boot in lives], np.int64)[columns["proc"]]
        columns["node"] = words["node"].codes([node for node, _ in lives])[columns["proc"]]
        columns["t_mono"] = columns["t_wall"] - START // 2
        arrays = [self._array(field, columns) for field in SCHEMA]
        self.out.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_arrays(arrays, schema=SCHEMA)
        pq.write_table(table, self.out / f"part-{self.written:012}.parquet", store_schema=False)
        self.written += len(columns["n"])

    def _array(self, field: pa.Field, columns: dict[str, Numbers]) -> pa.Array:
        if field.name == "run":
            zeros = np.zeros(len(columns["n"]), np.int32)
            return pa.DictionaryArray.from_arrays(zeros, ["bench"])
        column = columns[field.name]
        absent = column < 0
        if field.name == "mid":
            return _hexadecimal(column, absent)
        if field.name == "extra":
            texts = [dict(pairs) for pairs in self.words["extra"].texts]
            known = pa.array([list(t.items()) or None for t in texts], field.type)
            return known.take(pa.array(column, mask=absent))
        if field.name in TEXTS:
            codes = pa.array(column.astype(np.int32), mask=absent)
            return pa.DictionaryArray.from_arrays(codes, pa.array(self.words[field.name].texts))
        return pa.array(column, mask=absent).cast(field.type)


def _hexadecimal(numbers: Numbers, absent: Any) -> pa.Array:
    """Each number as sixteen digits, scattered as digests are."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    digits = pa.py_buffer(mixed.astype(">u8").tobytes().hex().encode())
    ends = pa.py_buffer(np.arange(0, 16 * len(numbers) + 1, 16, dtype=np.int32).tobytes())
    valid = pa.array(~absent).buffers()[1]
    return pa.StringArray.from_buffers(len(numbers), ends, digits, valid)


def rows_of(traces: Path) -> int:
    """How many rows a trace has."""
    return sum(pq.ParquetFile(path).metadata.num_rows for path in traces.glob("*.parquet"))
