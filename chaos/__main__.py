"""`python -m chaos`: run a scenario, list them, replay an earlier run, or go on for hours."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated

import trio
from cyclopts import App, CycloptsError, Parameter

from chaos.kinds import KINDS
from chaos.load import LARGE, SMALL
from chaos.runner import replay_run, start_run
from chaos.scenarios import SCENARIOS
from chaos.soak import soak, told_failure
from chaos.soak_table import Asked
from migratory.errors import MigratoryError

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 2
SOAK_OUT = Path("runs") / "soak"

app = App(
    name="chaos", help="Break a real cluster on purpose, and write down what happens.",
    help_format="plaintext", backend="trio", exit_on_error=False, result_action="return_value",
)  # fmt: skip


@app.command
async def run(
    *, scenario: str = "random", minutes: float = 5.0, seed: int = 1, load: str = SMALL, out: Path,
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
    load
        How much clients do: small, or large.
    out
        A new directory for run.json, logs and traces.
    cluster
        A file about a running cluster and how to break it (docs/sre_guide.md).
    """

    async def work() -> int:
        await start_run(scenario, seed, minutes, out, load, cluster)
        return _say_how_to_judge(out)

    return await _until_signal(work)


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

    async def work() -> int:
        await replay_run(directory, out, cluster)
        return _say_how_to_judge(out)

    return await _until_signal(work)


@app.command(name="soak")
async def soak_for_hours(
    *,
    minutes: float = 120.0,
    slice_minutes: Annotated[float, Parameter(name="--slice")] = 10.0,
    seed: int = 1,
    load: str = LARGE,
    out: Path = SOAK_OUT,
) -> int:
    """Run slice after slice, each with a verdict by Spark; called again, it goes on.

    Parameters
    ----------
    minutes
        How long all slices last together.
    slice_minutes
        How many of them one run lasts.
    seed
        The same seed gives the same slices.
    load
        How much clients do: small, or large.
    out
        A directory for soak.md and all runs: new, or that of a soak with the same arguments.
    """
    asked = Asked(minutes, slice_minutes, seed, load)
    remedy = "call it again with the same arguments to go on with this slice"
    try:
        return await _until_signal(lambda: soak(asked, out), remedy)
    except Exception as wrong:  # 1 would mean that a slice was invalid
        raise told_failure(wrong) from wrong


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


def _say_how_to_judge(out: Path) -> int:
    print(f"for the verdict: python -m spark check {out / 'traces'} --report {out / 'report'}")
    return 0


async def _until_signal(work: Callable[[], Awaitable[int]], remedy: str = "") -> int:
    """Run to the end, or until somebody wants it to end; then everything is still cleaned up."""
    ended_by: list[int] = []
    code = INTERRUPTED
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            with trio.open_signal_receiver(*ENDING) as signals:
                async for number in signals:
                    ended_by.append(number)
                    nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        code = await work()
        nursery.cancel_scope.cancel()
    if ended_by:
        wrong = f"ended by {signal.Signals(ended_by[0]).name} before its end; all is healed"
        _tell(MigratoryError("INTERRUPTED", wrong, remedy))
    return code


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
