"""The soak: runs in slices, each with a cluster, a seed and a verdict of its own, for hours.

A slice is carried out by the runner and judged by Spark, which is another program: this module
calls it and reads its report. `soak.json` says what was asked for, `soak.jsonl` has a line per
finished slice, `soak.md` the same as a table for people. An interrupted soak goes on where it
stopped: finished slices stay, an unfinished one is thrown away and done anew.

Invariant: a line in `soak.jsonl` is written last, so what it tells of is there; the traces of a
slice that is not valid are never deleted.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import trio

from chaos.launcher import HERE
from chaos.load import find_load
from chaos.plan import LONGEST, SHORTEST
from chaos.processes import Program
from chaos.runner import start_run
from chaos.soak_table import Asked, Slice, total, write_table
from migratory.errors import MigratoryError

# Half of the time everything may happen; the others take one kind of trouble each to its limit.
# Twelve slices, so that two hours have each of them once.
ROTATION = (
    "soak", "kill-storm", "soak", "partition-zoo", "random", "zookeeper-outage", "soak",
    "five-members-two-faults", "soak", "pause-resume", "random", "rolling-restart",
)  # fmt: skip
UNKNOWN = 2
VERDICTS = {0: "valid", 1: "invalid", UNKNOWN: "unknown"}  # by the exit code of the checks
FAILED = "failed"  # the run was not carried out to its end
CHECK_END = 1800.0  # seconds for Spark
MOST_SLICES = 1000


class SoakError(MigratoryError):
    """A soak that cannot be begun or gone on with; 1 would mean that a slice was invalid."""

    exit_code = 2


def told_failure(wrong: Exception) -> SoakError:
    """Why a soak broke off, in a sentence; a bug also shows where it is."""
    leaves = list(_leaves(wrong))
    first = next((each for each in leaves if not isinstance(each, MigratoryError)), leaves[0])
    if isinstance(first, MigratoryError):
        return SoakError(first.code, first.message, first.remedy)
    if not isinstance(first, OSError):
        traceback.print_exception(wrong)
    said = f"{type(first).__name__}: {first}".split("\n")[0]
    remedy = "mend that, and call it again with the same arguments to go on with this slice"
    return SoakError("SOAK_FAILED", said, remedy)


class Report(msgspec.Struct):
    """What is read of Spark's report.json."""

    violations: list[dict[str, Any]] = []
    faults: list[Any] = []
    counts: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    fault_kinds: dict[str, int] = {}
    failovers: dict[str, Any] = {}


async def soak(asked: Asked, out: Path) -> int:
    """Carry out what is left of a soak; 0 when all slices are valid, 1 when one is invalid."""
    _check(asked)
    done = _open(asked, out)
    write_table(asked, done, out)
    for number in range(len(done) + 1, asked.slices + 1):
        done.append(await _carry_out(asked, number, out / f"slice-{number:03}"))
        with (out / "soak.jsonl").open("ab") as lines:
            lines.write(msgspec.json.encode(done[-1]) + b"\n")
        write_table(asked, done, out)
    print(total(done))
    verdicts = {each.verdict for each in done}
    return 1 if "invalid" in verdicts else 0 if verdicts == {"valid"} else 2


# ---- what was asked, and what is done -----------------------------------------------------------


def _check(asked: Asked) -> None:
    find_load(asked.load)
    if not SHORTEST <= asked.slice <= LONGEST:
        wrong = f"{asked.slice} minutes are no length for a slice"
        raise MigratoryError("BAD_LENGTH", wrong, f"use {SHORTEST} to {LONGEST:.0f}")
    if not 1 <= asked.minutes / asked.slice <= MOST_SLICES:
        wrong = f"{asked.minutes} minutes are not 1 to {MOST_SLICES} slices of {asked.slice}"
        raise MigratoryError("BAD_LENGTH", wrong, "choose other --minutes or another --slice")


