"""Mutants of promises, copies, commits and transfers: what keeps a log one log."""

from __future__ import annotations

from tests.simulation.mutation import (
    BID,
    BOOT,
    CLUSTER,
    CONTACT,
    DISPATCH,
    ELECTIONS,
    INCOMING,
    LEADING,
    MEMBER,
    REPLICA,
    STATE,
    TAKEOVER,
    TOPIC,
    UPKEEP,
    Change,
    Mutant,
)

PROMISES = (
    Mutant(
        "no fence",
        "APP below the promise is refused",
        (
            Change(REPLICA + "on_app", "if epoch < self.promised:", "if False:"),
            Change(
                REPLICA + "on_app",
                "if epoch > self.promised or self.promised_to != peer:",
                "if epoch > self.promised:",
            ),
        ),
    ),
    Mutant(
        "no fence for commits",
        "COMMIT alone: fence, then advance",
        (
            Change(REPLICA + "on_commit", "if message.epoch < self.promised:", "if False:"),
            Change(REPLICA + "on_commit", "message.epoch == self.promised and", ""),
            Change(REPLICA + "on_commit", "min(message.idx, self.verified)", "message.idx"),
        ),
        members=5,
        faults=2,
    ),
    Mutant(
        "promise falls for a request",
        "a promise never falls: PREQ below it is refused",
        (
            Change(REPLICA + "may_promise", "epoch > self.promised or", "True or"),
            Change(
                REPLICA + "promise",
                'assert epoch >= self.promised, "a promise never falls"',
                "self.promised = epoch",
            ),
        ),
    ),
    Mutant(
        "late election result lowers the promise",
        "takeover: if E < promised, give the epoch back",
        (
            Change(
                TAKEOVER + "begin",
                "if stale or not replica.may_promise(elected.epoch, ctx.me):",
                "replica.promised = min(replica.promised, elected.epoch)\n    if stale:",
            ),
        ),
        weather=(("depose_every", 0.7),),
    ),
    Mutant(
        "one promise too few",
        "T = N - f promises before a takeover opens",
        (
            Change(
                BID + "consider",
                "len(normal) >= cluster.promises:",
                "len(normal) + 1 >= cluster.promises:",
            ),
        ),
        weather=(("depose_every", 0.7),),
    ),
    Mutant(
        "recovering members vote",
        "only promises of NORMAL members are counted",
        (
            Change(
                BID + "consider",
                "normal = {m: p for m, p in self.proms.items() if p.normal}",
                "normal = dict(self.proms)",
            ),
        ),
    ),
    Mutant(
        "promise of ZooKeeper ignored at boot",
        "boot: promised = the epoch in ZooKeeper",
        (Change(REPLICA + "__init__", "self.promised = node.epoch", "self.promised = 0"),),
        trace="boot_beside_an_election",
    ),
    Mutant(
        "best tail by length alone",
        "best = max by (last epoch, last index), never by length alone",
        (
            Change(
                BID + "_take_best",
                "(normal[m].last_epoch, normal[m].last, m == r.ctx.me)",
                "(normal[m].last, m == r.ctx.me)",
            ),
        ),
        trace="longer_but_older_tail",
    ),
    Mutant(
        "own tail is good enough",
        "the best tail of T promises is taken over before opening",
        (Change(BID + "_take_best", "if best == r.ctx.me or", "if True or"),),
    ),
    Mutant(
        "truncate before fetch",
        "staged, then swapped in one step: never truncate first",
        (
            Change(
                BID + "_take_best",
                "self.touched = r.ctx.now",
                "self.touched = r.ctx.now\n        r.truncate(r.commit)",
            ),
        ),
        trace="fetch_that_is_never_answered",
        members=5,
        faults=2,
    ),
    Mutant(
        "fetched tail taken as it comes",
        "FETCH is answered only under its promise, and staging ends at what was reported",
        (
            Change(
                TAKEOVER + "on_fetch",
                "if message.epoch != replica.promised or replica.promised_to != peer:",
                "if False:",
            ),
            Change(
                BID + "on_fetched",
                "elif last == prom.last and self.staged[-1].epoch == prom.last_epoch:",
                "elif True:",
            ),
        ),
        trace="fetch_from_a_member_that_moved_on",
        members=5,
        faults=2,
    ),
    Mutant(
        "everything found is committed",
        "the tail of an older epoch is committed only behind the NOOP of the new one",
        (
            Change(
                BID + "_open",
                "committed = max(commits.values(), default=0)",
                "committed = r.log.last",
            ),
        ),
    ),
)

