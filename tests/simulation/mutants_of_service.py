"""Mutants of floors, publishers, elections and subscriptions: what the log is there for."""

from __future__ import annotations

from tests.simulation.mutation import (
    BALANCE,
    BID,
    CONTACT,
    ELECTIONS,
    KEEPER,
    LEADING,
    MEMBER,
    REPLICA,
    RESUME,
    TAKEOVER,
    TOPIC,
    Change,
    Mutant,
)

FLOORS = (
    Mutant(
        "floor ignored",
        "histories of different floors do not talk",
        (
            Change(MEMBER + "_same_floor", "if floor < replica.floor:", "if False:"),
            Change(MEMBER + "_same_floor", "if floor > replica.floor:", "if False:"),
        ),
    ),
    Mutant(
        "cold start beside a NORMAL member",
        "any NORMAL answer: give up the cold start",
        (
            Change(
                BID + "consider",
                "if normal:",
                "if False:",
            ),
        ),
        trace="cold_start_beside_a_normal_member",
    ),
    Mutant(
        "cold start without everybody",
        "all N must report RECOVERING before a history is given up",
        (
            Change(BID + "consider", "self.never_opened and len", "len"),
            Change(
                ELECTIONS + "_eligible",
                "needed = ctx.cluster.promises if replica.floor == 0 else len(ctx.cluster.members)",
                "needed = ctx.cluster.promises",
            ),
        ),
        trace="cold_start_without_everybody",
    ),
    Mutant(
        "floor not raised in ZooKeeper",
        "CAS floor = E before opening empty",
        (
            Change(
                BID + "_raise_floor",
                "r.ctx.run(procedure, self._raised)",
                "self._raised(True)",
            ),
        ),
        trace="cold_start_without_everybody",
    ),
    Mutant(
        "floor raised for an epoch that is over",
        "the floor is raised by compare-and-set, only while the epoch is held",
        (
            Change(
                KEEPER + "raise_floor",
                "isinstance(node, Fault) or state.epoch != epoch or state.boot != boot",
                "False",
            ),
        ),
        trace="floor_raised_too_late",
    ),
    Mutant(
        "floor of the election ignored",
        "a candidate whose history is void gives the epoch back",
        (Change(TAKEOVER + "begin", "stale = elected.floor > replica.floor", "stale = False"),),
        trace="floor_of_a_lost_history",
    ),
    Mutant(
        "a higher floor keeps the log",
        "a higher floor than mine: drop the group's state",
        (
            Change(REPLICA + "raise_floor", "self.clear()", "pass"),
            Change(REPLICA + "raise_floor", "self.normal = False", "pass"),
        ),
        trace="floor_of_a_lost_history",
    ),
    Mutant(
        "empty log from any APP",
        "a RECOVERING member installs an empty log only from an APP whose floor == E",
        (Change(REPLICA + "_install_empty", "message.floor != message.epoch or", ""),),
        trace="empty_start_of_a_forgetful_member",
    ),
    Mutant(
        "empty log under an epoch of an earlier life",
        "an epoch that an earlier life may have acknowledged in is no fresh start",
        (Change(REPLICA + "_install_empty", "or message.epoch <= self.born", ""),),
        trace="second_start_in_the_first_epoch",
    ),
    Mutant(
        "nobody is told of a lost history",
        "a client of an earlier floor gets RESET",
        (Change(REPLICA + "raise_floor", "self.ctx.ready.installed.append(self.g)", "pass"),),
        trace="floor_of_a_lost_history",
    ),
)

PUBLISHERS = (
    Mutant(
        "publishers known only in the tail",
        "dedup lives in the replicated topic record, not in the coordinator's memory",
        (
            Change(
                LEADING + "_check_applied",
                "known = state.publisher(item.topic, item.pid)",
                "known = None",
            ),
        ),
    ),
    Mutant(
        "publishers of the tail unknown",
        "L's view = applied state overlaid by the uncommitted tail",
        (
            Change(
                LEADING + "_check",
                "pending = self.pubs.get((item.topic, item.pid))",
                "pending = None",
            ),
        ),
    ),
    Mutant(
        "order not checked",
        "pseq > last + 1: OUT_OF_ORDER",
        (
            Change(LEADING + "_check", "if item.pseq > known:", "if False:"),
            Change(LEADING + "_check", "if item.pseq == known + 1:", "if item.pseq > known:"),
            Change(LEADING + "_check_applied", "if item.pseq > known.pseq + 1:", "if False:"),
        ),
    ),
    Mutant(
        "unknown publishers welcome",
        "unknown pid and pseq > 1: UNKNOWN_PUBLISHER",
        (Change(LEADING + "_check_applied", "if item.pseq > 1:", "if False:"),),
    ),
    Mutant(
        "reused sequences acknowledged",
        "other crc: PSEQ_REUSED",
        (
            Change(
                LEADING + "_check",
                'return "pending" if same else Refused(_bare(item), "PSEQ_REUSED")',
                'return "pending"',
            ),
            Change(
                LEADING + "_check_applied", "if checksum(item.payload) != known.crc:", "if False:"
            ),
        ),
    ),
    Mutant(
        "publishers forgotten with their messages",
        "dedup outlives the history: dedup_ttl, never early",
        (
            Change(
                TOPIC + "_publishers_last_until",
                "return oldest.gt + retention.dedup_ttl_ms",
                "return oldest.gt + 200",
            ),
        ),
        weather=(("cut_every", 1.5), ("crash_every", 1.0)),
    ),
    Mutant(
        "sequences restart per epoch",
        "sequences go on across epochs",
        (
            Change(
                LEADING + "_stamp",
                "seq = record.seq + 1",
                "seq = record.seq + 1 if record.epoch == self.epoch else 1",
            ),
        ),
    ),
    Mutant(
        "a forgotten topic counts from one",
        "a forgotten topic restarts at the index of its entry, never reused",
        (Change(LEADING + "_stamp", "seq = 1 if young else replica.log.last + 1", "seq = 1"),),
    ),
    Mutant(
        "group time from the own clock",
        "group time = that of the last entry plus own monotonic time since",
        (
            Change(
                REPLICA + "group_time",
                "return self.gt + int((self.ctx.now - self.stored_at) * 1000)",
                "return int(self.ctx.now * 1000)",
            ),
        ),
    ),
    Mutant(
        "group time from the wall clock",
        "wall clocks are shown, never compared",
        (
            Change(
                REPLICA + "group_time",
                "return self.gt + int((self.ctx.now - self.stored_at) * 1000)",
                "return self.ctx.wall() - 1_700_000_000_000",
            ),
        ),
    ),
)

