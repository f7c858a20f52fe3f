"""The configuration file: TOML in, frozen values out, or every mistake in it at once.

An operator mends a file once, not once per mistake: each key is converted by itself, and the rules
between keys are looked at with whatever was readable. Unknown keys are mistakes, since a misspelt
limit would otherwise silently be the default.

Sizes are bytes and times are seconds here; the wire has integer milliseconds.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from cache.retention import Retention
from coordinator.cluster import Cluster
from migratory.errors import ConfigError, ConfigFault
from migratory.trace_files import FILE_BYTES, FILES
from migratory.wire.ids import MEMBER_ID

_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 (they are refused)

KIB = 1 << 10
MIB = 1 << 20

# The description of a type is the remedy that an operator reads; keep it an imperative clause.
Name = Annotated[
    str,
    Meta(
        pattern=rf"^{MEMBER_ID.pattern}\Z",
        description="use 1 to 32 of the characters a-z, 0-9 and '-'",
    ),
]
Address = Annotated[
    str, Meta(description="write host:port, such as 10.0.0.1:8900 or [fd00::1]:8900")
]
Servers = Annotated[
    str,
    Meta(
        description="write host:port of each ZooKeeper server, with commas, such as a:2181,b:2181"
    ),
]
Faults = Annotated[
    int, Meta(ge=0, le=10, description="say how many members may fail at once, 0 to 10")
]
Groups = Annotated[int, Meta(ge=1, le=4096, description="use 1 to 4096 groups; 100 suits most")]
Session = Annotated[float, Meta(ge=0.4, le=60, description="use 0.4 to 60 seconds; 4 suits most")]
Shards = Annotated[
    int, Meta(ge=0, le=0, description="use 0: this version serves connections in one process")
]
Count = Annotated[
    int, Meta(ge=1, le=1_000_000_000, description="use a whole number from 1 to 1000000000")
]
Bytes = Annotated[
    int, Meta(ge=1024, le=1 << 40, description="use a number of bytes from 1024 to 2^40")
]
Seconds = Annotated[
    float, Meta(gt=0, le=31_536_000, description="use seconds, more than 0 and at most a year")
]
Flag = Annotated[bool, Meta(description="write true or false")]
TraceMode = Annotated[
    Literal["off", "sampled", "full"], Meta(description='write "off", "sampled" or "full"')
]
TraceDirectory = Annotated[str, Meta(description="write the path of a directory on a local disk")]
TraceRun = Annotated[
    str, Meta(min_length=1, max_length=64, description="use 1 to 64 characters for the run's name")
]
TraceSample = Annotated[
    int, Meta(ge=1, le=10_000, description="keep one topic in so many, 1 to 10000")
]
# One message and one topic of a transfer must each fit into a frame between members (16 MiB).
PayloadBytes = Annotated[
    int, Meta(ge=1024, le=4 << 20, description="use a number of bytes from 1024 to 4194304")
]
TopicBytes = Annotated[
    int, Meta(ge=1024, le=8 << 20, description="use a number of bytes from 1024 to 8388608")
]


_KEPT = Retention()  # the cache's own defaults are the configuration's


def _ms(seconds: float) -> int:
    """Milliseconds; never none, since no time at all is not allowed above."""
    return max(1, round(seconds * 1000))


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts of a configuration are: frozen, and named when made."""


class MemberAddresses(Section, frozen=True, kw_only=True):
    """One `[[cluster.member]]`: where its peers and its clients reach it."""

    id: Name
    peer: Address
    client: Address


class ClusterConfig(Section, frozen=True, kw_only=True):
    """`[cluster]`: the same in the files of all members."""

    name: Name
    faults: Faults
    zookeeper: Servers
    members: tuple[MemberAddresses, ...] = msgspec.field(name="member")
    groups: Groups = 100
    session: Session = 4.0

    def facts(self) -> Cluster:
        """What the deciders know of the cluster."""
        ids = tuple(sorted(member.id for member in self.members))
        return Cluster(self.name, ids, self.faults, self.groups, self.session)

    def member(self, member_id: str) -> MemberAddresses:
        """The addresses of a member that is known to be in the cluster."""
        return next(member for member in self.members if member.id == member_id)


