"""How long groups were silent while somebody waited: one definition for check and report."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.prepared import Prepared


def silences(trace: Prepared) -> DataFrame:
    """For each answer: run, group, since when somebody waited for one, when it came (acked_at).

    Whoever is answered then or later may have waited. Nobody waits without a connection, nor at a
    contact that a fault hits until it may be back: that is a client's own patience.
    """
    group = Window.partitionBy("run", "group")
    in_group = group.orderBy("acked_at", "waits")
    # Backwards, as Spark takes quadratic time for frames that end with the last row.
    later = group.orderBy(F.desc("acked_at"), F.desc("waits")).rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    begun = F.filter("troubles", lambda each: each["on_at"] <= F.col("acked_at"))
    back = F.array_max(F.transform(begun, lambda each: each["back_at"]))
    waits = F.least(F.greatest("sent_at", "up_at", back), F.col("acked_at"))
    return (
        trace.publications.where("sent_at is not null and acked_at is not null")
        .join(F.broadcast(trace.links), ["run", "conn"], "left")
        .select("run", "group", "acked_at", waits.alias("waits"))
        .withColumn("first", F.min("waits").over(later))
        .withColumn("since", F.greatest(F.lag("acked_at").over(in_group), F.col("first")))
        .select("run", "group", "since", "acked_at")
    )
