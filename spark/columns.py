"""Keys, values of `extra` and windows, as all frames and checks of a trace name them."""

from __future__ import annotations

from pyspark.sql import Column, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

TOPIC = ["run", "group", "topic"]
POSITION = [*TOPIC, "epoch", "seq"]
PUBLICATION = [*TOPIC, "pid", "pseq"]
STREAM = [*TOPIC, "proc", "sub"]


def extra(key: str) -> Column:
    """One value of `extra`, as a string."""
    return F.col("extra").getItem(key)


def number(key: str) -> Column:
    """One value of `extra` as a number; null where it is none, which reading tells as a fault."""
    return extra(key).try_cast("long")


def flag(key: str) -> Column:
    """One value of `extra` as yes or no; absent is no."""
    return F.coalesce(F.lower(extra(key)).isin("true", "1"), F.lit(False))


def within(key: str) -> WindowSpec:
    """The rows of one process that belong together, in order; `key` is a hash of what they share.

    Run and group are named too: Spark then knows that they lie in one partition already.
    """
    return Window.partitionBy(key, "group", "run").orderBy("n")


def before(key: str) -> WindowSpec:
    """Of these rows those that precede this one."""
    return within(key).rowsBetween(Window.unboundedPreceding, -1)


def until(key: str) -> WindowSpec:
    """Of these rows those up to this one, included."""
    return within(key).rowsBetween(Window.unboundedPreceding, Window.currentRow)


def bit(place: str) -> Column:
    """A set of one member."""
    return F.call_function("shiftleft", F.lit(1).cast("long"), F.col(place) - 1)
