"""The errors that a user can see.

Every error has a stable code, what happened, where, and the next step. Its text is ``nri-rdma: CODE: what, where. Next:
what to do.``. The runtime passes it on to the pod's events, where the kubelet cuts long texts; therefore the code and
the cause come first. docs/operations.md has an entry for every code.
"""

from __future__ import annotations

import re
from enum import StrEnum


class ErrorCode(StrEnum):
    """The stable codes of errors, each with an entry in docs/operations.md."""

    ANNOTATION_SIZE = "ANNOTATION-SIZE"
    ANNOTATION_SYNTAX = "ANNOTATION-SYNTAX"
    ANNOTATION_ALIAS = "ANNOTATION-ALIAS"
    ANNOTATION_DUPLICATE_KEY = "ANNOTATION-DUPLICATE-KEY"
    ANNOTATION_UNKNOWN_KEY = "ANNOTATION-UNKNOWN-KEY"
    ANNOTATION_VALUE = "ANNOTATION-VALUE"
    ANNOTATION_PLACE = "ANNOTATION-PLACE"
    MANIFEST_SIZE = "MANIFEST-SIZE"
    MANIFEST_SYNTAX = "MANIFEST-SYNTAX"
    MANIFEST_DUPLICATE_KEY = "MANIFEST-DUPLICATE-KEY"
    MANIFEST_VALUE = "MANIFEST-VALUE"
    NOTHING_TO_CHECK = "NOTHING-TO-CHECK"
    POOL_UNKNOWN = "POOL-UNKNOWN"
    POOL_CLOSED = "POOL-CLOSED"
    POOL_DOOR = "POOL-DOOR"
    POOL_ENV = "POOL-ENV"
    POOL_MODE = "POOL-MODE"
    NOT_IN_POOL = "NOT-IN-POOL"
    POLICY_DENIED = "POLICY-DENIED"
    POLICY_HANDLER = "POLICY-HANDLER"
    POLICY_MODE = "POLICY-MODE"
    POLICY_DEVICES = "POLICY-DEVICES"
    POLICY_INTERFACE = "POLICY-INTERFACE"
    POLICY_LIMITS = "POLICY-LIMITS"
    DEVICE_UNKNOWN = "DEVICE-UNKNOWN"
    DEVICE_IN_USE = "DEVICE-IN-USE"
    DEVICE_CONFLICT = "DEVICE-CONFLICT"
    PATH_CONFLICT = "PATH-CONFLICT"
    DEVICES_EXHAUSTED = "DEVICES-EXHAUSTED"
    NOT_ALIGNED = "NOT-ALIGNED"
    PORT_DOWN = "PORT-DOWN"
    PKEY_LIMITED = "PKEY-LIMITED"
    INTERFACE_UNFIT = "INTERFACE-UNFIT"
    NAME_CONFLICT = "NAME-CONFLICT"
    GUARD_MISSING = "GUARD-MISSING"
    HOST_NETWORK = "HOST-NETWORK"
    RDMA_NETNS = "RDMA-NETNS"
    SOFT_DEVICE = "SOFT-DEVICE"
    LIMITS_UNSUPPORTED = "LIMITS-UNSUPPORTED"
    LIMITS_NOT_SET = "LIMITS-NOT-SET"
    MEMLOCK_LIMIT = "MEMLOCK-LIMIT"
    RUNTIME_TOO_OLD = "RUNTIME-TOO-OLD"
    NO_NETWORK_NAMESPACE = "NO-NETWORK-NAMESPACE"
    ATTACH_FAILED = "ATTACH-FAILED"
    NOT_ATTACHED = "NOT-ATTACHED"
    NOT_ALLOCATED = "NOT-ALLOCATED"
    NOT_READY = "NOT-READY"
    NOT_SERVED = "NOT-SERVED"
    PROOF_DEVICE = "PROOF-DEVICE"
    PROOF_PORT = "PROOF-PORT"
    PROOF_GID = "PROOF-GID"
    PROOF_MEMLOCK = "PROOF-MEMLOCK"
    PROOF_LIMITS = "PROOF-LIMITS"
    PROOF_TRANSFER = "PROOF-TRANSFER"
    PROOF_LATE = "PROOF-LATE"
    PROOF_ENDED = "PROOF-ENDED"
    PROOF_NO_HOOK = "PROOF-NO-HOOK"
    PROOF_UNAVAILABLE = "PROOF-UNAVAILABLE"
    NO_THREAD = "NO-THREAD"
    RETURNING = "RETURNING"
    STATE_UNREADABLE = "STATE-UNREADABLE"
    STATE_LOCKED = "STATE-LOCKED"
    STATE_FOREIGN = "STATE-FOREIGN"
    SETTING = "SETTING"
    INVENTORY = "INVENTORY"
    INSTALL = "INSTALL"
    CDI_FILE = "CDI-FILE"
    CDI_SIZE = "CDI-SIZE"
    CDI_SYNTAX = "CDI-SYNTAX"
    CDI_DUPLICATE_KEY = "CDI-DUPLICATE-KEY"
    CDI_UNKNOWN_FIELD = "CDI-UNKNOWN-FIELD"
    CDI_VALUE = "CDI-VALUE"
    CDI_VERSION = "CDI-VERSION"
    CDI_CONFLICT = "CDI-CONFLICT"
    RESOURCE_TAKEN = "RESOURCE-TAKEN"
    KUBELET_UNREACHABLE = "KUBELET-UNREACHABLE"
    KUBELET_LATE = "KUBELET-LATE"
    KUBELET_ANSWER = "KUBELET-ANSWER"
    KUBELET_STATE = "KUBELET-STATE"
    API_SERVER = "API-SERVER"
    CLAIM_CHANGED = "CLAIM-CHANGED"
    DAEMON_ABSENT = "DAEMON-ABSENT"
    DAEMON_LATE = "DAEMON-LATE"
    OCI_STATE = "OCI-STATE"
    USERSPACE_MISSING = "USERSPACE-MISSING"
    USERSPACE_MISMATCH = "USERSPACE-MISMATCH"
    PRIVILEGE = "PRIVILEGE"
    INTERNAL = "INTERNAL"


