"""Where log lines go."""

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.observe import logs
from nri_rdma.observe.logs import LogFile, Syslog, set_up_logging
from nri_rdma.observe.spans import Recorder


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose name is short enough for sockets. Logging is as before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    with TemporaryDirectory(prefix="nri-") as folder:
        yield Path(folder)
    for handler in root.handlers:
        handler.close()
    root.handlers = handlers
    root.setLevel(level)


def _syslog(path: Path) -> socket.socket:
    served = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    served.bind(str(path))
    served.settimeout(5)
    return served


def _record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("a", level, "", 0, text, (), None)


def test_a_file_is_for_its_owner_only_and_is_made_with_its_folder(place: Path) -> None:
    set_up_logging("info", "text", place / "new/daemon.log")
    logging.getLogger("x").info("hello", extra={"pod": "default/one"})
    path = place / "new/daemon.log"
    assert path.read_text().endswith(' info hello pod="default/one"\n')
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_place_of_the_file_is_not_followed(place: Path) -> None:
    (place / "daemon.log").symlink_to(place / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        LogFile(place / "daemon.log")


def test_a_long_file_is_kept_once_and_begun_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 100)
    handler = LogFile(place / "daemon.log")
    for number in range(9):
        handler.emit(_record(f"line {number} {'x' * 33}"))
    handler.close()
    kept = [(place / name).read_text().split()[1::3] for name in ("daemon.log.1", "daemon.log")]
    assert kept == [["6", "7"], ["8"]]


def test_a_launched_daemon_logs_to_syslog_with_a_severity(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "SYSLOG", place / "log")
    with _syslog(place / "log") as served:
        set_up_logging("info", "json", launched=True, fallback=place / "daemon.log")
        logging.getLogger("x").warning("careful")
        line = served.recv(65536).decode()
    assert line.startswith("<28>nri-rdma[")
    assert '"message": "careful"' in line
    assert not (place / "daemon.log").exists()


def test_without_a_syslog_lines_go_to_the_file_and_come_back_when_there_is_one(place: Path) -> None:
    handler = Syslog(place / "log", LogFile(place / "daemon.log", later=True))
    handler.emit(_record("nobody there yet"))
    with _syslog(place / "log") as served:
        handler.emit(_record("first"))
        assert served.recv(65536).decode().endswith(": first")
    handler.emit(_record("it has gone"))
    (place / "log").unlink()
    with _syslog(place / "log") as served:
        handler.emit(_record("another one"))
        assert served.recv(65536).decode().endswith(": another one")
    handler.close()
    assert (place / "daemon.log").read_text().splitlines() == ["nobody there yet", "it has gone"]


def test_a_syslog_that_does_not_read_costs_no_time_and_no_line(place: Path) -> None:
    handler = Syslog(place / "log", LogFile(place / "daemon.log", later=True))
    with _syslog(place / "log") as served:
        texts = [f"line {number}" for number in range(3000)]
        for text in texts:
            handler.emit(_record(text))
        served.setblocking(False)
        got = []
        while True:
            try:
                got.append(served.recv(65536).decode().partition(": ")[2])
            except BlockingIOError:
                break
    handler.close()
    assert 0 < len(got) < 3000
    assert sorted(got + (place / "daemon.log").read_text().splitlines()) == sorted(texts)


def test_a_line_that_is_too_long_for_syslog_is_in_the_file(place: Path) -> None:
    handler = Syslog(place / "log", LogFile(place / "daemon.log", later=True))
    with _syslog(place / "log"):
        handler.emit(_record("x" * (4 << 20)))
    handler.close()
    assert (place / "daemon.log").stat().st_size > 4 << 20


def _lines(place: Path, style: str) -> list[str]:
    return (place / f"{style}.log").read_text().splitlines()


def test_a_line_within_a_span_has_its_ids_by_which_a_log_store_finds_the_trace(place: Path) -> None:
    for style in ("json", "text"):
        set_up_logging("info", style, place / f"{style}.log")
        with Recorder().span("attach") as span:
            logging.getLogger("x").info("attached", extra={"pod": "default/one"})
        logging.getLogger("x").info("stopped")
        ids = {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}
        within, outside = _lines(place, style)
        if style == "json":
            assert {key: json.loads(within)[key] for key in ids} == ids
        else:
            assert within.endswith("".join(f' {key}="{value}"' for key, value in ids.items()))
        assert "trace_id" not in outside


def test_an_unrecorded_span_has_no_ids(place: Path) -> None:
    set_up_logging("info", "json", place / "json.log")
    with Recorder(capacity=0).span("attach"):
        logging.getLogger("x").info("attached")
    assert "trace_id" not in _lines(place, "json")[0]


def test_a_line_for_machines_names_the_pod_as_spans_do(place: Path) -> None:
    set_up_logging("info", "json", place / "json.log")
    facts = {"pod": "train/one", "uid": "u-1", "sandbox": "s-1", "container": "main", "code": "DEVICES-EXHAUSTED"}
    logging.getLogger("x").warning("refused", extra=facts)
    found = json.loads(_lines(place, "json")[0])
    named = {
        "k8s.namespace.name": "train",
        "k8s.pod.name": "one",
        "k8s.pod.uid": "u-1",
        "k8s.container.name": "main",
        "rdma.sandbox": "s-1",
        "error.type": "DEVICES-EXHAUSTED",
    }
    assert {key: found.get(key) for key in named} == named
    assert not facts.keys() & found.keys()


def test_a_container_without_its_pod_is_a_text_and_no_name(place: Path) -> None:
    set_up_logging("info", "json", place / "json.log")
    logging.getLogger("x").warning("cannot remove", extra={"container": "train/one, container main"})
    assert json.loads(_lines(place, "json")[0])["container"] == "train/one, container main"


def test_a_line_for_people_has_the_pod_in_one_word(place: Path) -> None:
    set_up_logging("info", "text", place / "text.log")
    logging.getLogger("x").warning("refused", extra={"pod": "train/one", "code": "NOT-READY"})
    assert _lines(place, "text")[0].endswith(' warning refused pod="train/one" code="NOT-READY"')
