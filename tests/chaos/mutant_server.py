"""A server without one of its rules: `python -m tests.chaos.mutant_server MUTANT serve CONFIG`.

The rule is taken out of the deciders as the simulation does it, before the ordinary command line
runs; the shipped server knows nothing of it. Where a rule is removed for the simulation already, it
is the same mutant here. Each one names the scenario that must show it, and the check that must
fire, whatever else does.
"""

from __future__ import annotations

import sys

import msgspec

from migratory import cli
from tests.simulation.mutants import MUTANTS as SIMULATED
from tests.simulation.mutation import (
    BID,
    ELECTIONS,
    LEADING,
    REPLICA,
    STATE,
    Change,
    Mutant,
    applied,
)

SLEEPWALK, AMNESIA = "sleepwalk", "amnesia"


class ServerMutant(msgspec.Struct, frozen=True):
    """A broken server, and how it is found out."""

    replaced: Mutant
    scenario: str
    check: str


def _simulated(name: str) -> Mutant:
    return next(mutant for mutant in SIMULATED if mutant.name == name)


# A member that applies what cannot follow ends itself. Here others must find out.
UNSUSPECTING = Change(
    STATE + "_message",
    'assert entry.seq == record.seq + 1, f"{entry} does not follow {record}"',
    "pass",
)

NO_FENCE = Mutant(
    "no fence for followers",  # a coordinator without it ends itself at once, on what it finds
    "a member stores and acknowledges nothing below its promise",
    (
        Change(
            REPLICA + "on_app", "if epoch < self.promised:",
            "if epoch < self.promised and self.role is not Role.FOLLOWER:",
        ),
        Change(
            REPLICA + "on_app", "if epoch > self.promised or self.promised_to != peer:",
            "if epoch > self.promised:",
        ),
    ),
)  # fmt: skip
FORGETFUL = Mutant(
    "forgetful voter",
    "members that forgot what they promised and stored do not count in a takeover",
    (
        Change(
            BID + "consider", "len(normal) >= cluster.promises",
            "len(self.proms) >= cluster.promises",
        ),
        Change(
            ELECTIONS + "_eligible",
            "if p.normal_in(g)}",
            "if p.normal_in(g) or (replica.normal and p.recovering_in(g))}",
        ),
    ),
)  # fmt: skip
NO_DEDUP = Mutant(
    "no memory of publishers",
    "a repeated publication is answered, never stamped again",
    (Change(LEADING + "_check", "if not item.pid:", "if True:"),),
)

SERVER_MUTANTS = {
    "no-fence": ServerMutant(NO_FENCE, SLEEPWALK, "NO_BELOW_PROMISE"),
    "early-delivery": ServerMutant(
        _simulated("delivered before it is committed"), SLEEPWALK, "AGREE"
    ),
    "forgetful-voter": ServerMutant(FORGETFUL, AMNESIA, "AGREE"),
    "one-copy": ServerMutant(_simulated("one copy too few"), SLEEPWALK, "NO_LOSS"),
    "early-ack": ServerMutant(
        _simulated("acknowledged before it is committed"), SLEEPWALK, "FALSE_ACK"
    ),
    "no-dedup": ServerMutant(NO_DEDUP, SLEEPWALK, "ONCE"),
    "silent-gap": ServerMutant(_simulated("gap not told"), SLEEPWALK, "NO_GAP"),
    "sequences-restart": ServerMutant(
        _simulated("sequences restart per epoch"), SLEEPWALK, "AGREE"
    ),
}
REQUIRED = ("no-fence", "early-delivery", "forgetful-voter", "one-copy")


def serve(name: str, words: list[str]) -> int:
    """The ordinary command line without this rule, and without the guard against what follows."""
    removed = SERVER_MUTANTS[name].replaced
    with applied(msgspec.structs.replace(removed, changes=(*removed.changes, UNSUSPECTING))):
        return cli.main(words)


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], sys.argv[2:]))
