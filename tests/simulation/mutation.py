"""Rules of the protocol, removed one at a time from the real deciders.

A mutant is a named change of the source of one or two functions: a snippet that must be there
exactly once, and what stands there instead. The function's code is exchanged in place, so that it
does not matter who already holds a reference to it. A snippet that is not found fails loudly: the
rule has moved, and its mutant with it.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import CodeType, FunctionType

import msgspec

# Where the rules live.
REPLICA = "coordinator.replica:Replica."
LEADING = "coordinator.leading:Leading."
BID = "coordinator.takeover:Bid."
TAKEOVER = "coordinator.takeover:"
INCOMING = "coordinator.transfer:Incoming."
CONTACT = "coordinator.contact:Contact."
MEMBER = "coordinator.member:Member."
ELECTIONS = "coordinator.election:Elections."
BALANCE = "coordinator.balance:Balance."
UPKEEP = "coordinator.upkeep:Upkeep."
KEEPER = "coordinator.keeper:"
BOOT = "coordinator.boot:"
DISPATCH = "coordinator.dispatch:"
CLUSTER = "coordinator.cluster:Cluster."
STATE = "cache.state:GroupState."
TOPIC = "cache.topic:TopicRecord."
RESUME = "migratory.delivery.resume:"


class Change(msgspec.Struct, frozen=True):
    """In this function, the old snippet becomes the new one."""

    where: str  # module:qualified.name
    old: str
    new: str


class Mutant(msgspec.Struct, frozen=True):
    """A protocol without one of its rules."""

    name: str
    rule: str  # what the design says, and this mutant does not do
    changes: tuple[Change, ...]
    trace: str = ""  # the directed trace that shows the harm, where random weather is too slow
    members: int = 3
    faults: int = 1
    weather: tuple[tuple[str, float], ...] = ()  # what the weather must be like to show the harm


def _function(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    found: object = import_module(module)
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, property):
        found = found.fget
    assert isinstance(found, FunctionType), f"{where} is no function"
    return found


def _changed(function: FunctionType, changes: list[Change]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for change in changes:
        times = source.count(change.old)
        assert times == 1, f"{change.where}: {change.old!r} is there {times} times"
        source = source.replace(change.old, change.new)
    source = "from __future__ import annotations\n" + source
    made: dict[str, object] = {}
    exec(
        compile(source, f"<mutant of {function.__qualname__}>", "exec"), function.__globals__, made
    )
    result = made[function.__name__]
    if isinstance(result, property):
        result = result.fget
    assert isinstance(result, FunctionType)
    return result.__code__


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Run everything without one rule."""
    saved: list[tuple[FunctionType, CodeType]] = []
    try:
        for where in dict.fromkeys(change.where for change in mutant.changes):
            function = _function(where)
            code = _changed(function, [c for c in mutant.changes if c.where == where])
            saved.append((function, function.__code__))
            function.__code__ = code
        yield
    finally:
        for function, code in saved:
            function.__code__ = code
