"""The vocabulary: what members, clients and shards say to each other. No state, no I/O."""
