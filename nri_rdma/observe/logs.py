"""Log lines: a constant message, facts as fields, for people or for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up_logging(level: str, style: str) -> None:
    """Log to stderr from this level on; `style` is ``text`` or ``json``. The only place that configures logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def set_log_level(level: str) -> None:
    """Log from another level on."""
    logging.getLogger().setLevel(level.upper())


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _KNOWN}


def _moment(record: logging.LogRecord) -> str:
    """Time of the record in UTC, with milliseconds."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {key}={json.dumps(value, default=str)}" for key, value in _fields(record).items())
        line = f"{_moment(record)} {record.levelname.lower()} {record.getMessage()}{facts}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
