"""The file that describes a cluster which others started: TOML in, frozen values out.

docs/sre_guide.md explains the keys. As with a member's configuration, every mistake is told at
once, with its key, what is wrong and what to do; unknown keys are mistakes.

Invariants of what `load` returns: each hook that breaks has the one that heals; a hook names what
it hits, so that no command can hit another member than the planned one.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Meta

from migratory.errors import ConfigError, ConfigFault
from migratory.wire.ids import MEMBER_ID

_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_PLACE = re.compile(r"(?<!\$)\{([a-z_]+)\}")
MAX_GROUPS = 300  # three topics in each must fit into one SUBSCRIBE

# The description of a type is the remedy that people read; keep it an imperative clause.
Name = Annotated[
    str,
    Meta(
        pattern=rf"^{MEMBER_ID.pattern}\Z",
        description="use 1 to 32 of the characters a-z, 0-9 and '-'",
    ),
]
Address = Annotated[str, Meta(description="write host:port, such as 10.0.0.1:8800")]
Host = Annotated[
    str, Meta(min_length=1, description="write the name or address of the machine of the clients")
]
Faults = Annotated[
    int, Meta(ge=1, le=10, description="write what the members' cluster.faults is, 1 to 10")
]
Groups = Annotated[
    int,
    Meta(
        ge=1, le=MAX_GROUPS,
        description=f"write what the members' cluster.groups is, at most {MAX_GROUPS}",
    ),
]  # fmt: skip
Patience = Annotated[
    float, Meta(gt=0, le=600, description="write how many seconds a hook may take, at most 600")
]
Run = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9._-]{1,64}\Z",
        description="write what the members' trace.run is: 1 to 64 letters, digits, '.', '_', '-'",
    ),
]
Folder = Annotated[
    str, Meta(min_length=1, description="write the directory that all members' traces are in")
]
Command = Annotated[
    tuple[Annotated[str, Meta(min_length=1)], ...],
    Meta(
        min_length=1,
        description='write a list of words; for a shell: ["sh", "-c", "..."]',
    ),
]

_MEMBER, _SERVER = ("member", "host"), ("server", "host")
_WAY = ("from", "to", "from_host", "to_host")


class Hook(NamedTuple):
    """What a command may be told, and of what it must be told one."""

    places: tuple[str, ...]
    needed: tuple[tuple[str, ...], ...]
    healed_by: str = ""


HOOKS = {
    "kill": Hook(_MEMBER, (_MEMBER,), "start"),
    "start": Hook(_MEMBER, (_MEMBER,)),
    "stop": Hook(_MEMBER, (_MEMBER,), "start"),
    "pause": Hook(_MEMBER, (_MEMBER,), "resume"),
    "resume": Hook(_MEMBER, (_MEMBER,)),
    "slow": Hook(_MEMBER, (_MEMBER,), "unslow"),
    "unslow": Hook(_MEMBER, (_MEMBER,)),
    "cut": Hook(_WAY, (("from", "from_host"), ("to", "to_host")), "heal"),
    "heal": Hook(_WAY, (("from", "from_host"), ("to", "to_host"))),
    "zookeeper_kill": Hook(_SERVER, (_SERVER,), "zookeeper_start"),
    "zookeeper_start": Hook(_SERVER, (_SERVER,)),
    "zookeeper_pause": Hook(_SERVER, (_SERVER,), "zookeeper_resume"),
    "zookeeper_resume": Hook(_SERVER, (_SERVER,)),
    "collect": Hook((*_MEMBER, "into"), (_MEMBER, ("into",))),
}


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts of the file are."""


class OwnMember(Section, frozen=True, kw_only=True):
    """One `[[cluster.member]]`."""

    id: Name
    client: Address
    admin: Address


class OwnServer(Section, frozen=True, kw_only=True):
    """One `[[cluster.zookeeper]]`."""

    id: Name
    address: Address


class OwnClusterPart(Section, frozen=True, kw_only=True):
    """`[cluster]`: who is there."""

    faults: Faults
    groups: Groups
    clients: Host = ""
    members: tuple[OwnMember, ...] = msgspec.field(name="member")
    zookeepers: tuple[OwnServer, ...] = msgspec.field(name="zookeeper", default=())


class OwnTrace(Section, frozen=True, kw_only=True):
    """`[trace]`: how members call the run, and where their rows are unless a hook brings them."""

    run: Run
    directory: Folder = ""


class OwnHooks(Section, frozen=True, kw_only=True):
    """`[hooks]`: commands, each without a shell."""

    timeout: Patience = 20.0
    kill: Command = ()
    start: Command = ()
    stop: Command = ()
    pause: Command = ()
    resume: Command = ()
    slow: Command = ()
    unslow: Command = ()
    cut: Command = ()
    heal: Command = ()
    zookeeper_kill: Command = ()
    zookeeper_start: Command = ()
    zookeeper_pause: Command = ()
    zookeeper_resume: Command = ()
    collect: Command = ()

    def command(self, hook: str, values: Mapping[str, str]) -> list[str]:
        """The words of a hook with everything filled in."""
        words: tuple[str, ...] = getattr(self, hook)
        return [_PLACE.sub(lambda found: values[found[1]], word) for word in words]


class OwnFile(Section, frozen=True, kw_only=True):
    """A cluster that others started, and how to break it."""

    cluster: OwnClusterPart
    trace: OwnTrace
    hooks: OwnHooks


# ---- reading ------------------------------------------------------------------------------------


