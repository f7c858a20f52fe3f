"""Moving a group's state: chunks that can be repeated, a stream that is staged, one swap."""

from __future__ import annotations

import pytest

from coordinator.replica import Replica
from coordinator.transfer import Incoming, Outgoing
from migratory.wire.entry import NOOP, Entry
from migratory.wire.peer import App, Nack, Publication, SyncChunk, SyncHead
from tests.scenarios.stage import Stage
from tests.unit.decider_stage import entry, hears, hold, item, opened, publish


def recovering() -> Stage:
    """A cluster whose member c has just begun a transfer (base 2) and has no chunk yet."""
    stage = opened()
    publish(stage, "a", item())
    stage.settle()
    stage.crash("c")
    stage.start("c")
    hold(stage, "a>c", "SyncChunk", "App")
    stage.run(0.1)
    assert incoming(stage).base == 2
    stage.trace.clear()
    return stage


def incoming(stage: Stage) -> Incoming:
    """The transfer of c."""
    found = stage.lives["c"].replica().incoming
    assert found is not None
    return found


def final(target: int, transfer: int = 1, commit: int = 2) -> SyncChunk:
    """A last chunk without topics."""
    return SyncChunk(0, 1, 1, transfer, 0, [], True, target, commit, 0)


# ---- the coordinator's side ----------------------------------------------------------------------


def test_a_repeated_chunk_holds_the_same_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the topics have grown meanwhile; a chunk that was never announced is not given."""
    monkeypatch.setattr("coordinator.transfer.CHUNK_BYTES", 150)
    stage = opened()
    topics = [f"/topic/{n}" for n in range(5)]
    publish(stage, "a", *(Publication(topic, b"x" * 40) for topic in topics))
    stage.settle()
    replica = stage.lives["a"].replica()
    outgoing = Outgoing(replica, 1)
    assert outgoing.chunk(1) is None
    first = outgoing.chunk(0)
    publish(stage, "a", Publication("/topic/0", b"x" * 400))
    stage.settle()
    again = outgoing.chunk(0)
    assert first is not None
    assert again is not None
    assert [t.topic for t in first.topics] == [t.topic for t in again.topics] == topics[:1]
    names = [t.topic for n in range(1, 5) if (c := outgoing.chunk(n)) for t in c.topics]
    assert names == topics[1:]


def test_a_topic_that_was_forgotten_meanwhile_is_left_out() -> None:
    """The last chunk tells of it through `vacant`."""
    stage = opened()
    publish(stage, "a", item())
    stage.settle()
    replica = stage.lives["a"].replica()
    outgoing = Outgoing(replica, 1)
    del replica.state.topics["/t"]
    chunk = outgoing.chunk(0)
    assert chunk is not None
    assert (chunk.topics, chunk.last) == ([], True)


# ---- the receiving side --------------------------------------------------------------------------


def test_a_swap_waits_for_the_whole_stream() -> None:
    """All chunks are there, and entries up to the target: then and only then."""
    stage = recovering()
    c = stage.lives["c"].replica()
    hears(stage, "c", "a", final(4))
    assert not c.normal
    hears(stage, "c", "a", App(0, 1, 1, 2, 1, 2, [entry(1, 5)]))
    assert not c.normal
    noop = Entry(1, NOOP, 0, 0)
    assert "c > a Ack epoch=1 idx=4" in hears(stage, "c", "a", App(0, 1, 1, 3, 1, 2, [noop]))
    assert c.normal


def test_a_swap_commits_what_was_committed_there() -> None:
    """With three copies to a commit, the coordinator and this member are not enough."""
    stage = opened("abcde", faults=2)
    coordinator, name = "d", "a"
    publish(stage, coordinator, item())
    stage.settle()
    stage.crash(name)
    stage.start(name)
    stage.run(0.05)
    for other in "bce":
        hold(stage, f"{coordinator}>{other}", "App")
    hold(stage, f"{coordinator}>{name}", "SyncChunk")
    publish(stage, coordinator, item(2))
    stage.holds.pop()
    stage.run(0.3)
    replica = stage.lives[name].replica()
    assert replica.normal
    assert (replica.log.last, replica.commit) == (3, 2)


def test_a_hole_in_the_stream_is_asked_for() -> None:
    """What follows a hole is not staged; what lies before the base is nothing to the transfer."""
    stage = recovering()
    assert hears(stage, "c", "a", App(0, 1, 1, 4, 1, 2, [entry(1, 9)])) == [
        "c > a Hint epoch=1 commit=2"
    ]
    assert hears(stage, "c", "a", App(0, 1, 1, 0, 0, 2, [Entry(1, NOOP, 0, 0)])) == []
    assert incoming(stage).staged == []
    hears(stage, "c", "a", App(0, 1, 1, 1, 1, 2, [entry(1, 1), entry(1, 2)]))
    assert len(incoming(stage).staged) == 1
    hears(stage, "c", "a", App(0, 1, 1, 1, 1, 2, [entry(1, 1), entry(1, 2)]))
    assert len(incoming(stage).staged) == 1


def test_chunks_of_another_transfer_are_not_mixed_in() -> None:
    """Nor are repeated ones, or those of somebody else."""
    stage = recovering()
    hears(stage, "c", "a", final(2, transfer=7))
    hears(stage, "c", "b", final(2))
    hears(stage, "c", "a", SyncChunk(0, 1, 1, 1, 3, [], True, 2, 2, 0))
    assert incoming(stage).final is None
    hears(stage, "b", "a", final(2))  # it has no transfer at all
    assert stage.lives["b"].replica().incoming is None


def test_an_app_of_a_higher_epoch_voids_a_transfer() -> None:
    """Its coordinator is another one; the transfer begins again there."""
    stage = recovering()
    hears(stage, "c", "b", App(0, 1, 5, 2, 1, 2, []))
    assert stage.lives["c"].replica().incoming is None
    assert not stage.lives["c"].replica().normal


def test_a_stream_of_another_epoch_voids_a_transfer_by_itself() -> None:
    """Even where the promise did not."""
    stage = recovering()
    transfer = incoming(stage)
    assert not transfer.on_app("a", App(0, 1, 5, 2, 1, 2, []))
    assert stage.lives["c"].replica().incoming is None


def test_a_dead_transfer_begins_again() -> None:
    """It asks again, ever more seldom; after five seconds all is thrown away and begins anew.

    A slow link may carry the chunk already: what is asked for twice comes twice.
    """
    stage = recovering()
    hold(stage, "a>c", "SyncHead")
    stage.run(4.0)
    assert sum("SyncPull" in line for line in stage.trace) == 3
    assert not any("SyncReq" in line for line in stage.trace)
    stage.run(1.5)
    assert any("c > a SyncReq" in line for line in stage.trace)


def test_a_stream_that_stops_before_its_target_is_asked_for() -> None:
    """The chunks are all there: a hint says where to go on."""
    stage = recovering()
    hears(stage, "c", "a", final(5))
    stage.run(0.7)
    assert "c > a Hint epoch=1 commit=2" in stage.trace


def test_a_head_below_the_promise_meets_the_fence() -> None:
    """A transfer is a coordinator's word like any other."""
    stage = recovering()
    stage.lives["c"].replica().promise(4, "b")
    told = hears(stage, "c", "a", SyncHead(0, 1, 1, 9, 2, 1, 0))
    assert told == ["c > a Nack floor=1 promised=4"]


