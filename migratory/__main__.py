"""`python -m migratory` and the `migratory` script."""

from __future__ import annotations

import os
import sys

from migratory import cli


def main() -> None:
    """Run the command line and end with its code."""
    code = cli.main()
    _let_go_of_stderr()
    sys.exit(code)


def _let_go_of_stderr() -> None:
    """What a full disk or a closed pipe did not take must not change the exit code.

    Python tries it a last time when it ends, and would end with 120.
    """
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


if __name__ == "__main__":
    main()
