"""Logs: one JSON object per event, no secrets, other libraries' warnings included."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import msgspec
import pytest
import structlog

from migratory.observability.logs import CONSOLE, JSON, configure, get_logger


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave logging as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_events_are_lines_of_json_without_secrets() -> None:
    """Fields stand beside the event's name; what sounds like a secret is blotted out."""
    out = io.StringIO()
    configure(JSON, "info", out, member="a")
    log = get_logger("engine")
    log.debug("unseen")
    log.info("elect", group=3, client_token="s3cret")
    (line,) = out.getvalue().splitlines()
    event = msgspec.json.decode(line)
    assert (event["event"], event["group"], event["member"]) == ("elect", 3, "a")
    assert event["module"] == "engine"
    assert "s3cret" not in line


def test_warnings_of_libraries_come_out_in_the_same_form() -> None:
    """A warning of the standard library's logging is an event; its debug output is not."""
    out = io.StringIO()
    configure(JSON, "debug", out)
    logging.getLogger("kazoo.client").warning("Connection dropped: %s", "why")
    logging.getLogger("kazoo.client").debug("noise")
    (line,) = out.getvalue().splitlines()
    event = msgspec.json.decode(line)
    assert (event["module"], event["message"]) == ("kazoo.client", "Connection dropped: why")
    assert event["level"] == "warning"


def test_people_get_plain_lines() -> None:
    """The console form has the same content."""
    out = io.StringIO()
    configure(CONSOLE, "info", out)
    get_logger("engine").info("open", group=7)
    assert "open" in out.getvalue()
    assert "group=7" in out.getvalue()


def test_a_full_disk_loses_lines_and_harms_nobody() -> None:
    """Whoever logs goes on, whatever the disk under the log does."""
    with io.FileIO("/dev/full", "w") as disk:
        full = io.TextIOWrapper(disk, write_through=True)
        with pytest.raises(OSError, match="No space"):
            full.write("x")
        configure(JSON, "info", full)
        get_logger("engine").info("elect")
        logging.getLogger("kazoo.client").warning("Connection dropped")
