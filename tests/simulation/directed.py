"""Traces that random weather is too slow to find, each ready to show one broken rule.

A trace moves a cluster by hand through the one window in which a rule matters. With the rule in
place it ends quietly; without it the checker raises a violation. Members are called A, B, C... in
the stories and m0, m1, m2... in the code.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.events import RecoverWanted
from coordinator.keeper import Create, KeeperOp, Multi
from migratory.wire.peer import (
    Ack,
    App,
    Catch,
    Commit,
    Fetch,
    Fetched,
    Hint,
    Preq,
    Prom,
    SyncChunk,
    SyncHead,
    SyncPull,
    SyncReq,
)
from tests.simulation.stage import Stage

A, B, C, D, E = "m0", "m1", "m2", "m3", "m4"


# ---- promises ------------------------------------------------------------------------------------


def boot_beside_an_election() -> None:
    """B promises C's epoch and crashes; its next life must not help A's older epoch."""
    s = Stage()
    s.open(A)
    s.stand(C)
    s.deliver(Preq, to=B)
    promise = s.lose(Prom, frm=B)[0]
    s.lose()
    s.crash(B)
    s.boot(B, links=[A])
    s.inject(B, A, SyncReq(0, 1, s.replica(B).promised))
    s.between(A, B)
    s.publish(A, 1)
    s.between(A, B)
    s.arrive(promise)


def longer_but_older_tail() -> None:
    """A's tail is longer, B's is of a later epoch and committed."""
    s = Stage()
    s.open(A)
    for pseq in (1, 2, 3):
        s.publish(A, pseq)
    s.lose()
    s.stand(C)
    s.lose(to=A)
    s.between(B, C)
    s.publish(C, 1, pid="other-publisher")
    s.between(B, C)
    s.lose()
    s.crash(C)
    s.stand(A)
    s.between(A, B)


def fetch_that_is_never_answered() -> None:
    """B drops its tail for D's, which it never gets; then only dead members had the entry."""
    s = Stage(5, 2)
    s.open(A)
    s.publish(A, 1)
    s.flow(App, to=B)
    s.flow(App, to=D)
    s.flow(Ack)
    s.lose()
    s.stand(D)
    s.lose(to=(A, B))
    s.flow((Preq, Prom))
    assert s.leads(D)
    s.lose()
    s.stand(B)
    s.lose(to=(A, E))
    s.flow((Preq, Prom))
    s.lose()
    s.crash(D, noticed=True)
    s.crash(A)
    s.tick(B, 1.5)
    s.stand(C)
    s.between(B, C, E)


def fetch_from_a_member_that_moved_on() -> None:
    """D promised a later epoch since B asked it for its tail: what it holds is not B's to take."""
    s = Stage(5, 2)
    s.open(A)
    s.publish(A, 1)
    s.flow(App, to=D)
    s.lose()
    s.stand(B)
    s.lose(to=(A, E))
    s.flow((Preq, Prom))
    fetch = s.lose(Fetch, frm=B)[0]
    s.stand(E)
    s.lose(to=(A, B))
    s.between(C, D, E)
    assert s.leads(E)
    s.arrive(fetch)
    s.flow(Fetched)


# ---- copies --------------------------------------------------------------------------------------


def counting_an_old_entry() -> None:
    """Three members hold an entry of epoch 1; one of epoch 2 may still replace it."""
    s = Stage(5, 2)
    s.open(A)
    s.publish(A, 1)
    s.flow(App, to=B)
    s.lose()
    s.stand(E)
    s.lose(to=(A, B))
    s.flow((Preq, Prom))
    assert s.leads(E)
    s.lose()
    s.room = 1
    s.stand(A)
    s.lose(to=(D, E))
    s.flow((Preq, Prom))
    assert s.leads(A)
    for peer in (B, C):
        first = s.flights(App, to=peer)[0]
        s.net.remove(first)
        s.arrive(first)
    s.flow(Ack)
    s.lose()
    s.stand(E)
    s.lose(to=(A, B))
    s.between(C, D, E)


