"""Scenario files: blocks of commands, `----`, and the trace that they must leave.

A block ends with an empty line. Lines that begin with `#` explain, and stay where they are when a
file is rewritten. The commands (`word` positional, `key=value` optional):

    cluster a b c faults=1 [groups=1] [bounds of cache.retention.Retention, such as log_entries=4]
    start|crash|expire MEMBER...      processes, and their ZooKeeper sessions
    cut|join MEMBER MEMBER            links
    hold|unhold A>B [KIND...]         messages of that direction stay on the wire (* is anybody)
    deliver|drop A>B [KIND...]        what is on the wire there arrives, or is lost
    settle                            carry everything that is not held, until nothing moves
    run SECONDS                       let time pass in small steps, settling after each
    tick SECONDS [MEMBER...]          let time pass in one step and wake members; carry nothing
    zookeeper away|back               procedures wait, or go on
    publish MEMBER TOPIC PAYLOAD... [pid=P pseq=N] [size=BYTES]
    barrier MEMBER REF                drain MEMBER [now=1]          hand-over MEMBER TO
    recover MEMBER [without_quorum=1]
    show|log|topics MEMBER...         look at replicas, logs, topics
    quietly COMMAND                   the same without a trace: what other scenarios tell
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec

from cache.retention import Retention
from coordinator.cluster import Cluster
from coordinator.events import BarrierWanted, DrainWanted, Publish, RecoverWanted
from migratory.wire.peer import Publication
from tests.scenarios.stage import Hold, Stage
from tests.scenarios.telling import tell_entry, tell_record

MARK = "----"

Arguments = list[str]
Options = dict[str, str]


class Block(msgspec.Struct):
    """Commands and what they are expected to leave in the trace; comments stand among them."""

    lines: list[str]
    expected: list[str] | None  # None: a block of comments only

    @property
    def commands(self) -> list[str]:
        """What is to be done."""
        return [line for line in self.lines if line and not line.startswith("#")]

    def text(self, trace: list[str]) -> str:
        """The block as it should stand in the file."""
        if self.expected is None:
            return "\n".join(self.lines)
        return "\n".join([*self.lines, MARK, *(trace or ["(nothing)"])])


def read(path: Path) -> list[Block]:
    """The blocks of a file."""
    blocks = []
    for part in path.read_text().strip().split("\n\n"):
        lines = part.splitlines()
        if MARK in lines:
            at = lines.index(MARK)
            blocks.append(Block(lines[:at], lines[at + 1 :]))
        else:
            wordless = all(line.startswith("#") for line in lines)
            blocks.append(Block(lines, None if wordless else []))
    return blocks


class Play:
    """Carries the commands of a scenario out on a stage."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._last_ref = 0
        self._commands: dict[str, Callable[[Arguments, Options], None]] = {
            "cluster": self._cluster,
            "start": lambda names, _: self._each(names, self.stage.start),
            "crash": lambda names, _: self._each(names, self.stage.crash),
            "expire": lambda names, _: self._each(names, self.stage.expire),
            "cut": lambda names, _: self.stage.cut(*names),
            "join": lambda names, _: self.stage.join(*names),
            "hold": lambda words, _: self.stage.holds.append(Hold(words[0], words[1:])),
            "unhold": self._unhold,
            "deliver": lambda words, _: self.stage.deliver(words[0], words[1:]),
            "drop": lambda words, _: self.stage.drop(words[0], words[1:]),
            "settle": lambda *_: self.stage.settle(),
            "run": lambda words, _: self.stage.run(float(words[0])),
            "tick": lambda words, _: self.stage.tick(float(words[0]), words[1:]),
            "zookeeper": self._zookeeper,
            "publish": self._publish,
            "barrier": self._barrier,
            "drain": self._drain,
            "hand-over": self._hand_over,
            "recover": self._recover,
            "show": lambda names, _: self._each(names, self._show),
            "log": lambda names, _: self._each(names, self._log),
            "topics": lambda names, _: self._each(names, self._topics),
        }

    @property
    def stage(self) -> Stage:
        """The stage, once there is a cluster."""
        assert self._stage is not None, "a scenario begins with the command `cluster`"
        return self._stage

    def perform(self, block: Block) -> list[str]:
        """Carry out a block; the trace that it leaves."""
        for line in block.commands:
            self._do(*shlex.split(line))
        trace, self.stage.trace = self.stage.trace, []
        return trace

    def _do(self, name: str, *words: str) -> None:
        if name == "quietly":
            told = len(self.stage.trace)
            self._do(*words)
            del self.stage.trace[told:]
            return
        options = dict(word.split("=", 1) for word in words if "=" in word)
        self._commands[name]([word for word in words if "=" not in word], options)

    @staticmethod
    def _each(names: Arguments, action: Callable[[str], None]) -> None:
        for name in names:
            action(name)

    def _cluster(self, names: Arguments, options: Options) -> None:
        faults, groups = int(options.pop("faults")), int(options.pop("groups", "1"))
        bounds = msgspec.convert(options, Retention, strict=False)
        self._stage = Stage(Cluster("stage", tuple(names), faults, groups), bounds)

    def _unhold(self, words: Arguments, _: Options) -> None:
        wanted = Hold(words[0], words[1:])
        kept = [rule for rule in self.stage.holds if vars(rule) != vars(wanted)]
        assert len(kept) < len(self.stage.holds), f"nothing is held by {words}"
        self.stage.holds = kept

    def _zookeeper(self, words: Arguments, _: Options) -> None:
        self.stage.keeper_away = words[0] == "away"
        self.stage.errands()

    def _publish(self, words: Arguments, options: Options) -> None:
        name, topic, *payloads = words
        pid, pseq = options.get("pid", ""), int(options.get("pseq", "0"))
        items = []
        for n, payload in enumerate(payloads):
            self._last_ref += 1
            padded = payload.ljust(int(options.get("size", "0")), ".").encode()
            items.append(Publication(topic, padded, 0, pid, pseq + n if pid else 0, self._last_ref))
        self.stage.give(self.stage.lives[name], Publish(items))

    def _barrier(self, words: Arguments, _: Options) -> None:
        self.stage.give(self.stage.lives[words[0]], BarrierWanted(0, int(words[1])))

    def _drain(self, words: Arguments, options: Options) -> None:
        self.stage.give(self.stage.lives[words[0]], DrainWanted("now" in options))

    def _hand_over(self, words: Arguments, _: Options) -> None:
        life = self.stage.lives[words[0]]
        life.member.balance.hand_over(life.replica(), words[1])
        self.stage.tick(0.0, [words[0]])

    def _recover(self, words: Arguments, options: Options) -> None:
        wanted = RecoverWanted([0], "without_quorum" in options)
        self.stage.give(self.stage.lives[words[0]], wanted)

    def _show(self, name: str) -> None:
        replicas = self.stage.lives[name].member.replicas
        self.stage.trace += [f"{name} {replica!r}" for replica in replicas]

    def _log(self, name: str) -> None:
        log = self.stage.lives[name].replica().log
        entries = [tell_entry(idx, log.entry(idx)) for idx in range(log.base + 1, log.last + 1)]
        self.stage.trace.append(f"{name} log after {log.base}@{log.base_epoch}: {entries}")

    def _topics(self, name: str) -> None:
        topics = self.stage.lives[name].replica().state.topics
        self.stage.trace += [f"{name} {tell_record(*each)}" for each in topics.items()]
