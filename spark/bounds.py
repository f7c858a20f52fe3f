"""What a run is measured against; the defaults stand in docs/guarantees.md, Checks of a trace."""

from __future__ import annotations

from dataclasses import dataclass

SURE_MS = 30_000  # an entry may be so much older than what tells of it before it counts as young
HAPPENINGS = ("takeover", "sync", "gap", "duplicate", "resume")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Milliseconds and shares; what a run must have seen in order to prove anything."""

    silence_ms: int = 1500  # UNAVAIL: without an acknowledgement, though one is waited for
    lag_ms: int = 2000  # STALE: from acknowledgement to delivery, far from faults
    return_ms: int = 4000  # UNAVAIL: a member or contact that was away may take so long to be back
    elect_ms: int = 2000  # UNAVAIL: ZooKeeper may take so long to elect and to be reached again
    heal_ms: int = 10_000  # after a fault the cluster may take so long to be whole again
    ack_ms: int = 2000  # LIVE: a publication of a healed cluster
    late_share: float = 0.01  # UNAVAIL and STALE bound the 99th percentile
    quiet_acked: float = 0.9  # NON_VACUOUS: share of what was published in quiet times
    require: tuple[str, ...] = HAPPENINGS
