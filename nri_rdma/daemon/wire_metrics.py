"""Creates the server of the metrics page. Imported only if metrics are switched on."""

from __future__ import annotations

from functools import partial

from nri_rdma.doors.control.status_document import DaemonFacts
from nri_rdma.doors.metrics.measures import MetricsSource, measured_now
from nri_rdma.doors.metrics.metrics_server import MetricsServer
from nri_rdma.doors.metrics.page import Pages
from nri_rdma.doors.nri.runtime_link import unsynchronized
from nri_rdma.engine.view import view_of
from nri_rdma.model.listen_address import ListenAddress
from nri_rdma.observe.durations import Tally


def make_metrics_server(address: ListenAddress, facts: DaemonFacts, tally: Tally) -> MetricsServer:
    """Return the server of the metrics page. The caller starts and closes it."""
    health = partial(_health, facts)
    source = MetricsSource(
        tally=tally,
        view=partial(view_of, facts.engine),
        health=health,
        reload_error=facts.reload_error,
        driver=facts.driver,
        traces=facts.traces,
        troubles=facts.troubles,
        guards=facts.guards,
    )
    return MetricsServer(address, Pages(partial(measured_now, source), health).answer, tally.settle)


def _health(facts: DaemonFacts) -> str:
    """Return the reason why the daemon does not serve pods, "" if it does. It serves pods while its session with the
    runtime is synchronized."""
    runtime = facts.runtime()
    return unsynchronized(runtime.link, str(facts.settings.nri_socket), runtime.error)
