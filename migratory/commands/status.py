"""`migratory status` and `migratory recover`: what members say, and the order that may lose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import trio
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from migratory.commands.up import line_of
from migratory.commands.where import admin_addresses
from migratory.errors import MigratoryError
from migratory.shell.local_cluster import ask, ask_status

REFUSED, UNKNOWN = "ORDER_REFUSED", "ORDER_UNKNOWN"

Directory = Annotated[Path | None, Parameter(name=["--dir"])]


async def status(
    *,
    json: Annotated[bool, Parameter(negative=())] = False,
    admin: str | None = None,
    directory: Directory = None,
) -> int:
    """Show members and groups: coordinator, epoch, commit index and how far others lag.

    Ends with 1 when a member does not answer or is not NORMAL.

    Parameters
    ----------
    json
        Everything that the members tell, as one JSON object.
    admin
        host:port of admin ports, with commas; MIGRATORY_ADMIN by default.
    directory
        The directory of a `migratory up`, instead of addresses.
    """
    addresses = admin_addresses(admin, directory)
    found = await _ask_all(addresses)
    members = {s["member"]: s for s in found.values() if s is not None}
    if not members:
        remedy = "start a cluster with `migratory up`, or name its --dir or --admin addresses"
        raise MigratoryError("NO_ANSWER", f"none of {', '.join(addresses)} answers", remedy)
    if json:
        print(msgspec.json.encode({"members": members}).decode())
    else:
        for address, each in found.items():
            print(line_of(each["member"] if each else address, each))
        Console().print(_groups_table(members))
    well = len(members) == len(addresses) and all(s["normal"] for s in members.values())
    return 0 if well else 1


async def _ask_all(addresses: list[str]) -> dict[str, dict[str, Any] | None]:
    found: dict[str, dict[str, Any] | None] = {}

    async def fill(address: str) -> None:
        found[address] = await ask_status(address)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(fill, address)
    return {address: found[address] for address in addresses}


def _groups_table(members: dict[str, dict[str, Any]]) -> Table:
    """Groups that are alike in everything but their indexes share no row: each is its own."""
    table = Table(box=None, pad_edge=False)
    for title in ("group", "coordinator", "epoch", "commit", "topics"):
        table.add_column(title, justify="left" if title == "coordinator" else "right")
    for name in members:
        table.add_column(f"lag {name}", justify="right")
    count = max(len(s["groups"]) for s in members.values())
    for g in range(count):
        views = {name: s["groups"][g] for name, s in members.items()}
        best = max(views.values(), key=lambda v: (v["epoch"], v["commit"]))
        leader = best["coordinator"] or ("waits for the operator" if _waits(views) else "-")
        lags = [_lag(view, best["commit"]) for view in views.values()]
        row = (g, leader, best["epoch"], best["commit"], best["topics"])
        table.add_row(*(str(cell) for cell in row), *lags)
    return table


def _waits(views: dict[str, dict[str, Any]]) -> bool:
    return any(view["waits_for_operator"] for view in views.values())


def _lag(view: dict[str, Any], commit: int) -> str:
    return str(commit - view["commit"]) if view["status"] == "NORMAL" else "RECOVERING"


async def recover(
    *,
    accept_loss: Annotated[bool, Parameter(negative=())] = False,
    without_quorum: Annotated[bool, Parameter(negative=())] = False,
    yes: Annotated[bool, Parameter(negative=())] = False,
    admin: str | None = None,
    directory: Directory = None,
) -> int:
    """Open groups that wait because more members lost their memory than the cluster survives.

    Only what the best reachable member holds is kept; every subscriber of such a group gets RESET.

    Parameters
    ----------
    accept_loss
        Required: say that you know.
    without_quorum
        The members that do not answer are gone for good: do not wait for them.
    yes
        Do not ask again.
    admin
        host:port of admin ports, with commas; MIGRATORY_ADMIN by default.
    directory
        The directory of a `migratory up`, instead of addresses.
    """
    found = await _ask_all(admin_addresses(admin, directory))
    answering = {address: s for address, s in found.items() if s is not None}
    waiting = sorted(
        {g["group"] for s in answering.values() for g in s["groups"] if g["waits_for_operator"]}
    )
    if not answering:
        raise MigratoryError("NO_ANSWER", "no member answers", "name --dir or --admin addresses")
    if not waiting:
        print("no group waits for the operator: nothing to do")
        return 0
    print(f"{len(waiting)} groups wait: {', '.join(map(str, waiting))}")
    if not accept_loss:
        remedy = "bring back a member that still holds them, or repeat with --accept-loss"
        raise MigratoryError("LOSS_NOT_ACCEPTED", "messages of these groups may be lost", remedy)
    if not yes and not await _confirmed():
        print("nothing was done")
        return 1
    await _order_all(waiting, answering, without_quorum=without_quorum)
    return 0


async def _confirmed() -> bool:
    print(
        "What no reachable member holds is lost for good. Type 'lose' to go on: ",
        end="",
        flush=True,
    )
    answer = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return bool(answer.strip() == "lose")


def _best(g: int, answering: dict[str, dict[str, Any]]) -> str:
    """Where the best copy of a group is; anywhere, when nobody has one."""

    def worth(address: str) -> tuple[bool, int, int]:
        view = answering[address]["groups"][g]
        return view["status"] == "NORMAL", view["last_epoch"], view["last"]

    return max(answering, key=worth)


async def _order_all(
    waiting: list[int], answering: dict[str, dict[str, Any]], *, without_quorum: bool
) -> None:
    """Let the members with the best copies stand; whoever does not, the others are ordered too."""
    orders: dict[str, list[int]] = {}
    for g in waiting:
        orders.setdefault(_best(g, answering), []).append(g)
    failed: list[MigratoryError] = []
    for address, groups in orders.items():
        member = answering[address]["member"]
        try:
            await _order(address, member, groups, without_quorum=without_quorum)
        except MigratoryError as error:
            failed.append(error)
        else:
            print(f"{member} stands for {_named(groups)}")
    if failed:
        # Of an order that was refused it is known that it was not taken: that weighs more.
        code = min((error.code for error in failed), key=(REFUSED, UNKNOWN).index)
        wrong = "; ".join(error.message for error in failed)
        raise MigratoryError(code, wrong, "; ".join(error.remedy for error in failed))


async def _order(address: str, member: str, groups: list[int], *, without_quorum: bool) -> None:
    """Give one member its order; MigratoryError when it does not take it, or says nothing."""
    body = msgspec.json.encode({"groups": groups, "without_quorum": without_quorum})
    named = _named(groups)
    try:
        said = await trio.to_thread.run_sync(ask, address, "/recover", "POST", body)
    except ConnectionRefusedError:
        said = {"error": "NO_ANSWER", "detail": "nobody listens there any more"}
    except OSError as error:
        wrong = f"{member} gave no answer about {named} ({error}): it may have taken the order"
        remedy = f"`migratory status` tells whether {member} stands; repeat what still waits"
        raise MigratoryError(UNKNOWN, wrong, remedy) from error
    if not isinstance(said, dict) or "groups" not in said:
        told = said if isinstance(said, dict) else {"error": "BAD_ANSWER"}
        wrong = f"{member} does not take {named}: {told.get('detail', told.get('error'))}"
        remedy = f"repeat it when {member} has started"
        if told.get("error") == "FORBIDDEN":
            remedy = f"repeat it on the machine of {member}"
        raise MigratoryError(REFUSED, wrong, remedy)


def _named(groups: list[int]) -> str:
    return f"group{'s' if len(groups) > 1 else ''} {', '.join(map(str, groups))}"
