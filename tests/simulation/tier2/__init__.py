"""Tier 2: whole members on a mocked clock, from a seed; links, doors and ZooKeeper in memory."""
