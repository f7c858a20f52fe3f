"""Hosts of a run: network namespaces on a bridge of their own, or addresses of loopback.

The only module that knows pyroute2 and namespaces. The namespaces have no names: each is held by a
descriptor of this process and the processes that run in it, so it is gone with them however the
run ends, and nothing of it is ever in the namespace that we were started in. (Refused: named ones,
which a killed run leaves behind.)

A cut is a host route into the host's own loopback device, where packets for strangers are dropped
without a word: established connections hang and new ones time out, as behind a dead switch. Cuts
are directed and counted, so that overlapping faults heal only what is theirs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

from chaos.cable import open_tap
from chaos.launcher import CLONE_NEWNET, HERE
from migratory.errors import MigratoryError

SLOW_RATE = "200kbit"
_OWN = "/proc/thread-self/ns/net"
_ROOT_QDISC = 0xFFFFFFFF
_libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """Hosts on loopback: each has an address, and nothing can be cut."""

    can_cut = False

    def __init__(self) -> None:
        run = os.getpid()
        self._prefix = f"127.{77 + run // 250 % 100}.{1 + run % 250}"
        self._addresses: dict[str, str] = {}

    def add(self, name: str) -> str:
        """Make a host; its address."""
        self._addresses[name] = f"{self._prefix}.{len(self._addresses) + 1}"
        return self._addresses[name]

    def address(self, name: str) -> str:
        """Where a host is."""
        return self._addresses[name]

    def home(self, name: str) -> str:
        """Where programs of a host find each other, and strangers find nobody."""
        return self._addresses[name]

    def entrance(self, _name: str) -> str:
        """What the launcher enters to start a program on this host."""
        return HERE

    def open_socket(self, _name: str) -> socket.socket:
        """A TCP socket of that host, whoever uses it."""
        return socket.socket()

    def cut(self, source: str, target: str) -> None:
        """Drop whatever source sends to target."""
        raise MigratoryError("NO_NAMESPACES", f"{source} and {target} share one loopback device")

    def heal(self, source: str, target: str) -> None:
        """Take one cut back."""
        raise MigratoryError("NO_NAMESPACES", f"{source} and {target} share one loopback device")

    def close(self) -> None:
        """Give everything up."""


class _Space:
    """One namespace: its descriptor, its netlink socket and its link."""

    def __init__(self) -> None:
        from pyroute2 import IPRoute

        if _libc.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "a network namespace cannot be made")
        try:
            self.fd = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
            self.ip: Any = IPRoute()
        finally:
            _enter(_outside)
        self.link = 0  # its end of the cable
        self.port = 0  # the other end, at the switch

    def device(self, name: str) -> int:
        return int(self.ip.link_lookup(ifname=name)[0])

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets made here belong to the namespace; never await inside."""
        _enter(self.fd)
        try:
            yield
        finally:
            _enter(_outside)

    def close(self) -> None:
        self.ip.close()
        os.close(self.fd)


