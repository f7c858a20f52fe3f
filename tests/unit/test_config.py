"""The configuration file: what is read, what is refused, and what members must agree on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache.retention import Retention
from coordinator.cluster import Cluster
from migratory.config import Config, cfg_bytes, config_hash, load, parse, split_address
from migratory.errors import ConfigError

CLUSTER = """
[cluster]
name = "example"
faults = 1
zookeeper = "zk1:2181,zk2:2181,[fd00::1]:2181/some/where"
"""
MEMBERS = """
[[cluster.member]]
id = "a"
peer = "10.0.0.1:8900"
client = "10.0.0.1:8800"
[[cluster.member]]
id = "b"
peer = "[fd00::2]:8900"
client = "[fd00::2]:8800"
[[cluster.member]]
id = "c"
peer = "c.example:8900"
client = "c.example:8800"
"""
OWN = """
[member]
id = "a"
"""
GOOD = CLUSTER + MEMBERS + OWN


def faults_of(text: str, member: str | None = None) -> dict[str, str]:
    """What is wrong with a text, by key."""
    with pytest.raises(ConfigError) as caught:
        parse(text, member=member)
    return {fault.key: f"{fault.wrong}; {fault.remedy}" for fault in caught.value.faults}


def changed(old: str, new: str) -> str:
    """The good configuration with one thing changed."""
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def test_a_short_file_is_enough(tmp_path: Path) -> None:
    """Everything but the cluster and the member's id has a default."""
    file = tmp_path / "a.toml"
    file.write_text(GOOD)
    config = load(file)
    assert config.cluster.facts() == Cluster("example", ("a", "b", "c"), 1, 100, 4.0)
    assert (config.member.id, config.member.shards) == ("a", 0)
    assert (config.limits.payload, config.limits.frame) == (64 << 10, 1 << 20)
    assert config.history.retention() == Retention()
    assert config.admin.address == "127.0.0.1:9000"
    assert config.trace.mode == "off"
    assert config.cluster.member("b").client == "[fd00::2]:8800"


def test_one_member_is_a_cluster() -> None:
    """N = 1, f = 0 is allowed: that is how development begins."""
    text = (
        CLUSTER.replace("faults = 1", "faults = 0")
        + MEMBERS.partition('[[cluster.member]]\nid = "b"')[0]
        + OWN
    )
    facts = parse(text).cluster.facts()
    assert (len(facts.members), facts.copies, facts.promises) == (1, 1, 1)


def test_one_file_can_serve_all_members() -> None:
    """A member named on the command line takes the place of the one in the file."""
    assert parse(GOOD, member="c").member.id == "c"
    assert parse(CLUSTER + MEMBERS, member="c").member.id == "c"
    assert faults_of(GOOD, member="d").keys() == {"member.id"}


def test_ten_mistakes_are_reported_at_once() -> None:
    """An operator mends the file once: each mistake comes with its key and a remedy."""
    text = """
        colour = "red"
        [cluster]
        name = "No Capitals"
        faults = 2
        groups = 0
        zookeeper = "zk1"
        [[cluster.member]]
        id = "a"
        peer = "10.0.0.1:8900"
        client = "10.0.0.1:8900"
        [[cluster.member]]
        id = "a"
        peer = "10.0.0.2:99999"
        [[cluster.member]]
        id = "c"
        peer = "0.0.0.0:8900"
        client = "10.0.0.3:8800"
        [member]
        id = "z"
        shards = "two"
        [history]
        max_mesages = 10
        last_value = 1
        [limits]
        payload = 2000000
        [trace]
        mode = "loud"
        [admin]
        address = 9000
    """
    faults = faults_of(text)
    assert faults.keys() == {
        "colour", "cluster.name", "cluster.faults", "cluster.groups", "cluster.zookeeper",
        "cluster.member[1].client", "cluster.member[2].id", "cluster.member[2].peer",
        "cluster.member[2].client", "cluster.member[3].peer", "member.id", "member.shards",
        "history.max_mesages", "history.last_value", "history.topic_bytes", "limits.frame",
        "limits.outbox", "trace.mode", "admin.address",
    }  # fmt: skip
    assert faults["cluster.faults"] == (
        "3 members cannot survive 2 faults; list 5 or more, or say faults = 1"
    )
    assert faults["history.max_mesages"] == "there is no such key; did you mean max_messages?"
    assert (
        faults["cluster.member[2].id"] == "a is used by cluster.member[1].id too; use another one"
    )
    assert faults["member.id"] == "z is not in the cluster; use one of: a, c"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('name = "example"', 'name = "example\\n"', "cluster.name"),
        ("faults = 1", "faults = true", "cluster.faults"),
        ("faults = 1", "faults = -1", "cluster.faults"),
        ("faults = 1", "faults = 1\nsession = nan", "cluster.session"),
        ("faults = 1", "faults = 1\nsession = inf", "cluster.session"),
        ("faults = 1", "", "cluster.faults"),
        ("/some/where", ",", "cluster.zookeeper"),
        ("10.0.0.1:8900", "10.0.0.1", "cluster.member[1].peer"),
        ("10.0.0.1:8900", "10.0.0.1:0", "cluster.member[1].peer"),
        ("10.0.0.1:8900", "fd00::1:8900", "cluster.member[1].peer"),
        ("10.0.0.1:8900", "[::]:8900", "cluster.member[1].peer"),
        ("10.0.0.1:8900", "c.example:8900", "cluster.member[3].peer"),
        (OWN, OWN + '[admin]\naddress = "10.0.0.1:8800"', "admin.address"),
        (OWN, OWN + "[history]\ntopic_ttl = 60", "history.topic_ttl"),
        (OWN, OWN + "[history]\ngroup_bytes = 2048", "history.group_bytes"),
        (OWN, "", "member.id"),
        (OWN, "[member]\nid = 3", "member.id"),
        (OWN, OWN + "[[limits]]\npayload = 2048", "limits"),
        (MEMBERS, "", "cluster.member"),
        (MEMBERS, "member = []", "cluster.member"),
        (MEMBERS, "member = [3]", "cluster.member[1]"),
    ],
)
def test_each_mistake_is_found(old: str, new: str, key: str) -> None:
    """Wrong types, ranges, addresses, names and bounds are reported at their keys."""
    assert key in faults_of(changed(old, new))


