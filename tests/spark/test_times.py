"""What a report says of times: failovers as defined, no blame for readers slow on purpose."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from chaos import checker as quick
from spark.checks import all_violations
from spark.prepared import Prepared
from spark.schemas import TRACE
from spark.times import Failover, failovers
from tests.spark.good_trace import Row, good_trace
from tests.spark.mutants import delivered_late, rows_of, told

MS = 1000


def prepared(session: SparkSession, rows: list[Row]) -> Prepared:
    """Rows as the checks take them."""
    columns = TRACE.fieldNames()
    return Prepared(
        session.createDataFrame([tuple(r.get(c) for c in columns) for r in rows], TRACE)
    )


class Clients:
    """Rows of one process, at stated milliseconds."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def row(self, kind: str, at: int, **more: Any) -> None:
        """One row."""
        base = {"run": "r", "node": "c", "boot": 0, "proc": "c", "t_mono": 0, "kind": kind}
        self.rows.append(base | {"t_wall": at * MS, "n": len(self.rows)} | more)

    def fault(self, kind: str, at: int, target: str, hit: str | None = None) -> None:
        """A fault takes hold."""
        extra = {"fault": kind, "target": target, "id": f"{kind}-{at}"}
        self.row("fault_on", at, extra=extra | ({"hit": hit} if hit else {}))

    def published(self, group: int, sent: int, acked: int, epoch: int) -> None:
        """A publication from its sending to its acknowledgement."""
        topic = f"/{group}"
        who: Row = {"group": group, "topic": topic, "pid": "p", "pseq": len(self.rows), "mid": "m"}
        self.row("pub_send", sent, **who)
        self.row("pub_ack", acked, epoch=epoch, seq=len(self.rows), **who)


def test_a_failover_lasts_from_the_fault_to_the_first_answer_of_a_new_epoch(
    session: SparkSession,
) -> None:
    """Of each fault and group hit; what was under way or handed over later does not count."""
    clients = Clients()
    for member in ("m1", "m2", "m3"):
        clients.row("boot", 0, node=member)
    clients.fault("kill", 1000, "coordinator", hit="m1")
    clients.fault("stall", 1100, "ensemble", hit="ensemble")  # no member
    clients.published(0, 900, 905, epoch=1)
    clients.published(0, 1020, 1300, epoch=2)  # nobody waited before 1020: 280
    clients.published(0, 1010, 1310, epoch=2)  # but somebody did, and was answered later: 290
    clients.published(1, 980, 1005, epoch=1)  # under way
    clients.published(1, 990, 1400, epoch=2)  # waited since before the fault: 400
    clients.published(2, 1050, 1060, epoch=1)  # not hit
    clients.published(2, 1200, 1500, epoch=2)  # handed over later
    clients.fault("cut-pair", 2000, "m2|m3")
    clients.fault("pause", 2100, "m2")
    clients.published(0, 1990, 2600, epoch=3)  # both, the pause came last: 500
    clients.published(1, 2050, 2080, epoch=3)  # before the pause: 30
    assert failovers(prepared(session, clients.rows)) == {
        "cut-pair": Failover(count=1, p50_ms=30, p99_ms=30, max_ms=30, ms=[30]),
        "kill": Failover(count=2, p50_ms=290, p99_ms=400, max_ms=400, ms=[290, 400]),
        "pause": Failover(count=1, p50_ms=500, p99_ms=500, max_ms=500, ms=[500]),
    }


def named(run: str, client: str, slow: str) -> list[Row]:
    """Late deliveries to a client, in a run that says who is slow on purpose."""
    rows = delivered_late(good_trace(run))
    told(rows_of(rows, "sub_open", topic="/a")[0], client=client)
    told(rows_of(rows, "run")[0], slow_clients=slow)
    return rows


def test_readers_that_are_slow_on_purpose_are_not_stale(session: SparkSession) -> None:
    """STALE and the report leave out the clients that the run names, and nobody else."""
    runs = {
        "slow": named("slow", "slow0", "slow0,pausing0"),
        "other": named("other", "herd1", "slow0,pausing0"),
        "none": named("none", "slow0", ""),
    }
    trace = prepared(session, [row for rows in runs.values() for row in rows])
    late = {row["run"] for row in all_violations(trace, ["STALE"]).collect()}
    assert late == {"other", "none"}
    assert late == {run for run, rows in runs.items() if quick.check(rows, names=["STALE"])}
    seen = trace.lags.where("topic = '/a'").select("run").distinct().collect()
    assert {row["run"] for row in seen} == {"other", "none"}
    trace.release()
