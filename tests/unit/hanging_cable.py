"""A cable between a dialing member and an accepting one, on which connections can hang."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import trio


class _Wire:
    """One connection: what flows, and how many of its directions are open."""

    def __init__(self) -> None:
        self.flows = trio.Event()
        self.open = 2


class HangingCable:
    """Carries bytes from a door to a target; what hangs is neither lost nor carried."""

    def __init__(self, door: socket.socket, target: tuple[str, int]) -> None:
        door.setblocking(False)
        self._door = trio.socket.from_stdlib_socket(door)
        self._target = target
        self._new_flow = True
        self._changed = trio.Event()
        self.wires: list[_Wire] = []

    async def run(self) -> None:
        """Accept and carry, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                near = trio.SocketStream((await self._door.accept())[0])
                try:
                    far = await trio.open_tcp_stream(*self._target)
                except BaseException:
                    near.socket.close()
                    raise
                wire = _Wire()
                if self._new_flow:
                    wire.flows.set()
                self.wires.append(wire)
                self._tell()
                nursery.start_soon(self._carry, wire, near, far)
                nursery.start_soon(self._carry, wire, far, near)

    async def _carry(
        self, wire: _Wire, source: trio.SocketStream, target: trio.SocketStream
    ) -> None:
        try:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for chunk in source:
                    await wire.flows.wait()
                    await target.send_all(chunk)
        finally:
            for end in (source, target):
                end.socket.close()
            wire.open -= 1
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def hang(self, *, which: slice = slice(None), new: bool = False) -> None:
        """Carry nothing on these of the present connections, nor on new ones if `new`."""
        for wire in self.wires[which]:
            if wire.flows.is_set():
                wire.flows = trio.Event()
        self._new_flow = not new

    def go_on(self, first: int) -> None:
        """Carry again what comes on the first so many connections, and on new ones."""
        self._new_flow = True
        for wire in self.wires[:first]:
            wire.flows.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the wires will show."""
        with trio.fail_after(10):
            while not condition():
                await self._changed.wait()
