"""What a door says of pods and containers: a sandbox that starts, a container that is being created, and those in the
runtime's list."""

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
"""Returns the GPU evidence of a container; called only when that is needed."""


FindImage: TypeAlias = Callable[[], Made]
"""Returns where the image of a container is to be found; called only when that is needed."""


class Container(Protocol):
    """A container that is being created, or exists. What is cheap to know is; a door may make the rest when it is first
    asked for, since most containers of a node concern nobody here."""

    @property
    def sandbox_id(self) -> str:
        """The id of the container's pod sandbox."""

    @property
    def pod_uid(self) -> str:
        """The uid of the pod, "" where the runtime does not say."""

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
        """Return what rules can know of the pod."""

    @property
    def env(self) -> Collection[str]:
        """Names of the container's environment variables, at least of those that we may set."""

    @property
    def devices(self) -> Mapping[str, DeviceNumbers]:
        """The container's device nodes: major and minor by path."""

    @property
    def cdi_devices(self) -> tuple[str, ...]:
        """Names of the CDI devices that the runtime reports for the container."""

    @property
    def shares(self) -> frozenset[tuple[str, str]]:
        """The shares of our pools that the kubelet allocated to the container, each with its resource."""

    @property
    def guards(self) -> frozenset[str]:
        """The pools for whose shares the guard will verify the container before it runs."""

    @property
    def guarded_devices(self) -> tuple[str, ...]:
        """The CDI devices for which the guard will verify the container before it runs."""

    @property
    def given_guards(self) -> frozenset[str]:
        """The pools whose guard was given to the container with its shares."""

    @property
    def has_guard_resource(self) -> bool:
        """Return whether the container has the guard resource: the guard will ask about it whatever its pod asks for,
        and lets it run only if its creation was answered here."""

    @property
    def has_handlers_guard(self) -> bool:
        """Return whether the container has the guard of its runtime handler, which asks where the pod has one of our
        annotations, or a claim of our driver."""

    @property
    def is_privileged(self) -> bool:
        """Return whether the container may use all devices of the host. Then its nodes prove nothing."""

    @property
    def net_devices(self) -> frozenset[str]:
        """The host's netdevs that the runtime would move into the container."""

    @property
    def gpus(self) -> GpuEvidence:
        """Return what tells which GPUs the container has."""

    @property
    def was_there(self) -> bool:
        """Return whether the container was created before this daemon started: no explanation of its devices is to
        come."""

    def has_major(self, majors: Collection[int] | None) -> bool:
        """Return whether the container has a device node with one of these major numbers; None: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of a pod's sandbox: who asks for what by annotations. `problem`: why the annotations cannot be read."""

    pod: Pod
    asker: Asker = field(default_factory=Asker)
    request: PodRequest = NOTHING_REQUESTED
    problem: RequestError | None = None

    @classmethod
    def of(cls, pod: Pod, annotations: Mapping[str, str], asker: Asker, prefix: str, spans: Recorder) -> Self:
        """Parse the annotations of a pod; `prefix` is that of our keys."""
        with spans.span("parse"):
            try:
                request = parse_pod_request(annotations, prefix)
            except RequestError as problem:
                return cls(pod=pod, asker=asker, problem=problem)
        return cls(pod=pod, asker=asker, request=request or NOTHING_REQUESTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownContainer:
    """A container of which everything is known already; the fields are as for `Container`."""

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
    pod_uid: str = field(init=False)
    pod_name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sandbox_id", self.pod.sandbox_id)
        object.__setattr__(self, "pod_uid", self.pod.uid)
        object.__setattr__(self, "pod_name", str(self.pod))

    def has_major(self, majors: Collection[int] | None) -> bool:
        """Return whether the container has a device node with one of these major numbers; None: any number."""
        return any(majors is None or major in majors for major, _ in self.devices.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    """A created or running container of a listed pod, with its device nodes (path to major and minor) and the names of
    its variables."""

    name: str
    devices: Mapping[str, DeviceNumbers]
    cgroups_path: str = ""
    cdi_devices: tuple[str, ...] = ()
    is_privileged: bool = False
    env: frozenset[str] = frozenset()
    gpus: GpuEvidence = GpuEvidence()  # noqa: RUF009 - frozen
    shares: frozenset[tuple[str, str]] = frozenset()
    """The shares of our pools that the kubelet allocated to the container, each with its resource."""
    has_run: bool = True
    """Whether its process may have started: a guard may still refuse one that was only created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A pod in the runtime's list."""

    pod: Pod
    annotations: Mapping[str, str]
    containers: tuple[ListedContainer, ...]
    asker: Asker = field(default_factory=Asker)

    def container(self, listed: ListedContainer) -> KnownContainer:
        """Return a container of this pod as one that was there before."""
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
