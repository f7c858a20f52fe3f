"""The simulation's command: many seeds, one seed told in full, or all mutants."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from coordinator.events import Event, Received, Tick
from coordinator.member import Member
from migratory.wire.peer import Heartbeat
from tests.simulation.campaign import CONFIGURATIONS, Outcome, Run, campaign, mixed, perform
from tests.simulation.world import Process, World

SHOWN = (
    "events", "runs", "takeovers", "crashes", "twins", "pauses", "cuts", "expiries", "depositions",
    "drains", "losses", "transfers", "acked", "unknown", "resumed", "gap", "history_lost",
    "unknown_position", "violations",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser("simulate", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to try new seeds")
    parser.add_argument("--seed", type=int, help="replay this seed and tell what happens")
    parser.add_argument("--members", type=int, help="only clusters of so many members ...")
    parser.add_argument("--faults", type=int, default=1, help="... that survive so many faults")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed to try")
    parser.add_argument("--mutants", action="store_true", help="every broken rule must be caught")
    options = parser.parse_args(arguments)
    if options.mutants:
        from tests.simulation.hunt import hunt_all

        return hunt_all()
    chosen = CONFIGURATIONS
    if options.members is not None:
        chosen = ((options.members, options.faults),)
    if options.seed is not None:
        return replay(next(mixed(options.seed, chosen)))
    return explore(mixed(options.first, chosen), options.seconds)


# ---- many seeds ----------------------------------------------------------------------------------


def explore(runs: Iterator[Run], seconds: float) -> int:
    """Try seeds until the time is over; 1 when a promise was broken."""
    said = 0.0

    def progress(totals: Counter[str], elapsed: float) -> None:
        nonlocal said
        if elapsed - said >= 5 or not said:
            said = elapsed
            rate = totals["events"] / elapsed
            print(
                f"{elapsed:6.0f} s  {totals['runs']:>6} runs  {totals['events']:>10,} events"
                f"  {rate:>8,.0f}/s  {totals['violations']} violations",
                flush=True,
            )

    began = time.monotonic()
    totals, failed = campaign(runs, seconds, progress)
    print(f"\n{time.monotonic() - began:.0f} s:")
    for name in SHOWN:
        print(f"  {name:<17} {totals[name]:>12,}")
    for outcome in failed:
        tell(outcome)
    return 1 if failed else 0


def tell(outcome: Outcome) -> None:
    """A violation, and how to see it again."""
    task = outcome.run
    print(f"\n{outcome.violation} with seed {task.seed}, N={task.members}, f={task.faults}")
    print(f"  {outcome.detail.strip()}\n  replay: {task.replay}")


# ---- one seed, told in full ----------------------------------------------------------------------


def replay(task: Run) -> int:
    """Repeat a run and print every step that says or changes something."""

    def listen(world: World) -> None:
        world.narrator = partial(narrate, world)

    outcome = perform(task, tell=listen)
    print("\n" + "  ".join(f"{name}={value}" for name, value in outcome.counts.items()))
    if outcome.violation:
        tell(outcome)
    return 1 if outcome.violation else 0


def narrate(
    world: World, process: Process, member: Member, event: Event, before: list[str]
) -> None:
    """One step in one line each for what came, what changed and what was noted."""
    said = _said(event)
    after = [repr(replica) for replica in member.replicas]
    changed = [now for now, then in zip(after, before, strict=True) if now != then]
    if not said and not changed:
        return
    boot = process.boot.n if process.boot is not None else 0
    print(f"{world.now:9.4f} {process.name}.{boot} {said}")
    for line in changed:
        print(f"              {line}")
    for note in member.ctx.ready.notes:
        print(f"              * {note.kind} g{note.g} epoch {note.epoch} {note.detail}")


def _said(event: Event) -> str:
    if isinstance(event, Tick):
        return ""
    if not isinstance(event, Received):
        return repr(event)[:300]
    said = [repr(m)[:300] for m in event.messages if not isinstance(m, Heartbeat)]
    return f"< {event.peer}.{event.boot.n} {' ; '.join(said)}" if said else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
