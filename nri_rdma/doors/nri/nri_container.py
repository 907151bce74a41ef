"""A container of an NRI message. Its fields are decoded when first read, because most containers of a node ask for
nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar  # Any: generated messages

from nri_rdma.decide.gpus import GpuEvidence
from nri_rdma.doors.nri.messages import (
    asker_from,
    brings_devices,
    cdi_devices,
    container_name,
    device_numbers,
    env_names,
    guarded_devices,
    guarded_pools,
    has_guard_resource,
    has_handlers_guard,
    has_our_names,
    is_privileged,
    net_devices,
    pod_from,
    shown_gpus,
)
from nri_rdma.model.device import DeviceNumbers
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.text.share_annotations import KEY_PREFIX, given_guards, shares_in

_T = TypeVar("_T")
_SHARES = KEY_PREFIX.encode()


class _lazy(Generic[_T]):  # noqa: N801 - a decorator
    """A property that is computed once. Unlike functools.cached_property in Python 3.11 it takes no lock, which would
    cost more than most of the computations here."""

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, holder: Any, _kind: type[Any]) -> _T:
        value = holder.__dict__[self._name] = self._compute(holder)
        return value


class NriContainer:
    """The container in a CreateContainerRequest. It implements nri_rdma.engine.container.Container."""

    was_there = False

    def __init__(self, message: Any, payload: bytes) -> None:
        """`message` is the decoded CreateContainerRequest, `payload` its bytes."""
        self._message = message
        self._payload = payload
        self.sandbox_id: str = message.pod.id
        self.annotations: Mapping[str, str] = message.pod.annotations

    @_lazy
    def pod_name(self) -> str:
        """The pod, as NAMESPACE/NAME."""
        return f"{self._message.pod.namespace}/{self._message.pod.name}"

    @_lazy
    def name(self) -> str:
        """The container's name in the pod."""
        return container_name(self._message.container)

    @_lazy
    def pod(self) -> Pod:
        """The container's pod sandbox."""
        return pod_from(self._message.pod)

    @_lazy
    def asker(self) -> Asker:
        """Return the facts about the pod that rules can match."""
        return asker_from(self._message.pod, self.pod)

    @_lazy
    def env(self) -> Collection[str]:
        """The names of those environment variables of the container that we might set, too."""
        return env_names(self._message.container) if has_our_names(self._payload) else ()

    @_lazy
    def devices(self) -> Mapping[str, DeviceNumbers]:
        """The container's device nodes: path to major and minor number."""
        return device_numbers(self._message.container)

    @_lazy
    def cdi_devices(self) -> tuple[str, ...]:
        """The names of the CDI devices that the runtime reports for the container."""
        return cdi_devices(self._message.container)

    @_lazy
    def shares(self) -> frozenset[tuple[str, str]]:
        """The shares that the kubelet allocated to the container: units of the extended resources of our pools, as
        pairs of resource and unit id."""
        return shares_in(self._message.container.annotations) if _SHARES in self._payload else frozenset()

    @property
    def guards(self) -> frozenset[str]:
        """The pools for which the container has the guard, an OCI hook that keeps a container from starting without its
        devices."""
        return guarded_pools(self._message.container)

    @_lazy
    def has_guard_resource(self) -> bool:
        """Return whether the container has the guard, an OCI hook that keeps it from starting without its devices,
        because its pod requested the guard resource: an extended resource that only adds this hook."""
        return has_guard_resource(self._message.container)

    @property
    def has_handlers_guard(self) -> bool:
        """Return whether the runtime adds the guard, an OCI hook that keeps a container from starting without its
        devices, to all containers of this runtime handler."""
        return has_handlers_guard(self._message.container)

    @property
    def guarded_devices(self) -> tuple[str, ...]:
        """The CDI devices for which the container has the guard, an OCI hook that keeps a container from starting
        without its devices."""
        return guarded_devices(self._message.container)

    @property
    def given_guards(self) -> frozenset[str]:
        """The pools whose allocation asked the runtime to add the guard, an OCI hook that keeps a container from
        starting without its devices. An annotation of the container says so; the runtime may have ignored the
        request."""
        return given_guards(self._message.container.annotations)

    @_lazy
    def is_privileged(self) -> bool:
        """Return whether the container may use all devices of the host."""
        return is_privileged(self._message.container)

    @_lazy
    def net_devices(self) -> frozenset[str]:
        """The host's netdevs that the runtime would move into the container."""
        return net_devices(self._message.container)

    @property
    def gpus(self) -> GpuEvidence:
        """Return the fields of the message that show which GPUs the container has."""
        return shown_gpus(self._message.container)

    @property
    def cgroups_path(self) -> str:
        """Return the path where the runtime will make the container's cgroup."""
        path: str = self._message.container.linux.cgroups_path
        return path

    def has_major(self, majors: Collection[int] | None) -> bool:
        """Return whether the container has a device node with one of these major numbers. With None, return whether it
        has any device node."""
        known = self.__dict__.get("devices")
        if known is None:
            return brings_devices(self._message.container, majors)
        for major, _ in known.values():  # noqa: SIM110 - a loop is half the cost of any() with a generator
            if majors is None or major in majors:
                return True
        return False
