"""The columns of a trace as docs/traces.md states them, and those of a violation.

Invariant: schemas are stated, never inferred, so that a wrong row is seen as wrong.
"""

from __future__ import annotations

from pyspark.sql.types import (
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

_LONG = LongType()
_STRING = StringType()

TRACE = StructType(
    [
        StructField("run", _STRING),
        StructField("node", _STRING),
        StructField("boot", _LONG),
        StructField("proc", _STRING),
        StructField("t_mono", _LONG),
        StructField("t_wall", _LONG),
        StructField("n", _LONG),
        StructField("kind", _STRING),
        StructField("group", IntegerType()),
        StructField("topic", _STRING),
        StructField("epoch", _LONG),
        StructField("seq", _LONG),
        StructField("idx", _LONG),
        StructField("pid", _STRING),
        StructField("pseq", _LONG),
        StructField("mid", _STRING),
        StructField("sub", _STRING),
        StructField("conn", _STRING),
        StructField("extra", MapType(_STRING, _STRING)),
    ]
)
COLUMNS = tuple(field.name for field in TRACE.fields)
REQUIRED = ("run", "node", "boot", "proc", "t_mono", "t_wall", "n", "kind")

VIOLATION = StructType(
    [
        StructField("run", _STRING),
        StructField("check", _STRING),
        StructField("group", IntegerType()),
        StructField("topic", _STRING),
        StructField("witness", _STRING),
    ]
)

KINDS = (
    *("run", "plan", "phase", "fault_on", "fault_off", "ended", "boot", "elect", "promise", "open"),
    *("append", "commit", "ack", "quorum", "told", "install", "normal", "floor", "step_down"),
    *("isolate", "window"),
    *("pub_send", "pub_ack", "pub_nack", "sub_open", "sub_status", "deliver", "sub_close"),
    *("link_up", "link_down", "final_read", "final_head", "end"),
)

_SUBSCRIBED = ("sub", "topic", "group")
_PUBLISHED = ("topic", "group", "pid", "pseq", "mid")
_ENDED = ("topic", "group", "epoch", "seq")
# What the checks cannot do without, beside REQUIRED; a row that lacks it is told as a fault.
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("elect", "floor", "step_down"), ("group", "epoch")),
    **dict.fromkeys(
        ("promise", "open", "append", "commit", "ack", "quorum", "told", "install", "normal"),
        ("group", "epoch", "idx"),
    ),
    "window": ("group", "topic", "seq"),
    **dict.fromkeys(("pub_send", "pub_nack"), ("topic", "group", "mid")),
    "pub_ack": (*_PUBLISHED, "epoch", "seq"),
    **dict.fromkeys(("sub_open", "sub_status", "sub_close"), _SUBSCRIBED),
    "deliver": (*_SUBSCRIBED, "epoch", "seq", "mid"),
    "final_read": (*_ENDED, "mid"),
    "final_head": _ENDED,
}
# What must be a number in `extra`, where it is said.
NUMBERS: dict[str, tuple[str, ...]] = {
    "run": ("faults", "groups"),
    "boot": ("copies", "sample", "max_messages", "max_age_ms"),
    **dict.fromkeys(("open", "normal"), ("floor",)),
    "phase": ("took_ms",),
    "window": ("head",),
    "sub_status": ("asked", "first", "missed"),
    "final_head": ("first",),
}
