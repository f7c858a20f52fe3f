"""The kinds of faults, as data: whom they hit, how long they last, what they need."""

# ruff: noqa: E501 (the table below is read by columns)

from __future__ import annotations

from typing import Literal

import msgspec

# Roles are looked up when the fault begins: who leads is not known before.
Role = Literal["member", "|", ">", "leader", "ensemble", "all", "clients"]
Need = Literal["", "root", "namespaces", "taps", "libfaketime"]
COORDINATOR = "coordinator"  # also a target of every kind that hits a member
ROLES = (COORDINATOR, "second", "third")  # the coordinator, and the members after it in a ring


class Kind(msgspec.Struct, frozen=True):
    """One kind of fault."""

    says: str
    target: Role
    shortest: float  # seconds
    longest: float
    needs: Need = ""
    forgets: bool = False  # whether a member loses its memory
    drawn: bool = True  # whether chance may choose it
    awaits: bool = False  # a member that starts, which ZooKeeper must let in

    @property
    def harms_member(self) -> bool:
        """Whether it counts among the failures that a cluster survives a number of."""
        return self.target in ("member", "|", ">", "all")

    @property
    def harms_zookeeper(self) -> bool:
        """Whether nobody can be let in meanwhile."""
        return self.target in ("leader", "ensemble")


KINDS: dict[str, Kind] = {
    "kill-quick": Kind("kill -9, back before the session ends", "member", 0.2, 1.5, forgets=True),
    "kill-long": Kind("kill -9, back after the session has ended", "member", 5.0, 8.0, forgets=True),
    "kill-recovering": Kind("kill -9, and again while it recovers", "member", 3.0, 6.0, "namespaces", forgets=True, awaits=True),
    "pause": Kind("SIGSTOP, SIGCONT", "member", 0.5, 8.0),
    "sleepwalk": Kind("frozen until replaced, wakes deaf, dies", "member", 3.0, 4.0, "namespaces", forgets=True),
    "zombie": Kind("a paused process wakes beside its replacement", "member", 7.0, 9.0, "namespaces", forgets=True, awaits=True),
    "starve": Kind("the process gets a tenth of a processor", "member", 2.0, 8.0),
    "reset": Kind("all its connections are reset, again and again", "member", 1.0, 4.0, "root"),
    "cut": Kind("reaches nobody, is reached by nobody", "member", 1.0, 8.0, "namespaces"),
    "mute": Kind("hears everybody, is heard by nobody", "member", 1.0, 8.0, "namespaces"),
    "cut-zookeeper": Kind("does not reach ZooKeeper", "member", 2.0, 9.0, "namespaces"),
    "cut-peers": Kind("does not reach the other members", "member", 1.0, 8.0, "namespaces"),
    "cut-pair": Kind("two members do not reach each other", "|", 1.0, 8.0, "namespaces"),
    "cut-one-way": Kind("one member is not heard by another", ">", 1.0, 8.0, "namespaces"),
    "cut-clients": Kind("no member reaches a client", "all", 1.0, 5.0, "namespaces"),
    "deaf-clients": Kind("no client hears a member", "all", 1.0, 7.0, "namespaces"),
    "flaky": Kind("reaches nobody for moments", "member", 2.0, 6.0, "namespaces"),
    "slow-link": Kind("its cable carries little", "member", 2.0, 8.0, "namespaces"),
    "late-link": Kind("its cable delays everything, some of it more", "member", 2.0, 8.0, "taps"),
    "lossy-link": Kind("its cable loses a tenth of all packets", "member", 2.0, 8.0, "taps"),
    "full-disk": Kind("its disk is full: no trace, no log", "member", 2.0, 8.0),
    "clock": Kind("its wall clock is an hour ahead", "member", 5.0, 10.0, "libfaketime", forgets=True),
    "rolling-restart": Kind("all members drain and restart in turn", "all", 5.0, 15.0, forgets=True),
    "recover": Kind("one is cut off, the others forget, the operator accepts the loss", "all", 5.0, 30.0, "namespaces", forgets=True, drawn=False),
    "zookeeper-leader": Kind("kill -9 of ZooKeeper's leader", "leader", 1.0, 5.0),
    "zookeeper-stall": Kind("all ZooKeeper servers freeze", "ensemble", 1.0, 10.0),
    "zookeeper-disk": Kind("the disk of ZooKeeper's leader is full", "leader", 3.0, 8.0),
    "stampede": Kind("all subscribers leave and come back at once", "clients", 0.5, 1.0),
}  # fmt: skip
