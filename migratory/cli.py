"""The command line: finds a command, runs it on trio, and tells people what went wrong.

Commands are functions in `migratory.commands`, named below and imported only when called, so that
`migratory serve` loads nothing of the laboratory and `--help` answers at once. A command raises
`MigratoryError` for what a person can mend; whatever else comes out is a bug with its traceback.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from migratory.errors import MigratoryError

COMMANDS = {  # name: (where it is, what the list of commands says of it)
    "serve": ("serve:serve", "Run a member of the cluster."),
    "up": ("up:up", "Run a whole cluster on this machine."),
    "pub": ("pub:pub", "Publish messages."),
    "sub": ("sub:sub", "Print the messages of topics."),
    "status": ("status:status", "Show members and groups."),
    "recover": ("status:recover", "Open groups that wait for the operator."),
    "demo": ("demo:demo", "Live traffic on a cluster that loses its coordinators."),
    "zookeeper": ("zookeeper:zookeeper", "Run ZooKeeper servers for development."),
}


def make_app(called: str | None = None) -> App:
    """The application with all its commands; the one that is called tells its own help."""
    app = App(
        name="migratory",
        help="A clustered notification service that orders, acknowledges and survives.",
        version=lambda: importlib.metadata.version("migratory"),
        help_format="plaintext",
        backend="trio",
        exit_on_error=False,
        result_action="return_value",
    )
    for name, (place, summary) in COMMANDS.items():
        app.command(
            f"migratory.commands.{place}", name=name, help=None if name == called else summary
        )
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit code of the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        result = make_app(called=words[0] if words else None)(words)
    except CycloptsError:
        return 2  # cyclopts has printed what is wrong with the arguments
    except MigratoryError as error:
        return _tell(error)
    except BaseExceptionGroup as group:
        known, bugs = group.split(MigratoryError)
        if bugs is not None or known is None:
            raise
        return max(_tell(error) for error in _leaves(known))
    return result if isinstance(result, int) else 0


def _leaves(group: BaseExceptionGroup[MigratoryError]) -> list[MigratoryError]:
    """The errors that nurseries have wrapped, once each."""
    found: list[MigratoryError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


def _tell(error: MigratoryError) -> int:
    with contextlib.suppress(OSError):  # the code is told in any case
        print(f"migratory: {error}", file=sys.stderr)
    return error.exit_code
