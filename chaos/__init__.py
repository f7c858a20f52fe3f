"""Chaos: breaking a real cluster on purpose (generator, workload, nemesis, runner)."""
