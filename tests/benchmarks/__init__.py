"""Benchmarks: ratios and costs per CPU second, run by hand, never by a unit test."""