def _open(asked: Asked, out: Path) -> list[Slice]:
    """Begin a soak, or go on with it: the slices that are done."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        told = out / "soak.json"
        if not told.exists():
            if any(out.iterdir()):
                raise MigratoryError("OUT_TAKEN", f"{out} is not empty", "name a new directory")
            told.write_bytes(msgspec.json.encode(asked) + b"\n")
        _compare(asked, msgspec.json.decode(told.read_bytes(), type=Asked), out)
        done = list(_read(out / "soak.jsonl"))
    except (OSError, msgspec.DecodeError) as error:
        remedy = "name a new directory, or one of an earlier soak"
        raise MigratoryError("BAD_OUT", f"{out} cannot be used: {error}", remedy) from error
    shutil.rmtree(out / f"slice-{len(done) + 1:03}", ignore_errors=True)
    return done


def _compare(asked: Asked, before: Asked, out: Path) -> None:
    if asked != before:
        words = f"--minutes {before.minutes:g} --slice {before.slice:g} --seed {before.seed}"
        raise MigratoryError(
            "OTHER_SOAK", f"{out} was begun with {words} --load {before.load}",
            "call it with the same arguments to go on, or name a new directory",
        )  # fmt: skip


def _read(path: Path) -> Iterator[Slice]:
    """The finished slices; a last line that is torn is of one that is not."""
    whole = path.read_bytes() if path.exists() else b""
    lines = whole[: whole.rfind(b"\n") + 1]
    if lines != whole:
        path.write_bytes(lines)
    for line in lines.splitlines():
        yield msgspec.json.decode(line, type=Slice)


# ---- one slice ----------------------------------------------------------------------------------


async def _carry_out(asked: Asked, number: int, out: Path) -> Slice:
    scenario = ROTATION[(number - 1) % len(ROTATION)]
    seed = asked.seed * MOST_SLICES + number
    print(f"slice {number} of {asked.slices}: {scenario}, seed {seed}", flush=True)
    began, says = time.monotonic(), ""
    try:
        await start_run(scenario, seed, asked.slice, out, asked.load)
    except* MigratoryError as group:
        says = "; ".join(" ".join(str(error).split()) for error in _leaves(group))
    ran = time.monotonic()
    code, report, wrong = await _judge(out)
    verdict = verdict_of(code, says)
    says = "; ".join(each for each in (says, wrong, _why(report)) if each)
    made = Slice(
        number, seed, scenario, asked.slice, verdict, says,
        report.fault_kinds, report.counts, report.outcomes, report.failovers,
        _rows(out / "traces"), round(ran - began, 1), round(time.monotonic() - ran, 1),
    )  # fmt: skip
    print(f"slice {number}: {verdict} {made.says}".rstrip(), flush=True)
    if verdict == "valid":  # a two hours' trace fills a disk, and this one has been judged
        shutil.rmtree(out / "traces")
        shutil.rmtree(out / "zookeeper", ignore_errors=True)
    return made


def verdict_of(code: int, says: str) -> str:
    """What a slice is by the exit code of its check and the errors of its run.

    A violation stays one, however the run ended.
    """
    judged = VERDICTS.get(code, "unknown")
    return FAILED if says and judged != "invalid" else judged


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """What nurseries have wrapped."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


async def _judge(out: Path) -> tuple[int, Report, str]:
    """Spark's exit code and report; and what was wrong if there is none."""
    log, report = out / "spark.log", out / "report"
    words = ["spark", "check", str(out / "traces"), "--report", str(report)]
    check = Program(words, HERE, log)
    try:
        with trio.move_on_after(CHECK_END):
            code = await check.ended()
            told = msgspec.json.decode((report / "report.json").read_bytes(), type=Report)
            return code, told, ""
    except (OSError, msgspec.DecodeError) as error:
        return UNKNOWN, Report(), f"no report ({error}): see {log}"
    finally:
        check.kill()
    return UNKNOWN, Report(), f"the check took longer than {CHECK_END:.0f} s: see {log}"


def _why(report: Report) -> str:
    """The checks that do not hold, each with its first witness."""
    found = [f"{v['check']} ({v['count']}): {v['witnesses'][0]}" for v in report.violations]
    return "; ".join([*(f"{fault}" for fault in report.faults[:3]), *found])


def _rows(traces: Path) -> int:
    """How many lines the trace has."""
    total = 0
    for path in traces.glob("*.jsonl"):
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                total += part.count(b"\n")
    return total