def test_late_heads_do_not_begin_anything() -> None:
    """One that was overtaken, or that brings what a NORMAL member has, is not answered."""
    stage = recovering()
    assert hears(stage, "c", "a", SyncHead(0, 1, 1, 1, 2, 1, 0)) == []
    assert hears(stage, "c", "a", SyncHead(0, 1, 1, 2, 2, 1, 0)) == [
        "c > a SyncPull epoch=1 transfer=2 n=0"
    ]
    assert hears(stage, "b", "a", SyncHead(0, 1, 1, 2, 2, 1, 0)) == []
    assert stage.lives["b"].replica().incoming is None


def late_transfer(stage: Stage) -> tuple[Replica, Incoming]:
    """A NORMAL member b with a transfer from a base that it has not reached."""
    hold(stage, "a>b")
    hears(stage, "b", "a", SyncHead(0, 1, 1, 3, 6, 1, 0))
    replica = stage.lives["b"].replica()
    assert replica.incoming is not None
    return replica, replica.incoming


def test_a_member_that_passed_the_transfers_base_by_itself_drops_it() -> None:
    """The stream goes on where the member is."""
    stage = opened()
    replica, transfer = late_transfer(stage)
    replica.verified = 6
    assert not transfer.on_app("a", App(0, 1, 1, 1, 1, 1, [entry(1, 1)]))
    assert replica.incoming is None


@pytest.mark.parametrize("passed", ["commit", "verified"])
def test_a_late_transfer_takes_nothing_away(passed: str) -> None:
    """What was acknowledged or delivered here stays, whatever a transfer would put in its place."""
    stage = opened()
    replica, transfer = late_transfer(stage)
    setattr(replica, passed, 9)
    transfer.on_chunk(SyncChunk(0, 1, 1, 3, 0, [], True, 6, 6, 0))
    assert replica.incoming is None
    assert replica.log.base == 0
    assert not any("replaces" in line for line in stage.trace)


def test_a_nack_of_a_transfer_ends_the_coordinator() -> None:
    """The coordinator learns from the fence that it is none any more."""
    stage = recovering()
    hears(stage, "a", "c", Nack(0, 1, 4))
    assert stage.lives["a"].replica().leading is None


@pytest.mark.parametrize("every", [0.1, 0.4, 2.0])
def test_a_new_link_begins_a_transfer_anew(every: float) -> None:
    """The coordinator has given up what the old link carried, though its stream goes on."""
    stage = recovering()
    c = stage.lives["c"].replica()
    stage.cut("a", "c")
    stage.join("a", "c")
    stage.holds.clear()
    for pseq in range(2, 2 + round(2.0 / every)):
        publish(stage, "a", item(pseq))
        stage.run(every)
    assert c.normal
    assert c.log.last == stage.lives["a"].replica().log.last


def test_a_stream_that_goes_on_does_not_keep_a_dead_transfer_alive() -> None:
    """Whoever gives a transfer up does not say so: without its chunks it begins again."""
    stage = recovering()
    c, a = stage.lives["c"].replica(), stage.lives["a"].replica()
    stage.drop("a>c", ["SyncChunk"])
    assert a.leading is not None
    a.leading.followers["c"].outgoing = None
    stage.holds.clear()
    for pseq in range(2, 30):
        publish(stage, "a", item(pseq))
        stage.run(0.2)
    assert c.normal
    assert c.log.last == a.log.last