class NamespaceNetwork(Network):
    """Each host a namespace with one cable to a bridge, which has a namespace to itself."""

    can_cut = True

    def __init__(self) -> None:
        super().__init__()
        self._prefix = "10.77.0"
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._spaces: dict[str, _Space] = {}
        self._left: list[_Space] = []  # of hosts that were replaced
        self._switch = _Space()
        self._switch.ip.link("add", ifname="switch", kind="bridge")
        self._bridge = self._switch.device("switch")
        self._switch.ip.link("set", index=self._bridge, state="up")
        self._cables = 0

    def add(self, name: str) -> str:
        """Make a host with its cable plugged in."""
        address = super().add(name)
        self._spaces[name] = self._plug(address)
        return address

    def _plug(self, address: str, mac: str | None = None) -> _Space:
        space, self._cables = _Space(), self._cables + 1
        port = f"port{self._cables}"
        far_end = {"ifname": "eth0", "net_ns_fd": space.fd}
        self._switch.ip.link("add", ifname=port, kind="veth", peer=far_end)
        space.port, space.link = self._switch.device(port), space.device("eth0")
        if mac is not None:
            space.ip.link("set", index=space.link, address=mac)
        space.ip.addr("add", index=space.link, address=address, prefixlen=24)
        for device in (space.device("lo"), space.link):
            space.ip.link("set", index=device, state="up")
        self._switch.ip.link("set", index=space.port, master=self._bridge, state="up")
        return space

    def home(self, _name: str) -> str:
        """Its own loopback."""
        return "127.0.0.1"

    def entrance(self, name: str) -> str:
        """A path that leads into the host's namespace as long as this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._spaces[name].fd}"

    def open_socket(self, name: str) -> socket.socket:
        """A TCP socket of that host, usable from here."""
        with self._spaces[name].inside():
            return socket.socket()

    def cut(self, source: str, target: str) -> None:
        """Drop whatever source sends to target."""
        self._cuts[source, target] += 1
        if self._cuts[source, target] == 1:
            self._route("add", source, target)

    def heal(self, source: str, target: str) -> None:
        """Take one cut back."""
        self._cuts[source, target] -= 1
        if self._cuts[source, target] == 0:
            self._route("del", source, target)

    def _route(self, command: str, source: str, target: str) -> None:
        space = self._spaces[source]
        space.ip.route(command, dst=f"{self.address(target)}/32", oif=space.device("lo"))

    @property
    def cuts(self) -> int:
        """How many cuts are not healed."""
        return self._cuts.total()

    def slow(self, name: str, rate: str = SLOW_RATE) -> None:
        """Let little through, both ways."""
        space = self._spaces[name]
        for ip, link in ((space.ip, space.link), (self._switch.ip, space.port)):
            ip.tc("add", "tbf", link, "1:", rate=rate, burst=4000, latency="300ms")

    def unslow(self, name: str) -> None:
        """Let everything through again."""
        space = self._spaces[name]
        for ip, link in ((space.ip, space.link), (self._switch.ip, space.port)):
            ip.tc("del", index=link, handle="1:", parent=_ROOT_QDISC)

    @contextlib.contextmanager
    def tapped(self, name: str) -> Iterator[tuple[int, int]]:
        """Take a host's cable apart: two taps, towards it and towards the switch, in its place.

        A tap is plugged in beside the host in a switch of their own, since only what is sent into
        a tap is made whole for it (see `chaos.cable`).
        """
        ip, port = self._switch.ip, self._spaces[name].port
        with contextlib.ExitStack() as held:
            with self._switch.inside():
                near = held.enter_context(open_tap(f"near{port}"))
                far = held.enter_context(open_tap(f"far{port}"))
            ip.link("add", ifname=f"line{port}", kind="bridge")
            line = self._switch.device(f"line{port}")
            held.callback(ip.link, "del", index=line)
            for index, master in (
                (line, 0),
                (self._switch.device(f"near{port}"), line),
                (self._switch.device(f"far{port}"), self._bridge),
                (port, line),
            ):
                ip.link("set", index=index, state="up", **({"master": master} if master else {}))
            held.callback(ip.link, "set", index=port, master=self._bridge)
            yield near, far

    def replace(self, name: str) -> int:
        """Unplug a host and plug another in with all its addresses; what `rejoin` takes.

        What runs on the old one stays there, behind the cuts that it had; the new one has them too.
        """
        old = self._spaces[name]
        mac = old.ip.get_links(old.link)[0].get_attr("IFLA_ADDRESS")
        self._switch.ip.link("set", index=old.port, state="down")
        self._spaces[name] = self._plug(self.address(name), mac)
        self._left.append(old)
        for (source, target), count in self._cuts.items():
            if source == name and count:
                self._route("add", source, target)
        return old.port

    def rejoin(self, port: int) -> None:
        """Plug a replaced host in again, beside its replacement."""
        self._switch.ip.link("set", index=port, state="up")

    def leave(self, port: int) -> None:
        """Unplug it for good."""
        self._switch.ip.link("set", index=port, state="down")

    def close(self) -> None:
        """Let go of all namespaces; the kernel removes those in which nothing runs."""
        for space in (*self._spaces.values(), *self._left, self._switch):
            space.close()
        self._spaces.clear()


def _enter(fd: int) -> None:
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "the network namespace cannot be entered")


_outside = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def open_network() -> tuple[Network, str]:
    """The best network that this machine has, and why it is not a better one ("" if it is)."""
    if os.geteuid() != 0:
        return Network(), "not root: no namespaces, so no cuts; everything runs on loopback"
    try:
        return NamespaceNetwork(), ""
    except ImportError:
        return Network(), "pyroute2 is missing (install migratory[lab]): everything on loopback"
    except OSError as error:
        return Network(), f"{error}: everything runs on loopback, without cuts"
