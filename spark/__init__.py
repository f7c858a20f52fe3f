"""Trace checks on Spark: one anomaly per file, from DataFrame to violations."""
