"""Read-only access to the host's kernel for the dry run. No network namespace of a pod is opened or entered."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from nri_rdma.attach.port import Namespace, NamespaceError, NamespaceIdentity, Survey
from nri_rdma.attach.survey import Host
from nri_rdma.commands.dryrun.finding_out import Unopened
from nri_rdma.model.device import RdmaNetns
from nri_rdma.model.link import LinkState
from nri_rdma.model.nldev import RdmaDeviceState, RdmaObject
from nri_rdma.model.routing import Routing

_OWN = Path("/proc/self/ns/net")


class Onlooker:
    """Read-only access to the host's kernel, in the form that nri_rdma.attach.survey needs. The network namespace of a
    pod is not read; it is assumed to have the netdevs `pod_links`."""

    def __init__(self, kernel: Host, pod_links: tuple[LinkState, ...]) -> None:
        self._kernel = kernel
        self._pod_links = pod_links

    @property
    def host(self) -> Namespace:
        return self._kernel.host

    def open_namespace(self, path: str) -> Unopened:
        """Return the network namespace at the path without opening it. Raises KernelError if the path does not
        exist."""
        try:
            is_host = Path(path).samefile(_OWN)
        except OSError as error:
            raise NamespaceError(f"look for the network namespace {path}", error.errno or 0) from error
        return Unopened(NamespaceIdentity(boot_id="", cookie=0, path=path), is_host)

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]:
        """Return the host's netdevs. For a pod's namespace, return the netdevs that every pod is assumed to have."""
        return self._kernel.links(namespace) if namespace is self._kernel.host else self._pod_links

    def routing(self, namespace: Namespace) -> Routing:
        """Return an empty Routing: a dry run does not compare routes in the pod."""
        return Routing()

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey:
        return self._kernel.survey(ifindexes, sockets=sockets)

    def rdma_netns(self) -> RdmaNetns:
        return self._kernel.rdma_netns()

    def rdma_devices(self, namespace: Namespace) -> tuple[RdmaDeviceState, ...]:
        return self._kernel.rdma_devices(self._kernel.host)

    def rdma_objects(self, index: int) -> tuple[RdmaObject, ...]:
        return self._kernel.rdma_objects(index)

    def can_move_rdma(self, index: int, target: Namespace) -> bool:
        """Return True. Whether the driver supports the move cannot be found out without opening the namespace."""
        return True
