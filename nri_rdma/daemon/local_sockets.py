"""Creates the daemon's local servers: the control socket, the socket for OCI hooks, and the metrics page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self  # Any: a document of JSON

from nri_rdma.attach.survey import pod_interface
from nri_rdma.config.settings import Memlock, Settings
from nri_rdma.doors.control.control_server import ControlServer
from nri_rdma.doors.control.status_document import DaemonFacts
from nri_rdma.doors.oci.containers import Containers
from nri_rdma.doors.oci.hook_server import HookServer
from nri_rdma.doors.oci.questions import Given
from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.host.watch.processes import start_of
from nri_rdma.model.request import UNLIMITED
from nri_rdma.model.trouble import Part, Trouble
from nri_rdma.observe.durations import Tally
from nri_rdma.tasks.listeners import Listeners

if TYPE_CHECKING:
    from nri_rdma.doors.metrics.metrics_server import MetricsServer

CLOSE_HOOKS_S = 1.0
"""How long the daemon's end waits for answers to OCI hooks, in seconds. An attach takes milliseconds, and a hook
without an answer asks again."""


class LocalSockets:
    """The control socket, the socket for OCI hooks and the metrics page, until the creator closes them."""

    def __init__(
        self, settings: Settings, control: ControlServer, hooks: HookServer, metrics: MetricsServer | None
    ) -> None:
        self._settings = settings
        self._control = control
        self._hooks = hooks
        self._metrics = metrics

    @classmethod
    def make(cls, facts: DaemonFacts, kernel: LinuxKernel, listeners: Listeners, tally: Tally | None) -> Self:
        """Create the servers for a daemon. `tally` has the counts for the metrics page; None if metrics are switched
        off."""
        default = default_given(facts.settings.memlock)
        containers = Containers(
            facts.engine,
            kernel.handed,
            partial(_interface_of, kernel),
            start_of,
            facts.spans,
            default,
            facts.settings.proof_timeout,
        )
        hooks = HookServer(containers, listeners, tally.hook_calls if tally is not None else None)
        return cls(facts.settings, ControlServer(facts), hooks, _metrics_server(facts, tally))

    def serve(self) -> tuple[Trouble, ...]:
        """Start to listen, and return a Trouble for each socket that is not available; the other sockets are served.
        Does not block."""
        if self._metrics is not None:
            self._metrics.start()
        return (
            *_tried(self._control.serve, self._settings.control_path, "`nri-rdma status` and the guard's hook"),
            *_tried(self._hooks.serve, self._settings.hook_socket, "hooks of podman and Docker"),
        )

    def metrics(self) -> Mapping[str, Any] | None:
        """Return the fields of MetricsView, such as the address of the metrics page and why it is not served. None if
        the page is switched off."""
        return asdict(self._metrics.view()) if self._metrics is not None else None

    def close(self) -> None:
        """Stop all servers. Call it before the engine's workers are closed, because hooks wait for them."""
        self._control.close()
        self._hooks.close(CLOSE_HOOKS_S)
        if self._metrics is not None:
            self._metrics.close()


def _tried(serve: Callable[[Path], None], path: Path, whose: str) -> Iterator[Trouble]:
    try:
        serve(path)
    except OSError as error:
        what = f"{whose} cannot reach the daemon: {error.strerror or error}"
        hint = "mend that, or change control_socket or state_dir, and restart the daemon"
        told = SettingError(ErrorCode.SETTING, what, where=str(path), hint=hint)
        yield Trouble(part=Part.SOCKETS, why=str(told))


def _metrics_server(facts: DaemonFacts, tally: Tally | None) -> MetricsServer | None:
    address = facts.settings.metrics_address
    if address is None or tally is None:
        return None
    from nri_rdma.daemon.wire_metrics import make_metrics_server

    return make_metrics_server(address, facts, tally)


def _interface_of(kernel: LinuxKernel, namespace: int) -> str:
    """Return the name of the network interface by which a container reaches other hosts: the only one besides lo that
    is up or, of several, the one with the default route. `namespace` is a file descriptor of its network namespace.
    Raises KernelError."""
    path = f"/proc/self/fd/{namespace}"
    with closing(kernel.open_namespace(path)) as opened:
        return pod_interface(kernel.links(opened), lambda: kernel.routing(opened))


def default_given(memlock: Memlock) -> Given:
    """Return the RLIMIT_MEMLOCK that the OCI hook sets for a container whose request has none. It is the value of the
    setting `memlock`; `auto` means unlimited, if the container engine may set that."""
    if memlock.automatic:
        return Given(memlock=UNLIMITED)
    return Given(memlock=memlock.bytes, must=memlock.bytes is not None)
