"""The values in which doors report pods and containers: a sandbox that starts, a container that is being created, and
the pods and containers in the runtime's list."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeAlias

from nri_rdma.decide.gpus import GpuEvidence
from nri_rdma.errors import RequestError
from nri_rdma.model.device import DeviceNumbers
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.model.request import PodRequest
from nri_rdma.model.userspace import Made
from nri_rdma.observe.spans import Recorder
from nri_rdma.text.annotations import parse_pod_request

NOTHING_REQUESTED = PodRequest(requests=())
ShowGpus: TypeAlias = Callable[[], GpuEvidence]
"""Returns what a container shows of its GPUs; called only when this is needed."""


FindImage: TypeAlias = Callable[[], Made]
"""Returns where a container's image can be found on the host; called only when this is needed."""


class Container(Protocol):
    """A container that is being created or exists. A door may compute expensive properties when they are first read,
    because most containers of a node have nothing to do with RDMA."""

    @property
    def sandbox_id(self) -> str:
        """The id of the container's pod sandbox."""

    @property
    def pod_name(self) -> str:
        """The pod, as NAMESPACE/NAME."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations of the pod."""

    @property
    def name(self) -> str:
        """The container's name in the pod."""

    @property
    def pod(self) -> Pod:
        """The container's pod sandbox."""

    @property
    def asker(self) -> Asker:
        """The pod's namespace, labels and other properties that the administrator's rules can match."""

    @property
    def env(self) -> Collection[str]:
        """Names of the container's environment variables, at least of those that nri-rdma may set."""

    @property
    def devices(self) -> Mapping[str, DeviceNumbers]:
        """The container's device nodes: major and minor by path."""

    @property
    def cdi_devices(self) -> tuple[str, ...]:
        """Names of the CDI devices that the runtime reports for the container."""

    @property
    def shares(self) -> frozenset[tuple[str, str]]:
        """The container's device-plugin allocation: a pair of the resource and the device id for each unit that the
        kubelet allocated from nri-rdma's pools."""

    @property
    def guards(self) -> frozenset[str]:
        """The pools for whose shares the container got the guard, an OCI hook that keeps a container from starting
        without its devices."""

    @property
    def guarded_devices(self) -> tuple[str, ...]:
        """The CDI devices whose specs gave the container the guard, an OCI hook that keeps a container from starting
        without its devices."""

    @property
    def given_guards(self) -> frozenset[str]:
        """The pools for whose shares the device plugin gave the container a guard, the OCI hook that keeps it from
        starting without its devices. `guards` lacks such a pool if the runtime did not add the hook because it does not
        read CDI specs."""

    @property
    def has_guard_resource(self) -> bool:
        """Whether the container requests the guard resource, which brings the guard: an OCI hook that keeps a container
        from starting without its devices. This hook always asks the daemon. It lets the container run only if this
        daemon answered the container's CreateContainer call."""

    @property
    def has_handlers_guard(self) -> bool:
        """Whether the container's runtime handler brings the guard, an OCI hook that keeps a container from starting
        without its devices. This hook asks the daemon only about pods that have an annotation of nri-rdma or a claim of
        its DRA driver."""

    @property
    def is_privileged(self) -> bool:
        """Whether the container may use all devices of the host. The device nodes of such a container do not show which
        devices were allocated to it."""

    @property
    def net_devices(self) -> frozenset[str]:
        """The host's netdevs that the runtime would move into the container."""

    @property
    def gpus(self) -> GpuEvidence:
        """The facts that show which GPUs the container has."""

    @property
    def was_there(self) -> bool:
        """Whether the container is in the runtime's list of existing containers, and is not being created now. CDI
        specs are not read again to explain the device nodes of such a container."""

    def has_major(self, majors: Collection[int] | None) -> bool:
        """Return whether the container has a device node with one of these major numbers; None: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of a pod's sandbox, with the requests in its annotations."""

    pod: Pod
    asker: Asker = field(default_factory=Asker)
    request: PodRequest = NOTHING_REQUESTED
    problem: RequestError | None = None
    """The error in the annotations, if they cannot be read."""

    @classmethod
    def of(cls, pod: Pod, annotations: Mapping[str, str], asker: Asker, prefix: str, spans: Recorder) -> Self:
        """Parse the annotations of a pod; `prefix` is the prefix of nri-rdma's keys."""
        try:
            with spans.span("parse"):
                request = parse_pod_request(annotations, prefix)
        except RequestError as problem:
            return cls(pod=pod, asker=asker, problem=problem)
        return cls(pod=pod, asker=asker, request=request or NOTHING_REQUESTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownContainer:
    """A `Container` with all its facts as plain fields."""

    pod: Pod
    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    asker: Asker = field(default_factory=Asker)
    env: Collection[str] = ()
    devices: Mapping[str, DeviceNumbers] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    shares: frozenset[tuple[str, str]] = frozenset()
    guards: frozenset[str] = frozenset()
    guarded_devices: tuple[str, ...] = ()
    given_guards: frozenset[str] = frozenset()
    has_guard_resource: bool = False
    has_handlers_guard: bool = False
    is_privileged: bool = False
    net_devices: frozenset[str] = frozenset()
    gpus: GpuEvidence = GpuEvidence()  # noqa: RUF009 - frozen
    was_there: bool = False
    sandbox_id: str = field(init=False)
    pod_name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sandbox_id", self.pod.sandbox_id)
        object.__setattr__(self, "pod_name", str(self.pod))

    def has_major(self, majors: Collection[int] | None) -> bool:
        """Return whether the container has a device node with one of these major numbers; None: any number."""
        return any(majors is None or major in majors for major, _ in self.devices.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    """A created or running container in the runtime's list. `devices` are its device nodes (path to major and minor),
    `env` the names of its environment variables."""

    name: str
    devices: Mapping[str, DeviceNumbers]
    cgroups_path: str = ""
    cdi_devices: tuple[str, ...] = ()
    is_privileged: bool = False
    env: frozenset[str] = frozenset()
    gpus: GpuEvidence = GpuEvidence()  # noqa: RUF009 - frozen
    shares: frozenset[tuple[str, str]] = frozenset()
    """The container's device-plugin allocation: a pair of the resource and the device id for each unit that the kubelet
    allocated from nri-rdma's pools."""
    has_run: bool = True
    """Whether its program may have started. False: it was only created, and the guard (an OCI hook) may still keep it
    from starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A pod in the runtime's list."""

    pod: Pod
    annotations: Mapping[str, str]
    containers: tuple[ListedContainer, ...]
    asker: Asker = field(default_factory=Asker)

    def container(self, listed: ListedContainer) -> KnownContainer:
        """Return one of this pod's containers as a `Container` whose `was_there` is true."""
        return KnownContainer(
            pod=self.pod,
            name=listed.name,
            annotations=self.annotations,
            asker=self.asker,
            env=listed.env,
            devices=listed.devices,
            cdi_devices=listed.cdi_devices,
            shares=listed.shares,
            is_privileged=listed.is_privileged,
            gpus=listed.gpus,
            was_there=True,
        )
