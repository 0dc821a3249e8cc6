"""Logs of a running gateway: one line an event on stderr; JSON when nobody watches, readable on a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any


def configure(level: int = logging.INFO) -> None:
    """Route the standard library's logging through structlog's renderers, once a process."""
    import orjson
    import structlog

    def dumps(event: Any, default: Any) -> str:
        return orjson.dumps(event, default=default).decode()

    watched = sys.stderr.isatty()
    if watched:
        renderers: list[Any] = [structlog.dev.ConsoleRenderer()]
    else:
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=dumps)]
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("gateway").setLevel(logging.WARNING if watched else level)
