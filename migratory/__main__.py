"""`python -m migratory` and the `migratory` script."""

from __future__ import annotations

import sys

from migratory import cli


def main() -> None:
    """Run the command line and end with its code."""
    sys.exit(cli.main())


if __name__ == "__main__":
    main()