class MemberConfig(Section, frozen=True, kw_only=True):
    """`[member]`: which member this file is for, and how it uses its machine."""

    id: Name
    shards: Shards = 0


class HistoryConfig(Section, frozen=True, kw_only=True):
    """`[history]`: how much is kept. Only `dedup_ttl` and `topic_ttl` must agree on all members."""

    max_messages: Count = _KEPT.max_messages
    max_age: Seconds = _KEPT.max_age_ms / 1000
    topic_bytes: TopicBytes = _KEPT.topic_bytes
    group_bytes: Bytes = _KEPT.group_bytes
    last_value: Flag = _KEPT.last_value
    dedup_ttl: Seconds = _KEPT.dedup_ttl_ms / 1000
    topic_ttl: Seconds = _KEPT.topic_ttl_ms / 1000
    log_entries: Count = _KEPT.log_entries
    log_bytes: Bytes = _KEPT.log_bytes
    publishers_per_group: Count = _KEPT.publishers_per_group

    def retention(self) -> Retention:
        """The same bounds as the cache takes them, in milliseconds."""
        return Retention(
            max_messages=self.max_messages,
            max_age_ms=_ms(self.max_age),
            topic_bytes=self.topic_bytes,
            group_bytes=self.group_bytes,
            last_value=self.last_value,
            dedup_ttl_ms=_ms(self.dedup_ttl),
            topic_ttl_ms=_ms(self.topic_ttl),
            log_entries=self.log_entries,
            log_bytes=self.log_bytes,
            publishers_per_group=self.publishers_per_group,
        )


class LimitsConfig(Section, frozen=True, kw_only=True):
    """`[limits]`: what a stranger may ask of a member."""

    payload: PayloadBytes = 64 * KIB
    frame: Bytes = 1 * MIB
    subscriptions: Count = 10_000  # of one client
    outbox: Bytes = 1 * MIB  # of one client
    clients: Count = 19_000  # of one process
    handshake_timeout: Seconds = 10.0
    unanswered: Count = 1000  # publications of one client, before it is no longer read


class TraceConfig(Section, frozen=True, kw_only=True):
    """`[trace]`: the rows from which a run can be checked (docs/traces.md)."""

    mode: TraceMode = "off"
    directory: TraceDirectory = ""
    run: TraceRun = "run"
    sample: TraceSample = 100  # of mode "sampled"
    file_bytes: Bytes = FILE_BYTES
    files: Count = FILES


class AdminConfig(Section, frozen=True, kw_only=True):
    """`[admin]`: where health, status and metrics are answered."""

    address: Address = "127.0.0.1:9000"


class Config(Section, frozen=True, kw_only=True):
    """Everything that a member is told when it starts."""

    cluster: ClusterConfig
    member: MemberConfig
    history: HistoryConfig
    limits: LimitsConfig
    trace: TraceConfig
    admin: AdminConfig


# ---- reading ------------------------------------------------------------------------------------