def test_a_trace_needs_a_place() -> None:
    """Unless it is off, `trace.directory` is required, which is said with all other mistakes."""
    faults = faults_of(GOOD + '[trace]\nmode = "full"\nsample = 0\nrun = ""\nfiles = "many"')
    assert faults.keys() == {"trace.directory", "trace.sample", "trace.run", "trace.files"}
    assert faults["trace.directory"].startswith("it is missing, with mode = 'full'; write the path")
    trace = parse(GOOD + '[trace]\nmode = "sampled"\ndirectory = "t"\nsample = 9').trace
    assert (trace.mode, trace.directory, trace.run, trace.sample) == ("sampled", "t", "run", 9)
    assert parse(GOOD + "[trace]\nsample = 9").trace.mode == "off"


def test_text_that_is_no_toml_is_a_config_error(tmp_path: Path) -> None:
    """Syntax, encoding and missing files are reported like all other mistakes."""
    assert faults_of("[cluster").keys() == {"syntax"}
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path in (tmp_path / "missing.toml", tmp_path, binary):
        with pytest.raises(ConfigError, match="one mistake in"):
            load(path)


def test_members_agree_whatever_the_order_of_their_files() -> None:
    """The order of members, own ids and local limits leave the cluster's fingerprint alone."""
    first, *others = MEMBERS.strip().split("[[cluster.member]]")[1:]
    reordered = CLUSTER + "".join(f"[[cluster.member]]{each}\n" for each in (*others, first))
    own = '[member]\nid = "b"\n[history]\nmax_messages = 7\n[limits]\nclients = 9'
    assert cfg_bytes(parse(reordered + own)) == cfg_bytes(parse(GOOD))


@pytest.mark.parametrize(
    "other",
    [
        changed("faults = 1", "faults = 0"),
        changed("faults = 1", "faults = 1\ngroups = 10"),
        changed("10.0.0.1:8800", "10.0.0.1:8801"),
        GOOD + "[history]\ndedup_ttl = 60",
        GOOD + "[history]\ntopic_ttl = 6000",
    ],
    ids=["faults", "groups", "address", "dedup_ttl", "topic_ttl"],
)
def test_what_must_be_equal_is_in_the_fingerprint(other: str) -> None:
    """Members that differ in what decisions depend on do not take each other for one cluster."""
    assert config_hash(parse(other)) != config_hash(parse(GOOD))
    assert cfg_bytes(parse(other)) != cfg_bytes(parse(GOOD))


def test_configurations_cannot_be_changed_after_reading() -> None:
    """A value that was checked stays as it was."""
    config: Config = parse(GOOD)
    with pytest.raises(AttributeError):
        config.cluster.groups = 7  # type: ignore[misc]


def test_addresses_are_split() -> None:
    """Brackets belong to the notation, not to the host."""
    assert split_address("[fd00::2]:8900") == ("fd00::2", 8900)
    assert split_address("c.example:8900") == ("c.example", 8900)