class NriRdmaError(Exception):
    """An error with a code, a cause, a place and a next step. `detail` may be long and comes last in the text."""

    def __init__(self, code: ErrorCode, what: str, *, where: str = "", hint: str = "", detail: str = "") -> None:
        super().__init__(what)
        self.code = code
        self.what = what
        self.where = where
        self.hint = hint
        self.detail = detail
        self.is_logged = False
        """Whether the error has already been logged, at a place with more context."""
        self.names_holders = False
        """Whether the author of the pod may read the names of other pods that hold devices."""
        self.pod = ""
        """The refused pod as namespace/name; its own name is never hidden from its author."""

    def __str__(self) -> str:
        return self._text(self.what, self.detail)

    def _text(self, what: str, detail: str) -> str:
        place = f", {self.where}" if self.where else ""
        step = f" Next: {self.hint}." if self.hint else ""
        rest = f" Because {detail}." if detail else ""
        return f"nri-rdma: {self.code}: {what}{place}.{step}{rest}"

    @property
    def for_author(self) -> str:
        """The text for the author of the pod, for example in the pod's events. It hides the names of other pods, unless
        the author may read them."""
        if self.names_holders or not (_HELD.search(self.what) or _HELD.search(self.detail)):
            return str(self)
        return self._text(*(_HELD.sub(self._without_others, it) for it in (self.what, self.detail)))

    def _without_others(self, held: re.Match[str]) -> str:
        owners = {it.partition(" ")[0] for it in re.findall(_OWNER, held[0].removeprefix("held by "))}
        return held[0] if owners == {self.pod} else "held by another pod"


_OWNER = (
    r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?(?: \((?:exclusive|shared|CDI device [^)]*)\))?"
)
_HELD = re.compile(rf"held by (?:pod )?{_OWNER}(?:, {_OWNER})*(?:, and [0-9]+ more)?")
"""The words by which errors name the pods that hold a device."""