def load(path: Path, member: str | None = None) -> Config:
    """Read a file; `member` takes the place of `member.id`, so that one file can serve all."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fault = ConfigFault("file", error.strerror or str(error), "name a file that can be read")
        raise ConfigError(str(path), [fault]) from error
    except UnicodeDecodeError as error:
        fault = ConfigFault("file", "it is not UTF-8 text", "save it as UTF-8")
        raise ConfigError(str(path), [fault]) from error
    return parse(text, str(path), member)


def parse(text: str, source: str = "configuration", member: str | None = None) -> Config:
    """Read a configuration from text, or raise a ConfigError with all that is wrong in it."""
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        fault = ConfigFault("syntax", str(error), "write valid TOML")
        raise ConfigError(source, [fault]) from error
    if member is not None and isinstance(raw.setdefault("member", {}), dict):
        raw["member"]["id"] = member
    reader = _Reader()
    draft = reader.section(Config, raw, "")
    _check_members(reader, draft)
    _check_own(reader, draft)
    _check_bounds(reader, draft)
    _check_trace(reader, draft)
    if reader.faults:
        raise ConfigError(source, reader.faults)
    config: Config = _build(Config, draft)
    return config


Draft = dict[str, Any]  # the readable values of a section by their names in the file


class _Reader:
    """Converts key by key and collects what is wrong."""

    def __init__(self) -> None:
        self.faults: list[ConfigFault] = []

    def fault(self, key: str, wrong: str, remedy: str) -> None:
        self.faults.append(ConfigFault(key, wrong, remedy))

    def section(self, kind: type[Section], raw: object, path: str) -> Draft:
        """Read a table: its known keys, and a fault for each of the others."""
        if not isinstance(raw, Mapping):
            self.fault(path, f"this is {_shown(raw)}, not a table", f"write it as [{path}]")
            return {}
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        prefix = f"{path}." if path else ""
        for key in [key for key in raw if key not in fields]:
            near = difflib.get_close_matches(key, fields, 1)
            remedy = f"did you mean {near[0]}?" if near else "known are: " + ", ".join(fields)
            self.fault(prefix + key, "there is no such key", remedy)
        draft = {}
        for key, field in fields.items():
            if key in raw or _inner(field.type) is not None:
                draft[key] = self._value(field.type, raw.get(key), prefix + key)
            elif field.default is not msgspec.NODEFAULT:
                draft[key] = field.default
            else:
                self.fault(prefix + key, "it is missing", _remedy(field.type))
        return {key: value for key, value in draft.items() if value is not None}

    def _value(self, kind: Any, raw: object, path: str) -> Any:
        inner = _inner(kind)
        if inner is None:
            return self._scalar(kind, raw, path)
        elif inner is kind:
            return self.section(inner, {} if raw is None else raw, path)
        elif isinstance(raw, list) and raw:
            return [self.section(inner, each, f"{path}[{i}]") for i, each in enumerate(raw, 1)]
        remedy = f"write one [[{path}]] table for each"
        wrong = "it is missing" if raw is None else f"this is {_shown(raw)}, not a list of tables"
        self.fault(path, wrong, remedy)
        return None

    def _scalar(self, kind: Any, raw: object, path: str) -> Any:
        try:
            value = msgspec.convert(raw, kind)
        except msgspec.ValidationError:
            self.fault(path, f"{_shown(raw)} is not allowed", _remedy(kind))
            return None
        wrong = None
        if kind is Address:
            wrong = _address_fault(value)
        elif kind is Servers:
            hosts = value.partition("/")[0].split(",")
            wrong = next((fault for host in hosts if (fault := _address_fault(host))), None)
        if wrong:
            self.fault(path, wrong, _remedy(kind))
            return None
        return value


def _inner(kind: Any) -> type[Section] | None:
    """The section that a field is, or is a list of; None for a plain value."""
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _remedy(kind: Any) -> str:
    """What to write for a value of this type."""
    return str(get_args(kind)[1].description)


def _shown(raw: object) -> str:
    """A value of the file as the operator wrote it, shortened."""
    text = str(raw).lower() if isinstance(raw, bool) else repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


def _build(kind: type[Any], draft: Draft) -> Any:
    """A section from a draft without faults."""
    values = {}
    for field in msgspec.structs.fields(kind):
        value, inner = draft[field.encode_name], _inner(field.type)
        if inner is not None:
            listed = isinstance(value, list)
            value = tuple(_build(inner, each) for each in value) if listed else _build(inner, value)
        values[field.name] = value
    return kind(**values)


# ---- rules between keys -------------------------------------------------------------------------


def split_address(address: str) -> tuple[str, int]:
    """Host and port of a valid address."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address_fault(address: str) -> str | None:
    """Say what is wrong with a host:port, or None."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        return f"{address!r} is not a host and a port"
    elif not 0 < int(match["port"]) < 65536:
        return f"{match['port']} is not a port, 1 to 65535"
    return None


def _check_members(reader: _Reader, draft: Draft) -> None:
    """Whether the cluster can keep its promise, and every member and address is one thing."""
    members: list[Draft] = draft.get("cluster", {}).get("member", [])
    faults = draft.get("cluster", {}).get("faults")
    if faults is not None and members and len(members) < 2 * faults + 1:
        reader.fault(
            "cluster.faults",
            f"{len(members)} members cannot survive {faults} faults",
            f"list {2 * faults + 1} or more, or say faults = {(len(members) - 1) // 2}",
        )
    _check_unique(reader, _values(members, "id"))
    places = _values(members, "peer", "client")
    _check_unique(reader, places)
    for key, place in places:
        if split_address(place)[0] in _EVERYWHERE:
            reader.fault(key, f"others cannot reach {place}", "write an address of this member")


def _check_own(reader: _Reader, draft: Draft) -> None:
    """Whether this member is one of the cluster and its ports are its own."""
    members: list[Draft] = draft.get("cluster", {}).get("member", [])
    me = draft.get("member", {}).get("id")
    admin = draft.get("admin", {}).get("address")
    ids = [value for _, value in _values(members, "id")]
    if me and members and len(ids) == len(members) and me not in ids:
        known = ", ".join(dict.fromkeys(ids))
        reader.fault("member.id", f"{me} is not in the cluster", f"use one of: {known}")
    mine = [member for member in members if member.get("id") == me]
    for key in ("peer", "client"):
        if admin and any(member.get(key) == admin for member in mine):
            reader.fault("admin.address", f"{admin} is my {key} address", "use another port")


def _values(members: list[Draft], *keys: str) -> list[tuple[str, str]]:
    """The readable values of some keys of all members, each with its path as people count."""
    return [
        (f"cluster.member[{i}].{key}", member[key])
        for i, member in enumerate(members, 1)
        for key in keys
        if key in member
    ]


def _check_unique(reader: _Reader, values: list[tuple[str, str]]) -> None:
    """A fault for each value that stands at an earlier key already."""
    first: dict[str, str] = {}
    for key, value in values:
        if first.setdefault(value, key) != key:
            reader.fault(key, f"{value} is used by {first[value]} too", "use another one")


_AT_MOST = (
    # Something that must fit into something else; a message has a little around its payload.
    ("limits.payload", "limits.frame", 4 * KIB),
    ("limits.payload", "limits.outbox", 4 * KIB),
    ("limits.payload", "history.topic_bytes", 4 * KIB),
    ("limits.payload", "history.log_bytes", 4 * KIB),
    ("history.topic_bytes", "history.group_bytes", 0),
    ("history.max_age", "history.topic_ttl", 0),
    ("history.dedup_ttl", "history.topic_ttl", 0),  # it lives in the topic's record
)


def _check_bounds(reader: _Reader, draft: Draft) -> None:
    """Bounds that make sense only together."""
    for small, large, room in _AT_MOST:
        low, high = _at(draft, small), _at(draft, large)
        if low is not None and high is not None and low + room > high:
            least = f"{low + room:g}" if isinstance(low, float) else f"{low + room}"
            wrong = (
                f"{high:g} is too little" if isinstance(high, float) else f"{high} is too little"
            )
            reader.fault(large, wrong, f"use {least} or more, because of {small}")


def _check_trace(reader: _Reader, draft: Draft) -> None:
    """A trace must have a place."""
    mode = _at(draft, "trace.mode")
    if mode not in (None, "off") and _at(draft, "trace.directory") == "":
        wrong = f"it is missing, with mode = {mode!r}"
        reader.fault("trace.directory", wrong, _remedy(TraceDirectory))


def _at(draft: Draft, key: str) -> Any:
    section, _, name = key.partition(".")
    return draft.get(section, {}).get(name)


# ---- what all members must agree on --------------------------------------------------------------


def config_hash(config: Config) -> str:
    """A fingerprint of everything that must be equal on all members.

    Heads and dedup records are forgotten by group time, in step on all members, so their times to
    live belong here; histories and logs may differ in length, so their bounds do not.
    """
    cluster, history = config.cluster, config.history
    agreed = [
        cluster.name,
        cluster.faults,
        cluster.groups,
        _addresses(cluster),
        _ms(history.dedup_ttl),
        _ms(history.topic_ttl),
    ]
    return blake2b(msgspec.json.encode(agreed), digest_size=16).hexdigest()


def cfg_bytes(config: Config) -> bytes:
    """The value of the /cfg node in ZooKeeper; two members are of one cluster if it is equal."""
    cluster = config.cluster
    node = {
        "N": len(cluster.members),
        "f": cluster.faults,
        "G": cluster.groups,
        "members": _addresses(cluster),
        "hash": config_hash(config),
    }
    return msgspec.json.encode(node)


def _addresses(cluster: ClusterConfig) -> dict[str, list[str]]:
    """Addresses by member id; the order of the file does not matter."""
    return {m.id: [m.peer, m.client] for m in sorted(cluster.members, key=lambda m: m.id)}
