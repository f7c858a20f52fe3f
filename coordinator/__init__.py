"""Pure deciders of replication: membership, election, takeover, sequencing, recovery."""