COPIES = (
    Mutant(
        "one copy too few",
        "Q = f + 1 copies before acknowledging",
        (Change(CLUSTER + "copies", "return self.faults + 1", "return self.faults"),),
        members=5,
        faults=2,
    ),
    Mutant(
        "acknowledge the end of the log",
        "ACK names the end of what this APP proved, never the end of the log",
        (
            Change(
                REPLICA + "on_app",
                "ctx.send(peer, Ack(self.g, self.floor, epoch, proved))",
                "ctx.send(peer, Ack(self.g, self.floor, epoch, self.log.last))",
            ),
        ),
        trace="tail_that_proves_nothing",
    ),
    Mutant(
        "old epochs committed by counting",
        "an entry of an older epoch is never committed by counting its copies",
        (
            Change(
                LEADING + "count",
                "held > replica.commit and replica.log.epoch_at(held) == self.epoch",
                "held > replica.commit",
            ),
        ),
        trace="counting_an_old_entry",
        members=5,
        faults=2,
    ),
    Mutant(
        "follower commits an old entry",
        "Q = 2: a follower commits at once only an entry of the present epoch",
        (
            Change(
                REPLICA + "on_app",
                "proved > self.commit and self.log.epoch_at(proved) == epoch",
                "proved > self.commit",
            ),
        ),
        trace="following_an_old_entry",
    ),
    Mutant(
        "no barrier at the opening",
        "an epoch opens with a NOOP; nothing of it commits before",
        (
            Change(BID + "_open", "r.leading.append_control(NOOP)", "r.leading.changed()"),
            Change(
                LEADING + "count",
                "held > replica.commit and replica.log.epoch_at(held) == self.epoch",
                "held > replica.commit",
            ),
            Change(
                REPLICA + "on_app",
                "proved > self.commit and self.log.epoch_at(proved) == epoch",
                "proved > self.commit",
            ),
        ),
        trace="following_an_old_entry",
    ),
    Mutant(
        "acknowledgements of an earlier epoch count",
        "ACK counts only in its own epoch",
        (Change(LEADING + "on_ack", "message.epoch != self.epoch or", ""),),
        trace="acknowledgement_of_an_earlier_epoch",
    ),
    Mutant(
        "an earlier life's copies count",
        "SREQ of a later boot clears match; a later boot replaces the earlier one",
        (
            Change(LEADING + "forget_follower", "self.followers[peer].match = 0", "pass"),
            Change(LEADING + "on_sync_req", "follower.match = 0", "pass"),
        ),
        trace="copy_of_a_life_that_is_over",
    ),
    Mutant(
        "an earlier life is listened to",
        "PROM and ACK count only from the latest known boot",
        (
            Change(
                MEMBER + "_on_received", "peer is None or event.boot < peer.boot", "peer is None"
            ),
            Change(LEADING + "forget_follower", "self.followers[peer].match = 0", "pass"),
        ),
        trace="two_processes_with_one_id",
    ),
    Mutant(
        "the winner does not look who lives",
        "the winner reads /members before it counts anything",
        (
            Change(
                ELECTIONS + "_answer",
                "self.on_boots(dict(result.boots))",
                "pass",
            ),
        ),
        trace="two_processes_with_one_id",
    ),
    Mutant(
        "epochs read before the registration",
        "boot: register, sync, THEN read the epochs",
        (
            Change(
                BOOT + "boot",
                "registered = yield from register",
                "nodes = yield from read_many([paths.group(g) for g in range(groups)])\n"
                "    registered = yield from register",
            ),
            Change(
                BOOT + "boot",
                "\n    nodes = yield from read_many("
                "[paths.group(g) for g in range(groups)])\n    boots",
                "\n    boots",
            ),
        ),
        trace="election_while_a_member_registers",
    ),
)

