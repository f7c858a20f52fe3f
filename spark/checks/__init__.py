"""All checks of a trace by name, each a function from the prepared trace to its violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from pyspark.sql import DataFrame

from spark.checks import (
    ack_truth,
    agree,
    commit_before_see,
    epoch_mono,
    false_ack,
    honest_gap,
    live,
    no_below_promise,
    no_gap,
    no_loss,
    no_phantom,
    non_vacuous,
    once,
    one_coord,
    pub_order,
    recover_silent,
    stale,
    unavail,
)
from spark.prepared import Prepared

CHECKS: dict[str, Callable[[Prepared], DataFrame]] = {
    "AGREE": agree.check,
    "NO_GAP": no_gap.check,
    "NO_PHANTOM": no_phantom.check,
    "NO_LOSS": no_loss.check,
    "FALSE_ACK": false_ack.check,
    "PUB_ORDER": pub_order.check,
    "ONCE": once.check,
    "EPOCH_MONO": epoch_mono.check,
    "ONE_COORD": one_coord.check,
    "NO_BELOW_PROMISE": no_below_promise.check,
    "COMMIT_BEFORE_SEE": commit_before_see.check,
    "RECOVER_SILENT": recover_silent.check,
    "HONEST_GAP": honest_gap.check,
    "ACK_TRUTH": ack_truth.check,
    "UNAVAIL": unavail.check,
    "STALE": stale.check,
    "LIVE": live.check,
    "NON_VACUOUS": non_vacuous.check,
}


def all_violations(trace: Prepared, names: Iterable[str] = CHECKS) -> DataFrame:
    """The violations of these checks in one frame.

    Joined in pairs, and pairs of pairs: Spark looks at all of a plan whenever something is added.
    """
    frames = [CHECKS[name](trace) for name in names]
    while len(frames) > 1:
        pairs = [frames[n : n + 2] for n in range(0, len(frames), 2)]
        frames = [reduce(DataFrame.unionByName, pair) for pair in pairs]
    return frames[0]
