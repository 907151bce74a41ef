"""A daemon has a port of metrics, and what belongs to it, only where the setting says so."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from ipaddress import ip_address

import pytest

from nri_rdma.daemon.wire_metrics import make_metrics_server
from nri_rdma.doors.control.status_document import RuntimeView
from nri_rdma.model.listen_address import ListenAddress
from nri_rdma.observe.durations import Tally
from tests.rig.scrape import ask, free_port, scrape
from tests.unit.rigs.inside_daemon import InsideDaemon


@pytest.mark.parametrize(
    ("link", "status"), [("synchronized", 200), ("none", 200), ("connected", 503), ("disconnected", 503)]
)
def test_the_daemon_is_well_when_its_runtime_has_reported_its_pods(
    daemon: InsideDaemon, link: str, status: int
) -> None:
    runtime = RuntimeView(
        link=link,
        name="containerd",
        version="2",
        nri="",
        lacks=(),
        launched=False,
        error="" if status == 200 else "gone",
    )
    port = free_port()
    facts = replace(daemon.facts, runtime=lambda: runtime)
    server = make_metrics_server(ListenAddress(ip_address("127.0.0.1"), port), facts, Tally())
    server.start()
    try:
        answered = ask(port, "/healthz")
        assert answered.status == status
        socket = daemon.settings.nri_socket
        sentence = f"the runtime is {link}, so that pods start without nri-rdma ({socket}): gone\n"
        assert answered.text == ("ok\n" if status == 200 else sentence)
        assert scrape(port).value("nri_rdma_runtime_synchronized") == (status == 200)
    finally:
        server.close()


def test_a_daemon_without_the_setting_loads_nothing_for_metrics() -> None:
    code = (
        "import nri_rdma.daemon.daemon, nri_rdma.doors.nri.plugin, sys\n"
        "print([it for it in sys.modules if it.startswith(('prometheus_client', 'nri_rdma.doors.metrics'))])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_server_itself_loads_prometheus_client_with_the_first_page_only() -> None:
    code = (
        "import nri_rdma.daemon.wire_metrics, sys\n"
        "print([it for it in sys.modules if it.startswith('prometheus_client')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
