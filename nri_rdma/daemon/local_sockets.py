"""The sockets of a daemon on which programs of this host ask it, wired: the control socket, and that of OCI hooks."""

from __future__ import annotations

from typing import Self

from nri_rdma.config.settings import Memlock, Settings
from nri_rdma.doors.control.server import ControlServer
from nri_rdma.doors.control.status import DaemonFacts
from nri_rdma.doors.oci.containers import Containers
from nri_rdma.doors.oci.questions import Given
from nri_rdma.doors.oci.server import HookServer
from nri_rdma.host.netlink.kernel import LinuxKernel
from nri_rdma.host.watch.processes import start_of
from nri_rdma.model.request import UNLIMITED
from nri_rdma.tasks.listeners import Listeners

CLOSE_HOOKS_S = 1.0
"""How long the end waits for containers that ask by hooks: an attach takes milliseconds, and a hook asks again."""


class LocalSockets:
    """Both servers; the creator closes them."""

    def __init__(self, settings: Settings, control: ControlServer, hooks: HookServer) -> None:
        self._settings = settings
        self._control = control
        self._hooks = hooks

    @classmethod
    def make(cls, facts: DaemonFacts, kernel: LinuxKernel, listeners: Listeners) -> Self:
        """Wire both for a daemon."""
        default = default_given(facts.settings.memlock)
        containers = Containers(facts.engine, kernel.handed, start_of, facts.spans, default)
        return cls(facts.settings, ControlServer(facts), HookServer(containers, listeners))

    def serve(self) -> None:
        """Listen; returns at once. Raises OSError."""
        self._control.serve(self._settings.control_path)
        self._hooks.serve(self._settings.hook_socket)

    def close(self) -> None:
        """Hear nobody any more. Before the engine's workers are closed: hooks wait for them."""
        self._control.close()
        self._hooks.close(CLOSE_HOOKS_S)


def default_given(memlock: Memlock) -> Given:
    """Return the answer for a container that asks for no limit: what the setting says, unlimited where it is automatic
    and the engine may."""
    if memlock.automatic:
        return Given(memlock=UNLIMITED)
    return Given(memlock=memlock.bytes, must=memlock.bytes is not None)
