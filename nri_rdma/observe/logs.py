"""Log lines for people or for machines: a constant message, with the facts as fields."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.observe.conventions import pod_names
from nri_rdma.observe.spans import current_span

_KNOWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

SYSLOG = Path("/dev/log")
_FACILITY_DAEMON = 3  # RFC 5424
_SEVERITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}

FILE_BYTES = 4 << 20
"""Size in bytes from which a log file is renamed to NAME.1 and a new one begins. Files are small because /run is in
memory."""


def set_up_logging(
    level: str, style: str, file: Path | None = None, *, launched: bool = False, fallback: Path | None = None
) -> str:
    """Configure logging; no other function does. Lines from `level` on are logged in the `style` `text` or `json`.

    Lines go to `file`, otherwise to stderr. A plugin that a runtime started (`launched`) has no stderr, so its lines go
    to syslog, and to the file `fallback` if syslog refuses them. If `file` cannot be written, it is ignored, and the
    reason is returned; otherwise "".
    """
    why = ""
    try:
        handler = _handler(file, launched, fallback)
    except OSError as error:
        what, hint = f"log_file = {file} cannot be written: {error.strerror}", "mend that, and restart the daemon"
        why = str(SettingError(ErrorCode.SETTING, what, hint=hint))
        handler = _handler(None, launched, fallback)
    handler.setFormatter(_JsonFormatter() if style == "json" else _TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    return why


def set_log_level(level: str) -> None:
    """Change the level from which lines are logged."""
    logging.getLogger().setLevel(level.upper())


def hold_logging() -> list[logging.LogRecord]:
    """Collect log records in the returned list until `set_up_logging` is called. The caller then logs them."""
    held: list[logging.LogRecord] = []
    logging.basicConfig(level=logging.DEBUG, handlers=[_Held(held)], force=True)
    return held


def _handler(file: Path | None, launched: bool, fallback: Path | None) -> logging.Handler:
    if file is not None:
        return LogFile(file)
    if launched and fallback is not None:
        return Syslog(SYSLOG, LogFile(fallback, later=True))
    return logging.StreamHandler(sys.stderr)


class _Held(logging.Handler):
    def __init__(self, held: list[logging.LogRecord]) -> None:
        super().__init__()
        self._held = held

    def emit(self, record: logging.LogRecord) -> None:
        self._held.append(record)


class LogFile(logging.Handler):
    """A log handler that appends lines to a file of mode 0600. A full file is renamed, so that both files together stay
    below twice FILE_BYTES.

    The file is opened at once, or with `later` at the first line.
    """

    def __init__(self, path: Path, *, later: bool = False) -> None:
        super().__init__()
        self._path = path
        self._fd: int | None = None
        if not later:
            self._open()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. Errors are ignored, since there is no other place to report them."""
        try:
            self._write(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except OSError:
            self.handleError(record)

    def close(self) -> None:
        """Close the file. A later record opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        super().close()

    def _write(self, line: bytes) -> None:
        fd = self._open() if self._fd is None else self._fd
        if os.fstat(fd).st_size + len(line) > FILE_BYTES:
            os.close(fd)
            self._fd = None
            self._path.replace(f"{self._path}.1")
            fd = self._open()
        os.write(fd, line)

    def _open(self) -> int:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        return self._fd


class Syslog(logging.Handler):
    """A log handler that sends lines to the socket of syslog or journald, and reconnects after their restart.

    A line that cannot be sent at once goes to `otherwise`, another log handler. The handler never blocks, because then
    the daemon's answers would be late and the runtime would disconnect it.
    """

    def __init__(self, path: Path, otherwise: logging.Handler) -> None:
        super().__init__()
        self._path = path
        self._otherwise = otherwise
        self._socket: socket.socket | None = None

    def setFormatter(self, fmt: logging.Formatter | None) -> None:  # noqa: N802 - logging's own name
        """Set the format for lines to syslog, and for lines that the handler `otherwise` writes because syslog refused
        them."""
        super().setFormatter(fmt)
        self._otherwise.setFormatter(fmt)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record to syslog. If that fails, pass it to `otherwise`, the log handler for such lines."""
        priority = _FACILITY_DAEMON << 3 | _SEVERITIES.get(record.levelno, 5)
        line = f"<{priority}>nri-rdma[{os.getpid()}]: {self.format(record)}".encode(errors="backslashreplace")
        try:
            self._send(line)
        except OSError:  # no server, line too long, or queue full
            self._otherwise.handle(record)

    def close(self) -> None:
        """Close the socket, and close `otherwise`, the log handler for lines that syslog refused."""
        self._disconnect()
        self._otherwise.close()
        super().close()

    def _send(self, line: bytes) -> None:
        if self._socket is not None:
            try:
                self._socket.send(line)
            except (ConnectionError, FileNotFoundError):
                self._disconnect()  # a new server may listen there now
            else:
                return
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            self._socket.connect(str(self._path))
            self._socket.send(line)
        except OSError:
            self._disconnect()
            raise

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


_NAMES = {"uid": "k8s.pod.uid", "container": "k8s.container.name", "sandbox": "rdma.sandbox", "code": "error.type"}
"""The attribute names that spans use, by the names of the fields in a log line about a pod."""


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the extra fields of a log record, and the ids of the span in which it was logged."""
    fields = {key: value for key, value in vars(record).items() if key not in _KNOWN}
    span = current_span()
    if span is not None:
        fields |= {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
    return fields


def _named(fields: dict[str, object]) -> dict[str, object]:
    """Return the fields with the names that span attributes have: `uid` becomes `k8s.pod.uid`, for example. Fields of a
    line that is not about a pod are returned unchanged."""
    if "pod" not in fields:
        return fields
    rest = {_NAMES.get(key, key): value for key, value in fields.items() if key != "pod"}
    return {**pod_names(str(fields["pod"])), **rest}


def _moment(record: logging.LogRecord) -> str:
    """Return the record's time in UTC, with milliseconds."""
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
            **_named(_fields(record)),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
