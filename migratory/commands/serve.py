"""`migratory serve`: one member of the cluster, in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from migratory.config import config_hash, load
from migratory.node import run_member
from migratory.observability.logs import CONSOLE, JSON, configure


async def serve(
    config: Annotated[Path, Parameter(name=["--config", "-c"])],
    /,
    *,
    member: str | None = None,
    check: bool = False,
    log: Literal["json", "console"] | None = None,
    level: Literal["debug", "info", "warning", "error"] = "info",
) -> None:
    """Run a member until SIGINT or SIGTERM.

    Parameters
    ----------
    config
        The configuration file (TOML).
    member
        Takes the place of member.id, so that all members can share one file.
    check
        Only read the file, and say what is wrong with it.
    log
        How logs look; by default as lines of JSON, and for people on a terminal.
    level
        The least important events that are logged.
    """
    settings = load(config, member)
    if check:
        names = ", ".join(each.id for each in settings.cluster.members)
        print(f"{config} is valid: member {settings.member.id} of {names}")
        print(f"fingerprint of what all members must agree on: {config_hash(settings)}")
        return
    configure(log or (CONSOLE if sys.stderr.isatty() else JSON), level, member=settings.member.id)
    await run_member(settings)
