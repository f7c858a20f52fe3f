"""The fixed facts of a cluster that every decision depends on: who, how many, how long."""

from __future__ import annotations

import msgspec


class Cluster(msgspec.Struct, frozen=True):
    """Static membership. N members survive f faults; Q copies acknowledge, T promises open."""

    name: str
    members: tuple[str, ...]
    faults: int
    groups: int = 100
    session: float = 4.0  # S: the ZooKeeper session in seconds, the unit of all patience

    def __post_init__(self) -> None:
        if len(self.members) < 2 * self.faults + 1:
            raise ValueError(f"{len(self.members)} members cannot survive {self.faults} faults")

    @property
    def copies(self) -> int:
        """Q: how many members hold a message before it is acknowledged."""
        return self.faults + 1

    @property
    def promises(self) -> int:
        """T: how many promises a takeover needs. Q + T > N, so every two such sets meet."""
        return len(self.members) - self.faults


# Bounds, each with what happens when it is hit.
TAIL_ENTRIES = 10_000  # uncommitted entries of a group: BUSY
TAIL_BYTES = 16 << 20  # uncommitted bytes of a group: BUSY
ALL_TAILS_BYTES = 256 << 20  # uncommitted bytes of all groups led here: BUSY
CHUNK_BYTES = 256 << 10  # entries or topics in one message: the rest comes with the next one
PIN_BYTES = 64 << 20  # log kept for a transfer: the transfer is given up
ELECTIONS_IN_FLIGHT = 32  # further groups wait for their turn
HANDOVERS_IN_FLIGHT = 16  # the same; fewer, since each of these groups has stopped
TRANSFERS_IN_FLIGHT = 4  # groups that a recovering member asks for at a time

# Patience, in seconds.
RANK_DELAY = 0.15  # between the members that may stand for a group, by rank
TAKEOVER_PATIENCE = 1.0  # from an election to T promises, or since a fetch last progressed
PUBLISH_PATIENCE = 1.0  # a contact holds a publication without an answer: RETRY
BARRIER_PATIENCE = 1.0  # a resume ahead of this member: BEHIND
TRANSFER_PATIENCE = 5.0  # silence in a transfer: it begins again
RESEND_PATIENCE = 0.5  # a follower's silence about entries sent to it: they are sent again
HANDOVER_COMMIT = 1.0  # for commit == last before an invitation: accept again
HANDOVER_PREQ = 0.5  # for the invited to ask for promises: accept again
HANDOVER_REST = 2.0  # after that, before the same member is invited again
DRAIN_NOTICE = 0.5  # for the others to hear that this member wants to leave
REBALANCE_QUIET = 10.0  # after the last takeover, and NORMAL everywhere for the target
REBALANCE_EVERY = 0.5
BEHIND_PATIENCE = 5.0  # behind what peers have committed: GO_ELSEWHERE
RETRY_ELECTION = 0.2  # after an election that was lost or not possible
OPERATOR_WAIT = 5.0  # a group without a possible coordinator is said to wait for the operator
BUSY_TICK = 0.02  # how often time is looked at while something is under way
TICK_ENTRY = 1.0  # without an entry, before a TICK carries what is due to expire
