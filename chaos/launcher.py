"""Starts a program that ends with its parent, inside a network namespace if one is named.

Run as a program between fork and exec, by its path: it asks the kernel for SIGKILL at the death of
the thread that started it, makes sure that this had not died before, enters the namespace and
becomes the wanted program. So nothing outlives a run, not even one that is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
HERE = "-"  # no namespace


def launched(command: Sequence[str], namespace: str = HERE) -> list[str]:
    """The command line that runs this command there and ends it with the calling thread."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), namespace, *command]


def _become(parent: int, namespace: str, command: Sequence[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise SystemExit("prctl refused PR_SET_PDEATHSIG")
    if namespace != HERE:
        entered = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        if libc.setns(entered, CLONE_NEWNET) != 0:
            raise SystemExit(f"setns refused: {os.strerror(ctypes.get_errno())}")
    if os.getppid() == parent:
        os.execv(command[0], list(command))  # noqa: S606


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