COMMITS = (
    Mutant(
        "commit beyond what was proved",
        "COMMIT: advance(min(c, verified[E]))",
        (
            Change(
                REPLICA + "on_commit",
                "min(message.idx, self.verified)",
                "min(message.idx, self.log.last)",
            ),
        ),
        members=5,
        faults=2,
        trace="commit_over_a_foreign_tail",
    ),
    Mutant(
        "proof outlives its epoch",
        "verified is kept per epoch",
        (Change(REPLICA + "promise", "self.verified = 0", "pass"),),
        members=5,
        faults=2,
        trace="commit_over_a_foreign_tail",
    ),
    Mutant(
        "commit of the coordinator taken as one's own",
        "c = min(leader commit, end of what this APP proved)",
        (
            Change(
                REPLICA + "on_app",
                "committed = min(message.commit, proved)",
                "committed = min(message.commit, self.log.last)",
            ),
        ),
        trace="tail_of_a_zombie",
    ),
    Mutant(
        "no match needed",
        "no match at prev: HINT",
        (
            Change(
                REPLICA + "_store",
                "prev > log.last or log.epoch_at(prev) != message.prev_epoch",
                "prev > log.last",
            ),
        ),
        weather=(("depose_every", 0.7),),
    ),
    Mutant(
        "conflicts stay",
        "on an epoch conflict truncate and append",
        (
            Change(
                REPLICA + "_store",
                "idx > log.last or log.epoch_at(idx) != entry.epoch",
                "idx > log.last",
            ),
        ),
    ),
    Mutant(
        "delivered before it is committed",
        "advance is the only place that delivers",
        (
            Change(
                LEADING + "_append",
                "replica.log.append(entry)",
                "replica.log.append(entry)\n"
                "    from coordinator.events import Delivered\n"
                "    early = Delivered(replica.g, replica.log.last, [entry])\n"
                "    replica.ctx.ready.delivered.append(early)",
            ),
        ),
    ),
    Mutant(
        "acknowledged before it is committed",
        "acknowledgements are released by advance only",
        (
            Change(
                LEADING + "_append",
                "replica.log.append(entry)",
                "replica.log.append(entry)\n    replica.contact.settle([entry])",
            ),
        ),
    ),
    Mutant(
        "acknowledged by publisher alone",
        "an answer names the entry that is committed, not another one",
        (
            Change(
                CONTACT + "settle",
                "wait = waiting.pop((entry.topic, entry.pid, entry.pseq), None)",
                "key = next((k for k in waiting if k[:2] == (entry.topic, entry.pid)), None)\n"
                "        wait = waiting.pop(key, None)",
            ),
            Change(CONTACT + "settle", "if wait.item.payload == entry.payload:", "if True:"),
        ),
    ),
    Mutant(
        "an installed state acknowledges everything",
        "after an install only what the state shows is acknowledged",
        (
            Change(
                CONTACT + "settle_installed",
                "if known is None or known.pseq < key[2]:",
                "if known is None:",
            ),
        ),
    ),
)