def following_an_old_entry() -> None:
    """The coordinator and C hold an entry of epoch 1: one of epoch 2 may still replace it."""
    s = Stage()
    s.open(A)
    s.publish(A, 1)
    s.settle()
    s.publish(A, 2)
    s.lose()
    s.stand(B)
    s.lose(to=A)
    s.flow((Preq, Prom))
    assert s.leads(B)
    s.publish(B, 1, pid="other-publisher")
    s.lose()
    s.room = 1
    s.stand(A)
    s.lose(to=B)
    s.flow((Preq, Prom))
    assert s.leads(A)
    first = s.flights(App, to=C)[0]
    s.lose()
    s.arrive(first)
    s.lose()
    s.stand(B)
    s.lose(to=A)
    s.between(B, C)


def acknowledgement_of_an_earlier_epoch() -> None:
    """B acknowledged A's first epoch, then forgot that tail for C's; A leads again."""
    s = Stage(5, 2)
    s.open(A)
    s.publish(A, 1)
    s.publish(A, 2)
    s.flow(App, to=B)
    late = s.lose(Ack, frm=B)
    s.lose()
    s.stand(C)
    s.lose(to=(A, B))
    s.between(C, D, E)
    for app in s.lose(App, frm=C):
        if app.target.name != A:
            s.arrive(app)
    s.lose()
    s.stand(A)
    s.lose(to=(C, E))
    s.flow((Preq, Prom, Fetch, Fetched))
    assert s.leads(A)
    s.lose(to=B)
    s.between(A, D)
    for ack in late:
        s.arrive(ack)


def copy_of_a_life_that_is_over() -> None:
    """B acknowledged an entry and forgot it; A knows that and must not count B for it."""
    s = Stage(5, 2)
    s.open(A)
    s.publish(A, 1)
    s.flow(App, to=B)
    s.flow(Ack, frm=B)
    s.lose()
    s.crash(B)
    s.boot(B)
    s.lose()
    s.link(A, D)
    s.between(A, D)


def tail_of_a_zombie() -> None:
    """A holds entries of its own behind what B's first APP proves; B has committed other ones."""
    s = Stage(5, 2)
    s.open(A)
    s.publish(A, 1)
    s.flow(App, to=B)
    s.lose()
    s.publish(A, 2)
    s.publish(A, 3)
    s.lose()
    s.room = 1
    s.stand(B)
    s.lose(to=A)
    s.between(B, C, D)
    s.publish(B, 1, pid="other-publisher")
    s.publish(B, 2, pid="other-publisher")
    s.between(B, C, D)
    s.lose()
    s.link(A, B)
    s.deliver(App, to=A)  # behind what A has
    s.deliver(Hint)
    first = s.flights(App, to=A)[0]
    s.lose()
    s.arrive(first)
    s.flow(Ack)


def tail_that_proves_nothing() -> None:
    """A's own tail lies behind what B's first APP proves: it is no copy of what B has there."""
    s = Stage(5, 2)
    s.open(A)
    s.publish(A, 1)
    s.flow(App, to=B)
    s.lose()
    s.publish(A, 2)
    s.publish(A, 3)
    s.lose()
    s.room = 1
    s.stand(B)
    s.lose(to=A)
    s.flow((Preq, Prom))
    s.publish(B, 1, pid="other-publisher")
    s.lose(App, to=(D, E))
    s.between(B, C)
    first = s.flights(App, to=A)[0]
    s.lose()
    s.arrive(first)
    s.flow(Ack)


def two_processes_with_one_id() -> None:
    """B hangs and is replaced; the new life helps A, the old one wakes and promises to C."""
    s = Stage()
    s.open(A)
    s.lose()
    hanging = s.lives[B]
    s.boot(B, links=[A])
    s.inject(B, A, SyncReq(0, 1, s.replica(B).promised))
    s.between(A, B)
    s.publish(A, 1)
    s.between(A, B)
    s.lose()
    assert s.lives[C].links[B] is hanging
    s.stand(C)
    s.lose(to=A)
    s.flow((Preq, Prom))


def election_while_a_member_registers() -> None:
    """C wins while B's next life enters; B's earlier life, which C still counts, has promised."""
    s = Stage()
    s.open(A)
    s.lose()

    def registers(op: KeeperOp) -> bool:
        return isinstance(op, Multi) and any(
            isinstance(each, Create) and "/members/" in each.path for each in op.ops
        )

    booting = s.start(B).run(before=registers)
    s.stand(C)
    s.lose(to=A)
    s.flow(Preq)
    promises = s.lose(Prom)
    s.enter(booting.run(), links=[A])
    s.inject(B, A, SyncReq(0, 1, s.replica(B).promised))
    s.between(A, B)
    s.publish(A, 1)
    s.between(A, B)
    for promise in promises:
        s.arrive(promise)


