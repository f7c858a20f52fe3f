"""`python -m chaos`: run a scenario, list them, replay an earlier run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import App, CycloptsError, Parameter

from chaos.kinds import KINDS
from chaos.runner import Outcome, replay_run, start_run
from chaos.scenarios import SCENARIOS
from migratory.errors import MigratoryError

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

app = App(
    name="chaos", help="Break a real cluster on purpose, and write down what happens.",
    help_format="plaintext", backend="trio", exit_on_error=False, result_action="return_value",
)  # fmt: skip


@app.command
async def run(
    *, scenario: str = "random", minutes: float = 5.0, seed: int = 1, out: Path,
    cluster: Path | None = None,
) -> int:  # fmt: skip
    """Carry a scenario out; Ctrl-C heals and ends everything.

    Parameters
    ----------
    scenario
        One of `list`, or random.
    minutes
        How long faults and quiet times last together.
    seed
        The same seed gives the same faults at the same times.
    out
        A new directory for run.json, logs and traces.
    cluster
        A file about a running cluster and how to break it (docs/sre_guide.md).
    """
    return await _until_signal(lambda: start_run(scenario, seed, minutes, out, cluster), out)


@app.command
async def replay(directory: Path, /, *, out: Path, cluster: Path | None = None) -> int:
    """Carry out the plan of an earlier run once more.

    Parameters
    ----------
    directory
        What was --out of that run.
    out
        A new directory for this run.
    cluster
        As in `run`.
    """
    return await _until_signal(lambda: replay_run(directory, out, cluster), out)


@app.command(name="list")
def list_scenarios(*, kinds: Annotated[bool, Parameter(negative=())] = False) -> None:
    """Show all scenarios.

    Parameters
    ----------
    kinds
        Show the kinds of faults instead.
    """
    shown = KINDS if kinds else SCENARIOS
    for name, each in shown.items():
        print(f"{name:<24} {each.says}")


async def _until_signal(work: Callable[[], Awaitable[Outcome]], out: Path) -> int:
    """Run to the end, or until somebody wants it to end; then everything is still cleaned up."""
    ended_by: list[int] = []
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            with trio.open_signal_receiver(*ENDING) as signals:
                async for number in signals:
                    ended_by.append(number)
                    nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        await work()
        nursery.cancel_scope.cancel()
    if ended_by:
        name = signal.Signals(ended_by[0]).name
        raise MigratoryError("INTERRUPTED", f"ended by {name} before its end; all is healed")
    print(f"for the verdict: python -m spark check {out / 'traces'} --report {out / 'report'}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the answer is the exit code of the process."""
    try:
        result = app(list(sys.argv[1:] if arguments is None else arguments))
    except CycloptsError:
        return 2
    except MigratoryError as error:
        return _tell(error)
    except BaseExceptionGroup as group:
        known, bugs = group.split(MigratoryError)
        if bugs is not None or known is None:
            raise
        return _tell(_first(known))
    return result if isinstance(result, int) else 0


def _first(group: BaseExceptionGroup[MigratoryError]) -> MigratoryError:
    """What nurseries have wrapped."""
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


def _tell(error: MigratoryError) -> int:
    print(f"chaos: {error}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