class RequestError(NriRdmaError):
    """A text that cannot be understood, such as a request or a configuration: its author has to change it.

    `key` is the wrong key of the mapping at `where`; "" if the whole value at `where` is wrong. `line` and `column` are
    the place in the text, counted from 1; 0: unknown. `others` are further errors of the text, and `omitted` is the
    number of errors that are not among them.
    """

    def __init__(
        self,
        code: ErrorCode,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        detail: str = "",
        key: str = "",
        line: int = 0,
        column: int = 0,
    ) -> None:
        super().__init__(code, what, where=where, hint=hint, detail=detail)
        self.key = key
        self.line = line
        self.column = column
        self.others: tuple[RequestError, ...] = ()
        self.omitted = 0

    def __str__(self) -> str:
        if not self.others:
            return super().__str__()
        number = f"{len(self.others)} more {'problem' if len(self.others) == 1 else 'problems'}"
        return f"{super().__str__()} There {'is' if len(self.others) == 1 else 'are'} {number}: see nri-rdma validate."


class PlacementError(NriRdmaError):
    """A request that is understood, but that this node cannot serve, or that the pod is not permitted to make."""


class AttachError(NriRdmaError):
    """A device could not be attached to a pod, because a step on the host failed. The steps before it were undone.
    `errno` is the kernel's error number; None if the kernel reported none."""

    def __init__(
        self,
        what: str,
        *,
        device: str,
        where: str = "",
        hint: str,
        errno: int | None = None,
        code: ErrorCode = ErrorCode.ATTACH_FAILED,
    ) -> None:
        super().__init__(code, f"{what} ({device})", where=where, hint=hint)
        self.device = device
        self.errno = errno


class LimitsError(NriRdmaError):
    """The limits that a pod asks for could not be set for its container, so that the container must not run. `errno` is
    the kernel's error number; None if the kernel reported none."""

    def __init__(self, what: str, *, where: str, hint: str, errno: int | None = None) -> None:
        super().__init__(ErrorCode.LIMITS_NOT_SET, what, where=where, hint=hint)
        self.errno = errno


class ProofError(NriRdmaError):
    """RDMA was not proven to work in a container whose request demands a proof, so that the container must not run."""


class UserspaceError(NriRdmaError):
    """The libraries in a container's image cannot use the container's RDMA devices."""


class NotReadyError(NriRdmaError):
    """The answer is not available yet; the same call may succeed later."""


class StateError(NriRdmaError):
    """A file in which nri-rdma keeps its state cannot be used."""


class RuntimeAnsweredError(StateError):
    """The runtime's pods are already served by another daemon of nri-rdma, so that this one must not start."""


class SettingError(NriRdmaError):
    """A setting with a value that cannot be used. `line` is the setting's line in the file (0: none), `path` its key
    ("": the whole file)."""

    def __init__(
        self, code: ErrorCode, what: str, *, where: str = "", hint: str = "", line: int = 0, path: str = ""
    ) -> None:
        super().__init__(code, what, where=where, hint=hint)
        self.line = line
        self.path = path


class InventoryError(NriRdmaError):
    """The node's hardware cannot be read."""


class KubeletError(NriRdmaError):
    """The kubelet did not report a pod's devices, or its checkpoint of claims cannot be read. The pod may nevertheless
    have devices."""


class ApiServerError(NriRdmaError):
    """The API server could not be asked, or did not do what it was asked. `status` is the HTTP status of its answer; 0
    if it did not answer."""

    def __init__(
        self,
        what: str,
        *,
        where: str,
        hint: str,
        status: int = 0,
        detail: str = "",
        code: ErrorCode = ErrorCode.API_SERVER,
    ) -> None:
        super().__init__(code, what, where=where, hint=hint, detail=detail)
        self.status = status


class ClaimError(NriRdmaError):
    """A claim that the driver cannot prepare for the kubelet: it has been replaced, its devices are on another node, or
    Kubernetes allows no such name."""


class CdiError(NriRdmaError):
    """A CDI spec that cannot be used. `line` is the line in the file (0: none), `path` the key in it ("": the whole
    file)."""

    def __init__(self, code: ErrorCode, what: str, *, file: str, hint: str, line: int = 0, path: str = "") -> None:
        place = " ".join(part for part in (file, f"line {line}" if line else "", path) if part)
        super().__init__(code, what, where=place, hint=hint)
        self.file = file
        self.line = line
        self.path = path