# ---- commits -------------------------------------------------------------------------------------


def commit_over_a_foreign_tail() -> None:
    """B holds a tail of epoch 1 that was proved then; C's commit index speaks of other entries."""
    s = Stage(5, 2)
    s.open(A)
    s.publish(A, 1)
    s.publish(A, 2)
    s.flow(App, to=B)
    s.lose()
    s.stand(C)
    s.lose(to=A)
    s.deliver(Preq, to=B)
    s.lose(frm=B)
    s.between(C, D, E)
    s.publish(C, 1, pid="other-publisher")
    s.between(C, D, E)
    s.lose()
    s.inject(C, B, Commit(0, 1, 2, s.replica(C).commit))


# ---- transfers -----------------------------------------------------------------------------------


def transfer_without_its_stream() -> None:
    """B delivered an entry, forgot it and recovers; it must have it again before it is counted."""
    s = Stage()
    s.open(A)
    s.publish(A, 1)
    s.flow(App, to=B)
    s.lose()
    s.crash(B)
    s.boot(B)
    s.lose()
    s.inject(B, A, SyncReq(0, 1, s.replica(B).promised))
    s.flow((SyncHead, SyncPull, SyncChunk))
    s.lose()
    s.stand(C)
    s.lose(to=A)
    s.between(B, C)


def transfer_across_an_election() -> None:
    """B promises C's epoch while A's last chunk is under way to it."""
    s = Stage()
    s.open(A)
    s.crash(B)
    s.boot(B)
    s.lose()
    s.inject(B, A, SyncReq(0, 1, s.replica(B).promised))
    s.flow((SyncHead, SyncPull))
    s.stand(C)
    s.deliver(Preq, to=B)
    s.flow(SyncChunk)


def transfer_from_a_deposed_coordinator() -> None:
    """B boots when C has won an epoch that A does not know of; A's state is not for it any more."""
    s = Stage()
    s.open(A)
    s.stand(C)
    s.lose()
    s.crash(B)
    s.boot(B)
    s.lose()
    s.inject(B, A, SyncReq(0, 1, s.replica(B).promised))
    s.flow((SyncHead, SyncPull, SyncChunk))
    s.publish(A, 1)
    s.between(A, B)


def late_transfer() -> None:
    """B catches up from C while a transfer from A is under way, which then ends behind it."""
    s = Stage()
    s.open(A)
    for pseq in range(1, 31):
        s.publish(A, pseq)
        s.lose(to=B)
        s.between(A, C)
    s.link(A, B)
    s.flow((App, Hint, SyncHead, SyncPull))
    late = s.lose(SyncChunk)
    assert late
    for pseq in (31, 32):
        s.publish(A, pseq)
        s.lose(to=B)
        s.between(A, C)
    commit = s.replica(B).commit
    log = s.checker.history(0, 1).log
    entries = [log[idx] for idx in range(commit + 1, len(log) + 1)]
    s.inject(C, B, Catch(0, 1, commit, 1, entries))
    for chunk in late:
        s.arrive(chunk)


def chunk_of_an_earlier_transfer() -> None:
    """A chunk that was made before the present transfer began lacks what came in between."""
    s = Stage()
    s.open(A)
    s.crash(B)
    s.boot(B)
    s.lose()
    s.inject(B, A, SyncReq(0, 1, s.replica(B).promised))
    s.flow((SyncHead, SyncPull))
    late = s.lose(SyncChunk)
    s.publish(A, 1)
    s.lose(to=B)
    s.between(A, C)
    s.inject(B, A, SyncReq(0, 1, s.replica(B).promised))
    s.flow(SyncHead)
    for chunk in late:
        s.arrive(chunk)
    s.publish(A, 2)
    s.rest()


# ---- floors --------------------------------------------------------------------------------------


def cold_start_beside_a_normal_member() -> None:
    """B forgot everything and stands as if everybody had; A and C answer that they have not."""
    s = Stage()
    s.open(A)
    s.publish(A, 1)
    s.settle()
    s.crash(B)
    s.boot(B)
    s.stand(B)
    s.between(A, B, C)


def cold_start_without_everybody() -> None:
    """B and C forgot, A is cut off and holds everything: only an operator may give that up."""
    s = Stage()
    s.open(A)
    s.publish(A, 1)
    s.settle()
    s.crash(B)
    s.crash(C)
    s.boot(B, links=[])
    s.boot(C, links=[B])
    s.stand(B)
    s.between(B, C)


