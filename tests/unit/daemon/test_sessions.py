"""A daemon's sessions with the runtime: what Configure and Synchronize lead to."""

from dataclasses import dataclass, field

import pytest

from nri_rdma.config.settings import Memlock
from nri_rdma.daemon.sessions import Sessions, default_memlock
from nri_rdma.doors.nri.plugin import Plugin
from nri_rdma.doors.nri.runtime_link import Link
from nri_rdma.model.request import UNLIMITED
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from nri_rdma.ttrpc.wire import Request
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.nri_calls import SERVICE, Refusals

GIVEN = 64 << 10


@dataclass
class _Door:
    """A door whose session is made by hand."""

    launched: bool = False
    link: Link = Link.CONNECTED
    last_error: str = ""
    last_error_at: float = 0.0
    calls: list[str] = field(default_factory=list)

    def run(self) -> None: ...

    def stop(self) -> None: ...

    def synchronized(self) -> None:
        self.link = Link.SYNCHRONIZED
        self.calls.append("door")


@pytest.fixture
def door() -> _Door:
    """The door of the sessions."""
    return _Door()


@pytest.fixture
def sessions(daemon: InsideDaemon, door: _Door) -> Sessions:
    """Sessions of this daemon."""
    return Sessions(
        daemon.engine,
        daemon.spans,
        Refusals(),
        Memlock(bytes=GIVEN),
        door=lambda: door,
        on_synchronized=lambda: door.calls.append("daemon"),
        engines=lambda: ("podman",),
    )


def _configure(plugin: Plugin, version: str, *, timeout_ms: int = 2000, nri_version: str = "") -> None:
    message = nri.ConfigureRequest(
        runtime_name="containerd", runtime_version=version, NRI_version=nri_version, request_timeout=timeout_ms
    )
    _call(plugin, "Configure", message.SerializeToString())


def _call(plugin: Plugin, method: str, payload: bytes) -> None:
    plugin.answer(Request(1, ttrpc.Request(service=SERVICE, method=method, payload=payload), 0))


def test_status_shows_the_runtime_of_the_present_session(sessions: Sessions, door: _Door) -> None:
    assert (sessions.view().name, sessions.view().link) == ("", "connected")
    _configure(sessions.make_plugin(0), "v2.1.9")
    door.last_error, door.last_error_at = "gone", 7.5
    view = sessions.view()
    assert (view.name, view.version, view.launched, view.error) == ("containerd", "v2.1.9", False, "gone")
    assert view.error_since == 7.5


def test_where_only_podman_asks_no_runtime_is_missed(sessions: Sessions, door: _Door) -> None:
    door.link, door.last_error = Link.DISCONNECTED, "No such file or directory"
    view = sessions.view()
    assert (view.link, view.engines, view.error) == (Link.NONE, ("podman",), "")
    _configure(sessions.make_plugin(0), "v2.1.9")
    assert sessions.view().link == Link.DISCONNECTED, "a runtime that was there once is missed"


def test_a_daemon_that_the_runtime_started_misses_it(sessions: Sessions, door: _Door) -> None:
    door.link, door.launched = Link.DISCONNECTED, True
    assert sessions.view().link == Link.DISCONNECTED


def test_the_daemon_is_called_when_the_runtime_has_reported_its_pods(sessions: Sessions, door: _Door) -> None:
    plugin = sessions.make_plugin(0)
    _configure(plugin, "v2.1.9")
    assert door.calls == []
    _call(plugin, "Synchronize", nri.SynchronizeRequest().SerializeToString())
    assert door.calls == ["door", "daemon"]
    assert sessions.view().link == "synchronized"


@pytest.mark.parametrize(("version", "nri_text"), [("v2.1.9", "0.8.0"), ("of a friend", "not known")])
def test_the_log_says_which_nri_the_runtime_has(
    sessions: Sessions, version: str, nri_text: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = sessions.make_plugin(0)
    _configure(plugin, version)
    with caplog.at_level("INFO"):
        _call(plugin, "Synchronize", nri.SynchronizeRequest().SerializeToString())
    (line,) = (vars(it) for it in caplog.records if it.message == "synchronized")
    assert (line["runtime"], line["version"], line["nri"]) == ("containerd", version, nri_text)


@pytest.mark.parametrize(("launched", "calls"), [(True, ["door", "daemon"]), (False, [])])
def test_a_runtime_that_reports_no_pods_to_whom_it_starts_is_not_waited_for(
    sessions: Sessions, door: _Door, launched: bool, calls: list[str]
) -> None:
    door.launched = launched
    _configure(sessions.make_plugin(0), "v1.7.20", timeout_ms=0)
    assert door.calls == calls


@pytest.mark.parametrize(("version", "default", "dropped_by"), [("v2.1.9", GIVEN, ""), ("v1.7.6", None, "v1.7.6")])
def test_containers_get_the_memlock_that_the_runtime_applies(
    sessions: Sessions,
    daemon: InsideDaemon,
    version: str,
    default: int | None,
    dropped_by: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _configure(sessions.make_plugin(0), version, timeout_ms=0)
    warned = [vars(it)["runtime"] for it in caplog.records if "does not set RLIMIT_MEMLOCK" in it.message]
    assert warned == ([f"containerd {dropped_by}"] if dropped_by else [])
    bounds = daemon.engine.offering.memlock
    assert bounds.default == default
    assert bounds.dropped_by == (f"containerd {dropped_by}" if dropped_by else "")
    assert bounds.ceiling == UNLIMITED  # of a process that cannot be seen


def test_an_automatic_memlock_is_unlimited_where_the_runtime_may() -> None:
    automatic = Memlock(automatic=True)
    assert default_memlock(automatic, UNLIMITED) == UNLIMITED
    assert default_memlock(automatic, GIVEN) is None
    assert default_memlock(Memlock(bytes=GIVEN), 1) == GIVEN
    assert default_memlock(Memlock(), UNLIMITED) is None
