"""Structured logs: events with a name and fields, as JSON lines or for a terminal.

Invariants: nothing on the message path logs; a field whose name sounds like a secret is never
written; other libraries' warnings (kazoo's among them) come out in the same form; a disk that takes
no lines loses them and harms nobody.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from typing import Any, TextIO, cast

import orjson
import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

_SECRET = re.compile(r"token|secret|password|passwd|authorization|credential", re.IGNORECASE)

JSON, CONSOLE = "json", "console"


def get_logger(name: str, **fields: Any) -> FilteringBoundLogger:
    """A logger whose events carry this name as `module`."""
    logger: FilteringBoundLogger = structlog.get_logger(module=name, **fields)
    return logger


def configure(
    form: str = JSON, level: str = "info", stream: TextIO | None = None, **fields: Any
) -> None:
    """Decide once, at the start of a process, how its logs look; `fields` stand on every line."""
    out = sys.stderr if stream is None else stream
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**fields)
    render: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=out.isatty())]
        if form == CONSOLE
        else [structlog.processors.JSONRenderer(serializer=_json)]
    )
    structlog.configure(
        processors=[*_common(), structlog.processors.format_exc_info, *render]
        if form == JSON
        else [*_common(), *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", _Lossy(out))),
        cache_logger_on_first_use=True,
    )
    _capture_libraries(max(number, logging.WARNING))


class _Lossy:
    """A stream that loses what its disk or pipe does not take: nobody logs in order to fail.

    On a full disk or a pipe without reader, lines wait in the stream's buffer (8 KiB, unless Python
    runs unbuffered) and come out when there is room. Lines that find it full are lost, each as a
    whole, and nothing says how many. A pipe whose reader lives and does not read is another matter:
    when it is full, a line waits for room and the whole process with it. Nothing prevents that.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> None:
        """Write it, if that is possible."""
        with contextlib.suppress(OSError):
            self._out.write(text)

    def flush(self) -> None:
        """Let it be seen, if that is possible."""
        with contextlib.suppress(OSError):
            self._out.flush()


def _common() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]


def hide_secrets(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Blot out fields that sound like secrets."""
    for name in event:
        if _SECRET.search(name):
            event[name] = "***"
    return event


def _json(event: EventDict, default: Any = None, **_options: Any) -> str:
    return orjson.dumps(event, default=default or str, option=orjson.OPT_NON_STR_KEYS).decode()


class _Forward(logging.Handler):
    """Hands records of the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """One record becomes one event."""
        logger = get_logger(record.name)
        logger.log(record.levelno, "library", message=record.getMessage())


def _capture_libraries(level: int) -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _Forward):
            root.removeHandler(handler)
    root.addHandler(_Forward())
    root.setLevel(level)
