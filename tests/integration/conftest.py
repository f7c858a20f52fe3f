"""What tests against real servers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from migratory.shell.ensemble import Ensemble


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """Three ZooKeeper servers for all tests of a run.

    Use a cluster name of your own in each test. A test that kills or pauses servers starts them
    again and waits with `wait_ready()` before it ends.
    """
    with Ensemble(3, tmp_path_factory.mktemp("zookeeper")) as started:
        yield started