VOTES = (
    Mutant(
        "election without a version",
        "compare-and-set on the version of /g/<g>",
        (Change(KEEPER + "elect", "node.version,\n        )", "-1,\n        )"),),
    ),
    Mutant(
        "a failed transaction counts as won",
        "look at every outcome of the multi",
        (
            Change(
                KEEPER + "elect", "won = all(outcome is None for outcome in outcomes)", "won = True"
            ),
        ),
    ),
    Mutant(
        "an unknown outcome counts as won",
        "connection loss: sync, read back",
        (Change(KEEPER + "elect", "won = yield from _read_back(paths, g, mine)", "won = True"),),
        weather=(("keeper_loss", 0.2), ("depose_every", 0.7)),
    ),
    Mutant(
        "an unknown outcome counts as lost",
        "connection loss: sync, read back",
        (Change(KEEPER + "elect", "won = yield from _read_back(paths, g, mine)", "won = False"),),
        weather=(("keeper_loss", 0.2), ("expire_every", 1.0)),
    ),
    Mutant(
        "read back without a sync",
        "connection loss: sync, then read back",
        (Change(KEEPER + "_read_back", "yield from synced()\n    ", ""),),
        weather=(("keeper_loss", 0.2), ("stale_reads", 0.5), ("depose_every", 0.7)),
    ),
    Mutant(
        "release takes a later epoch's node",
        "only the own node of this very epoch is deleted",
        (
            Change(
                KEEPER + "release",
                "if coord.boot != boot or coord.epoch != epoch or",
                "if False and",
            ),
            Change(
                KEEPER + "release", "(Check(paths.group(g), group.version), Delete(", "(Delete("
            ),
            Change(KEEPER + "release", "held.version))", "held.version),)"),
        ),
    ),
    Mutant(
        "release trusts the node's version",
        "every new node has version 0: the group's version tells them apart",
        (
            Change(
                KEEPER + "release", "(Check(paths.group(g), group.version), Delete(", "(Delete("
            ),
            Change(KEEPER + "release", "held.version))", "held.version),)"),
            Change(KEEPER + "release", " or decode_group(group).epoch > epoch", ""),
        ),
    ),
    Mutant(
        "an unopened epoch keeps its node",
        "no T promises within 1 s: delete own coord",
        (Change(REPLICA + "step_down", "self.release(self.epoch)", "pass"),),
    ),
    Mutant(
        "re-attached under an epoch that is over",
        "re-attach: check the version of my last write",
        (
            Change(
                KEEPER + "reattach",
                "if isinstance(node, Fault) or state.epoch != epoch or state.boot != boot:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "hand-over never taken back",
        "no PREQ in 500 ms or commit != last after 1 s: accept again",
        (Change(BALANCE + "_go_on", "if waited > HANDOVER_PREQ:", "if False:"),),
        weather=(("drain_every", 2.0), ("drop", 0.1)),
    ),
)

SUBSCRIBERS = (
    Mutant(
        "barrier passed at once",
        "ask L for a barrier: applied here and still ahead, RESET; never before",
        (
            Change(
                CONTACT + "want_barrier",
                "self.barriers[ref] = (replica.ctx.now, 0, 0)",
                "replica.ctx.ready.barriers.append(BarrierDone(ref, ok=True))\n    return",
            ),
        ),
        weather=(("cut_every", 1.5), ("delay", 0.2)),
    ),
    Mutant(
        "resume ignores the floor",
        "resume: a position below the floor is RESET history_lost",
        (Change(RESUME + "resume", "if asked.epoch < view.floor:", "if False:"),),
        weather=(("all_crash", True),),
    ),
    Mutant(
        "gap not told",
        "resume: a position older than the history gets GAP",
        (
            Change(
                RESUME + "_known",
                "gap = Gap(asked.sequence + 1, first, record.seq)",
                "gap = Resumed(record.seq - first + 1)",
            ),
        ),
    ),
    Mutant(
        "epoch of a position ignored",
        "resume: a cached sequence of another epoch is RESET, never taken for the same",
        (
            Change(
                RESUME + "_known",
                "if lowest <= asked.epoch <= highest:",
                "if True:",
            ),
            Change(RESUME + "resume", "if asked.epoch < view.floor:", "if False:"),
        ),
        weather=(("all_crash", True),),
    ),
)
