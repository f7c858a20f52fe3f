"""Deterministic simulation of whole clusters from a seed."""
