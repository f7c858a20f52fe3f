"""Where commands find the cluster: --servers or --dir, the environment, then this machine."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from migratory.errors import MigratoryError
from migratory.shell.local_cluster import ADMIN_PORT, CLIENT_PORT, ClusterFile

ON_THIS_MACHINE = 3  # members of a usual local cluster


def client_addresses(servers: str | None) -> list[str]:
    """The addresses that clients use."""
    named = servers or os.environ.get("MIGRATORY_SERVERS")
    if named:
        return [each.strip() for each in named.split(",") if each.strip()]
    return [f"127.0.0.1:{CLIENT_PORT + n}" for n in range(ON_THIS_MACHINE)]


def admin_addresses(admin: str | None, directory: Path | None) -> list[str]:
    """The admin ports of the members."""
    named = admin or os.environ.get("MIGRATORY_ADMIN")
    if named:
        return [each.strip() for each in named.split(",") if each.strip()]
    if directory is not None:
        return [each.admin for each in read_cluster_file(directory).members.values()]
    return [f"127.0.0.1:{ADMIN_PORT + n}" for n in range(ON_THIS_MACHINE)]


def read_cluster_file(directory: Path) -> ClusterFile:
    """What `migratory up` wrote."""
    path = directory / "cluster.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except (OSError, msgspec.DecodeError) as error:
        remedy = "name the --dir of a running `migratory up`"
        raise MigratoryError(
            "NO_CLUSTER_FILE", f"{path} cannot be read: {error}", remedy
        ) from error
