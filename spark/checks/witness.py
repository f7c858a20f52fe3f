"""The form of a violation: run, check, group, topic, and the least that shows it, as a sentence."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)


def sentence(template: str, *values: Column | str) -> Column:
    """A sentence with a value for each {}; a value that is absent is written as ?."""
    parts = template.split("{}")
    assert len(parts) == len(values) + 1
    pieces: list[Column] = [F.lit(parts[0])]
    for value, text in zip(values, parts[1:], strict=True):
        column = F.col(value) if isinstance(value, str) else value
        pieces += [F.coalesce(column.cast("string"), F.lit("?")), F.lit(text)]
    return F.concat(*pieces)


def violations(found: DataFrame, check: str, witness: Column) -> DataFrame:
    """What was found, as rows of schemas.VIOLATION; group and topic may be null."""

    def named(column: str, kind: str) -> Column:
        known = F.col(column) if column in found.columns else F.lit(None)
        return known.cast(kind).alias(column)

    return found.select(
        "run",
        F.lit(check).alias("check"),
        named("group", "int"),
        named("topic", "string"),
        witness.alias("witness"),
    )
