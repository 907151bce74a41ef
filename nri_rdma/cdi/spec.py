"""A CDI spec: the edits of containers that ask for its devices.

The schema is that of CDI 0.3.0 to 1.1.0. These values are what nri_rdma.cdi.reading has checked; whoever makes one by
hand checks it by writing and reading it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

INFINIBAND_FOLDER = "/dev/infiniband/"


class Version(StrEnum):
    """The versions of the CDI specification that runtimes accept, the oldest first."""

    V0_3_0 = "0.3.0"
    V0_4_0 = "0.4.0"
    V0_5_0 = "0.5.0"
    V0_6_0 = "0.6.0"
    V0_7_0 = "0.7.0"
    V0_8_0 = "0.8.0"
    V1_0_0 = "1.0.0"
    V1_1_0 = "1.1.0"


class NodeType(StrEnum):
    """The kind of file that a device node is, in the letters of mknod."""

    BLOCK = "b"
    CHARACTER = "c"
    UNBUFFERED = "u"
    FIFO = "p"


class HookName(StrEnum):
    """The moments at which an OCI hook runs."""

    PRESTART = "prestart"
    CREATE_RUNTIME = "createRuntime"
    CREATE_CONTAINER = "createContainer"
    START_CONTAINER = "startContainer"
    POSTSTART = "poststart"
    POSTSTOP = "poststop"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node of the container. What is None or "" the runtime takes from the host's node at injection.

    `host_path` "" is the same path as in the container; `permissions` are letters of ``rwm``, or ``none``; "" is all.
    """

    path: str
    host_path: str = ""
    type: NodeType | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    @property
    def is_rdma(self) -> bool:
        """Return whether the node belongs to the RDMA subsystem: on the host below /dev/infiniband."""
        return (self.host_path or self.path).startswith(INFINIBAND_FOLDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetDevice:
    """A netdev of the host that moves into the container's network namespace, and its name there."""

    host_interface_name: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """An OCI hook; `args` has argv[0] too, `timeout` is in seconds."""

    hook_name: HookName
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mount; `type` "" leaves it to the runtime, which takes it for what `options` say."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelRdt:
    """Classes of service for caches and memory bandwidth. An empty list of schemata is one: it needs CDI 1.1.0."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """The ``containerEdits``: changes of a container. `env` are ``NAME=value``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether the edits are empty; a spec may have such edits, a device may not."""
        return self == Edits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device of a spec, by its name within the spec's kind. Annotations are for whoever reads specs, not for pods."""

    name: str
    edits: Edits
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The vendor and the class of devices: ``vendor/class``."""

    vendor: str
    device_class: str

    def __str__(self) -> str:
        return f"{self.vendor}/{self.device_class}"

    def qualified(self, device: str) -> str:
        """Return the name that a container asks with."""
        return f"{self}={device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A CDI spec. `edits` come once into a container that asks for any of its devices."""

    version: Version
    kind: Kind
    devices: tuple[Device, ...]
    edits: Edits = field(default_factory=Edits)
    annotations: tuple[tuple[str, str], ...] = ()