def load(path: Path) -> OwnFile:
    """Read a file, or raise a ConfigError with all that is wrong in it."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        fault = ConfigFault("file", error.strerror or str(error), "name a file that can be read")
        raise ConfigError(str(path), [fault]) from error
    except ValueError as error:  # no UTF-8, no TOML
        fault = ConfigFault("syntax", str(error), "write valid TOML")
        raise ConfigError(str(path), [fault]) from error
    faults: list[ConfigFault] = []
    draft = _section(OwnFile, raw, "", faults)
    faults += [*_wrong_cluster(draft.get("cluster", {})), *_wrong_trace(draft)]
    faults += _wrong_hooks(draft.get("hooks", {}))
    if faults:
        raise ConfigError(str(path), faults)
    return msgspec.convert(draft, OwnFile)


Draft = dict[str, Any]  # the readable values of a section by their names in the file


def _section(kind: type[Section], raw: object, path: str, faults: list[ConfigFault]) -> Draft:
    """The readable keys of a table; a fault for each of the others."""
    if not isinstance(raw, dict):
        faults.append(ConfigFault(path, f"{raw!r} is no table", f"write it as [{path}]"))
        return {}
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    prefix = f"{path}." if path else ""
    for key in [key for key in raw if key not in fields]:
        near = difflib.get_close_matches(key, fields, 1)
        remedy = f"did you mean {near[0]}?" if near else "known are: " + ", ".join(fields)
        faults.append(ConfigFault(prefix + key, "there is no such key", remedy))
    draft: Draft = {}
    for key, field in fields.items():
        inner, listed = _inner(field.type)
        if inner is not None and not listed:
            draft[key] = _section(inner, raw.get(key, {}), prefix + key, faults)
        elif key in raw and inner is not None:
            draft[key] = _tables(inner, raw[key], prefix + key, faults)
        elif key in raw:
            draft |= _scalar(key, field.type, raw[key], prefix, faults)
        elif field.default is msgspec.NODEFAULT:
            remedy = f"write one [[{prefix}{key}]] table for each" if listed else _remedy(field)
            faults.append(ConfigFault(prefix + key, "it is missing", remedy))
    return draft


def _inner(kind: Any) -> tuple[type[Section] | None, bool]:
    """The section that a field is, or is a list of."""
    listed = get_origin(kind) is tuple
    inner = get_args(kind)[0] if listed else kind
    return (inner if isinstance(inner, type) and issubclass(inner, Section) else None), listed


def _tables(kind: type[Section], raw: object, path: str, faults: list[ConfigFault]) -> list[Draft]:
    if not isinstance(raw, list) or not raw:
        remedy = f"write one [[{path}]] table for each"
        faults.append(ConfigFault(path, "it is no list of tables", remedy))
        return []
    return [_section(kind, each, f"{path}[{i}]", faults) for i, each in enumerate(raw, 1)]


def _scalar(key: str, kind: Any, raw: object, prefix: str, faults: list[ConfigFault]) -> Draft:
    try:
        value = msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        wrong = f"{str(raw)[:60]!r} is not allowed"
    else:
        wrong = _address_fault(value) if kind is Address else ""
        if not wrong:
            return {key: value}
    faults.append(ConfigFault(prefix + key, wrong, get_args(kind)[1].description))
    return {}


def _address_fault(address: str) -> str:
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 65536:
        return f"{address!r} is not a host and a port"
    return ""


def _remedy(field: msgspec.structs.FieldInfo) -> str:
    return str(get_args(field.type)[1].description)


# ---- rules between keys -------------------------------------------------------------------------


def _wrong_cluster(cluster: Draft) -> Iterator[ConfigFault]:
    members, faults = cluster.get("member", []), cluster.get("faults")
    if members and faults is not None and len(members) < 2 * faults + 1:
        wrong = f"{len(members)} members cannot survive {faults} faults"
        yield ConfigFault("cluster.faults", wrong, "list all members, and write what is true")
    first: dict[str, str] = {}
    for table in ("member", "zookeeper"):
        for i, each in enumerate(cluster.get(table, []), 1):
            for key, value in each.items():
                place = f"cluster.{table}[{i}].{key}"
                if first.setdefault(value, place) != place:
                    yield ConfigFault(place, f"{value} is used by {first[value]}", "use another")


def _wrong_trace(draft: Draft) -> Iterator[ConfigFault]:
    given = "directory" in draft.get("trace", {})
    if given == ("collect" in draft.get("hooks", {})):
        wrong = "it stands beside hooks.collect" if given else "it is missing"
        remedy = "say how the members' traces are found: by this or by hooks.collect"
        yield ConfigFault("trace.directory", wrong, remedy)


def _wrong_hooks(hooks: Draft) -> Iterator[ConfigFault]:
    for name, hook in HOOKS.items():
        if name not in hooks:
            continue
        key = f"hooks.{name}"
        if hook.healed_by and hook.healed_by not in hooks:
            wrong = f"there is no hooks.{hook.healed_by}, so what it breaks stays broken"
            yield ConfigFault(key, wrong, f"write hooks.{hook.healed_by} as well")
        told = set(_PLACE.findall(" ".join(hooks[name])))
        known = ", ".join(f"{{{place}}}" for place in hook.places)
        for place in sorted(told - set(hook.places)):
            yield ConfigFault(key, f"nothing is known as {{{place}}}", f"use {known}")
        for choices in hook.needed:
            if not told & set(choices):
                wrong = "it does not say whom it hits" if "into" not in choices else "no {into}"
                either = " or ".join(f"{{{place}}}" for place in choices)
                yield ConfigFault(key, wrong, f"use {either} in it")