def floor_raised_too_late() -> None:
    """A's cold start is overtaken by B's, which opens; A's floor must not be written after that."""
    s = Stage()
    s.checker.loss_possible = True
    s.open(A)
    for name in (A, B, C):
        s.crash(name)
    for name in (A, B, C):
        s.boot(name)
    s.settle()
    s.stand(A)
    s.hold(A)
    s.settle()
    s.stand(B)
    s.between(B, C)
    s.between(A, B, C)
    s.release(A)
    s.stand(C)
    s.settle()


def floor_of_a_lost_history() -> None:
    """An operator gave up A and C, which were only cut off: their history is void."""
    s = Stage()
    s.open(A)
    s.publish(A, 1)
    s.lose(to=B)
    s.between(A, C)
    s.checker.loss_possible = True
    for name in (A, C):
        s.keeper.expire(s.lives[name])  # ZooKeeper does not know them any more
    s.step(B, RecoverWanted([0], without_quorum=True))
    s.member(B).elections.stand(
        s.replica(B), frozenset(s.cluster.members), accept_loss=RecoverWanted([0], True)
    )
    s.effects(s.lives[B])
    s.lose()
    s.tick(B, 1.2)
    s.lose()
    assert s.leads(B)
    for name in (A, C):
        s.keeper.open_session(s.lives[name])
    s.stand(A)
    s.between(A, C)
    s.link(A, B)
    s.between(A, B)


def empty_start_of_a_forgetful_member() -> None:
    """C held an entry of epoch 1 and forgot it; a stream from the beginning makes it no voter."""
    s = Stage(5, 2)
    for name in s.cluster.members:
        s.boot(name)
    s.lose()
    s.stand(A)
    s.flow((Preq, Prom))
    s.lose(App)
    for name in (B, C, D, E):
        s.link(A, name)
    s.flow(App)
    s.lose()
    s.publish(A, 1)
    s.flow(App, to=C)
    s.flow(App, to=D)
    s.flow(Ack)
    s.lose()
    s.crash(C)
    s.boot(C)
    s.lose()
    s.room = 1
    s.stand(D)
    s.lose(to=A)
    s.flow((Preq, Prom))
    assert s.leads(D)
    firsts = [f for f in s.flights(App, to=C) if f.message.prev == 0]  # type: ignore[union-attr]
    s.lose()
    for app in firsts[:1]:
        s.arrive(app)
    s.lose()
    s.crash(A)
    s.crash(D)
    s.stand(B)
    s.between(B, C, E)


def second_start_in_the_first_epoch() -> None:
    """C delivered an entry in the first epoch and forgot it; it cannot start empty in it again."""
    s = Stage()
    for name in s.cluster.members:
        s.boot(name)
    s.lose()
    s.stand(A)
    s.flow((Preq, Prom))
    s.flow(App)
    s.lose()
    s.publish(A, 1)
    s.flow(App, to=C)
    s.lose()
    s.crash(C)
    s.room = 1
    s.boot(C, links=[A])
    apps = s.flights(App, to=C)
    s.lose()
    for app in apps[:1]:
        s.arrive(app)
    s.lose()
    s.crash(A)
    s.stand(B)
    s.link(B, C)
    s.between(B, C)


Trace = Callable[[], None]

TRACES: dict[str, Trace] = {
    trace.__name__: trace
    for trace in (
        boot_beside_an_election,
        longer_but_older_tail,
        fetch_that_is_never_answered,
        fetch_from_a_member_that_moved_on,
        counting_an_old_entry,
        following_an_old_entry,
        acknowledgement_of_an_earlier_epoch,
        copy_of_a_life_that_is_over,
        tail_of_a_zombie,
        tail_that_proves_nothing,
        two_processes_with_one_id,
        election_while_a_member_registers,
        commit_over_a_foreign_tail,
        transfer_without_its_stream,
        transfer_across_an_election,
        transfer_from_a_deposed_coordinator,
        late_transfer,
        chunk_of_an_earlier_transfer,
        cold_start_beside_a_normal_member,
        cold_start_without_everybody,
        floor_raised_too_late,
        floor_of_a_lost_history,
        empty_start_of_a_forgetful_member,
        second_start_in_the_first_epoch,
    )
}
