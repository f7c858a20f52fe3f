"""The quick checker: all checks of a trace in plain Python, for small traces and a live view.

It must name the same (run, check) pairs as the Spark job on every trace; tests hold them together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from chaos import checks_of_copies as copies
from chaos import checks_of_members as members
from chaos import checks_of_messages as messages
from chaos.ledger import Bounds, Ledger, Row, Violation

__all__ = ["CHECKS", "Bounds", "Violation", "check", "verdict"]

CHECKS: dict[str, Callable[[Ledger], Iterator[Violation]]] = {
    "AGREE": messages.agree,
    "NO_GAP": messages.no_gap,
    "NO_PHANTOM": messages.no_phantom,
    "NO_LOSS": messages.no_loss,
    "FALSE_ACK": messages.false_ack,
    "PUB_ORDER": messages.pub_order,
    "ONCE": messages.once,
    "EPOCH_MONO": members.epoch_mono,
    "ONE_COORD": members.one_coord,
    "NO_BELOW_PROMISE": members.no_below_promise,
    "COMMIT_BEFORE_SEE": copies.commit_before_see,
    "RECOVER_SILENT": members.recover_silent,
    "HONEST_GAP": messages.honest_gap,
    "ACK_TRUTH": messages.ack_truth,
    "UNAVAIL": members.unavail,
    "STALE": members.stale,
    "LIVE": members.live,
    "NON_VACUOUS": members.non_vacuous,
}


def check(
    rows: Iterable[Row], bounds: Bounds | None = None, names: Iterable[str] = CHECKS
) -> list[Violation]:
    """The violations in these rows, run by run; a live view names what needs no end of the run."""
    runs: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        runs[row["run"]].append(row)
    ledgers = [Ledger(run, mine, bounds or Bounds()) for run, mine in runs.items()]
    wanted = list(names)
    return [found for ledger in ledgers for name in wanted for found in CHECKS[name](ledger)]


def verdict(violations: Iterable[Violation], *, whole: bool = True) -> str:
    """`valid`, `invalid`, or `unknown`: rows are missing, or too little happened to prove it."""
    checks = {violation.check for violation in violations}
    if not whole or checks == {"NON_VACUOUS"}:
        return "unknown"
    return "invalid" if checks else "valid"
