"""The values of a CDI spec: its devices, and the edits of a container that gets them.

The schema is that of CDI 0.3.0 to 1.1.0. nri_rdma.cdi.reading returns only valid values. Code that builds a spec itself
must check it: it writes the spec as text and reads that again.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """The type of a device node, in the letters of mknod."""

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
    """A device node of the container. Fields that are None or "" are taken by the runtime from the host's node.

    `host_path` "" means the same path as in the container. `permissions` are letters of ``rwm``, or ``none``; "" means
    all.
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
        """Whether the node belongs to the RDMA subsystem: its path on the host is below /dev/infiniband."""
        return (self.host_path or self.path).startswith(INFINIBAND_FOLDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetDevice:
    """A netdev of the host that moves into the container's network namespace, and its name there."""

    host_interface_name: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """An OCI hook. `args` includes argv[0]; `timeout` is in seconds."""

    hook_name: HookName
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mount of the container. `type` "": the runtime derives the type from `options`."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelRdt:
    """Intel's classes of service for caches and memory bandwidth. `schemata` None means that the spec has no such key;
    an empty list needs CDI 1.1.0."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """The ``containerEdits`` of a spec or device: what a container gets. `env` has texts ``NAME=value``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there are no edits. A spec may have none; a device must have some."""
        return self == Edits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device of a spec. `name` is without the vendor and class of the spec. The annotations are for programs that
    read the spec; pods do not get them."""

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
        """Return the qualified name of a device of this kind, by which containers ask for it."""
        return f"{self}={device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A CDI spec. A container gets `edits` once if it gets any of the spec's devices."""

    version: Version
    kind: Kind
    devices: tuple[Device, ...]
    edits: Edits = Edits()
    annotations: tuple[tuple[str, str], ...] = ()
