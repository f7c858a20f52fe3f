"""One Spark session for all tests of the checks: starting one takes longer than using it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark.session import local_session


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """A local session that ends with the tests."""
    started = local_session(cores="2")
    yield started
    started.stop()
