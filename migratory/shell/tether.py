"""Ties a child process to the life of the thread that starts it, also when that is killed -9.

A child cannot arrange this for itself after exec, and a `preexec_fn` is unsafe beside threads. So
this file is run as a program between fork and exec: it asks the kernel for SIGKILL at the death of
its parent, makes sure that the parent had not died before, and becomes the wanted program.

The kernel means the death of the *thread* that forked: start children from a thread that lives as
long as they should.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def tethered(command: Sequence[str]) -> list[str]:
    """The command line that runs this command and ends it with the calling thread."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _become(parent: int, command: Sequence[str]) -> None:
    """Ask for the signal, then let the command take this process."""
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise SystemExit("prctl refused PR_SET_PDEATHSIG")
    if os.getppid() == parent:
        os.execv(command[0], list(command))  # noqa: S606


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