TRANSFERS = (
    Mutant(
        "normal before the target",
        "all chunks and staging >= target: swap, NORMAL",
        (
            Change(
                INCOMING + "_finish",
                "if final is None or last < final.target:",
                "if final is None:",
            ),
        ),
        trace="transfer_without_its_stream",
    ),
    Mutant(
        "normal before the last chunk",
        "all chunks must be there",
        (Change(INCOMING + "on_chunk", "if message.last:", "if True:"),),
    ),
    Mutant(
        "staging is acknowledged",
        "APP goes to staging: no ACK, no vote",
        (
            Change(
                INCOMING + "on_app",
                "self._finish()",
                "r, last = self.replica, self.base + len(self.staged)\n"
                "    r.ctx.send(peer, Ack(r.g, r.floor, self.epoch, last))\n"
                "    self._finish()",
            ),
        ),
    ),
    Mutant(
        "transfer of a lower epoch",
        "only L with epoch >= promised answers SREQ; SYNC below the promise is refused",
        (
            Change(LEADING + "on_sync_req", "if self.epoch < message.promised:", "if False:"),
            Change(DISPATCH + "_on_sync_head", "if message.epoch < replica.promised:", "if False:"),
            Change(
                REPLICA + "promise",
                'assert epoch >= self.promised, "a promise never falls"',
                "pass",
            ),
        ),
        trace="transfer_from_a_deposed_coordinator",
    ),
    Mutant(
        "transfer goes on under a higher promise",
        "higher promise: throw staging away",
        (Change(REPLICA + "promise", "self.incoming = None", "pass"),),
        trace="transfer_across_an_election",
    ),
    Mutant(
        "recover from anybody",
        "only L answers a RECOVERING member",
        (
            Change(
                REPLICA + "on_catch",
                "if not self.normal or self.role is not Role.FOLLOWER:",
                "if not self.normal and message.after == 0: self.become_normal()\n"
                "    if not self.normal or self.role is not Role.FOLLOWER:",
            ),
            Change(
                UPKEEP + "recover",
                "under_way = bool(busy or wanted)",
                "under_way = bool(busy or wanted)\n"
                "    for replica in wanted:\n"
                "        for peer in self.ctx.reached():\n"
                "            self.ctx.send(peer.member, CatchReq(replica.g, replica.floor, 0))",
            ),
        ),
    ),
    Mutant(
        "a late transfer takes back what was acknowledged",
        "c <= commit: nothing is installed; what is proved is not dropped",
        (
            Change(INCOMING + "_finish", "if r.normal and (", "if False and ("),
            Change(
                DISPATCH + "_on_sync_head",
                "if replica.normal and message.base <= replica.proved(message.epoch):",
                "if False:",
            ),
            Change(
                INCOMING + "on_app",
                "if self.replica.normal and self.base <= self.replica.proved(self.epoch):",
                "if False:",
            ),
        ),
        trace="late_transfer",
    ),
    Mutant(
        "chunks of another transfer",
        "a chunk belongs to its transfer",
        (
            Change(
                INCOMING + "on_chunk",
                "message.transfer != self.head.transfer or message.n != self.n or",
                "",
            ),
        ),
        trace="chunk_of_an_earlier_transfer",
    ),
    Mutant(
        "replay applies what the topic has",
        "replay skips idx <= the topic's idx",
        (Change(STATE + "_message", "elif idx <= record.idx:", "elif False:"),),
    ),
    Mutant(
        "publishers are not transferred",
        "dedup travels with its topic: it cannot be rebuilt from a cut log",
        (Change(TOPIC + "state", "publishers=self.publishers()", "publishers=[]"),),
    ),
    Mutant(
        "forgettings are not transferred",
        "a topic forgotten during a transfer is known to be forgotten",
        (
            Change(
                INCOMING + "_finish",
                "self.state.vacant = max(self.state.vacant, final.vacant)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "nobody is told of an install",
        "after an install every subscribed topic is re-attached",
        (Change(INCOMING + "_finish", "r.ctx.ready.installed.append(r.g)", "pass"),),
    ),
)

CATCH_UP = (
    Mutant(
        "catching up without a promise",
        "promised = max(promised, epoch of the last entry taken)",
        (Change(REPLICA + "on_catch", "if fresh[-1].epoch > self.promised:", "if False:"),),
        members=5,
        faults=2,
    ),
    Mutant(
        "uncommitted entries handed out",
        "CREQ is answered with committed entries",
        (
            Change(REPLICA + "on_catch_req", "[: self.commit - after]", ""),
            Change(
                REPLICA + "on_catch_req",
                "not self.log.base <= after < self.commit",
                "not self.log.base <= after < self.log.last",
            ),
        ),
        members=5,
        faults=2,
    ),
)
