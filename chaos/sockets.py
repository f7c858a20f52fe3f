"""Resets the connections of another process, as a broken router would.

A copy of each of its sockets is taken (pidfd_getfd) and disconnected: the kernel sends RST to the
other side and gives the owner ECONNRESET. The owner's program is not touched.
"""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

_SYS_PIDFD_GETFD = 438  # the same number on all architectures
_TCP_ESTABLISHED = 1
_libc = ctypes.CDLL(None, use_errno=True)
_NOWHERE = (ctypes.c_char * 16)()  # an address of family AF_UNSPEC: disconnect


def reset_connections(pid: int) -> int:
    """Reset every established TCP connection of a process; how many there were."""
    try:
        process = os.pidfd_open(pid)
        descriptors = [int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return 0  # the process is gone, and its connections with it
    try:
        return sum(_reset(process, fd) for fd in descriptors)
    finally:
        os.close(process)


def _reset(process: int, fd: int) -> bool:
    copy = _libc.syscall(_SYS_PIDFD_GETFD, process, fd, 0)
    if copy < 0:
        return False
    try:
        taken = socket.socket(fileno=copy)
    except OSError:  # it is no socket, and the copy is still ours to close
        os.close(copy)
        return False
    with taken:
        if taken.family != socket.AF_INET or taken.type != socket.SOCK_STREAM:
            return False
        state = taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        gone = state == _TCP_ESTABLISHED and _libc.connect(copy, _NOWHERE, len(_NOWHERE)) == 0
        return bool(gone)
