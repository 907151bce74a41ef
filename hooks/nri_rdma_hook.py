"""The guard of nri-rdma: no container starts without the RDMA devices that its pod asked for, whoever is dead.

`verify` is a createRuntime hook of OCI: the container is made and does not run yet, its state comes on stdin. It asks
the daemon whether this container is complete, and ends with 1 and one line on stderr unless the answer is yes.
A pod that asks for nothing needs no daemon. A pod asks by its annotations, and by claims of our driver: the kubelet's
checkpoint, which is there before each pod that has a claim, says which ones. With `--pool`, which comes with a share of
a pool, with `--device`, which comes with a claim or with another driver's CDI device, and with `--resource`, which
comes with the guard resource, the container asks whatever its pod says. `spec` adds that hook to an OCI configuration,
from stdin to stdout, and drops its `process.rlimits`.

Python 3.9 and its standard library. Every container of the node waits for this: it imports late, and of `json` and
`socket` only the part in C, which takes a tenth of the time.

The program nri-rdma-hook beside it runs `main`. An upgrade writes this module first, so the program of an older release
may run it: the arguments of `main` stay as they are.
"""

import posix
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

PROGRAM = "nri-rdma-hook"
USAGE = """usage: nri-rdma-hook verify|spec [--annotation-prefix TEXT] [--control-socket PATH] [--timeout SECONDS]
                            [--kubelet-checkpoint PATH] [--pool NAME] [--device CDI-DEVICE] [--resource NAME]
verify: an OCI hook; the container's state on stdin, ends with 1 when it must not start
        --pool: of a container that has shares of this pool, which it must have its devices for
        --device: of a container with this CDI device, of a claim or with our key, which must be attached for it
        --resource: of a container with this guard resource, which the daemon must have answered for
spec:   add that hook to an OCI configuration (`ctr oci spec`) and drop its process.rlimits, from stdin to stdout"""
DEFAULTS = {
    "--annotation-prefix": "rdma.noderesource.dev",
    "--control-socket": "/run/nri-rdma/control.sock",
    "--timeout": "2",
    "--kubelet-checkpoint": "/var/lib/kubelet/dra_manager_state",
    "--pool": "",
    "--device": "",
    "--resource": "",
}
CROWDED = (BlockingIOError, ConnectionResetError, BrokenPipeError)
"""A daemon that has too many callers at once: its queue is full, or it closes what it does not read. Or it was killed
meanwhile; a second call shows which."""
LATE_HINT = "nothing to do: the kubelet tries again; if it stays so see `nri-rdma status` and the daemon's log"
INDEXES = ("NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX")
"""The variables whose values are told: a proof goes by the GID that they name."""
NO_LIMIT = (1 << 64) - 1
PROOF_MARGIN_S = 1.5
"""How much longer than the proof of a container may take its answer is waited for."""
HOOK_TIMEOUT_S = 10
"""For the OCI runtime, which then ends the hook and refuses the container; the question has its own, shorter one."""
SERVICE = "nri_rdma.control.v1.Control"
DRIVER = "rdma.noderesource.dev"
"""The driver of our claims."""
FIRST_STREAM = b"\0\0\0\1"
LONGEST_ANSWER = 1 << 20
LONGEST_LINE = 1000
FIXED_SIZES = {1: 8, 5: 4}
"""Of protobuf's wire types that are no number and have no length, in bytes."""

# containerd's word, then CRI-O's or, for what CRI-O does not say, the kubelet's label.
SANDBOX_ID = ("io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID")
CONTAINER_NAME = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
CONTAINER_TYPE = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
POD_NAMESPACE = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")
POD_NAME = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
POD_UID = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")
BLANKS = " \r\n"
"""What the daemon's YAML takes for blank before a value: of a tab, or of another blank of Unicode, it says that it
cannot read it, so such a value asks."""
ASKS_FOR_NOTHING = frozenset({"", "~", "null", "Null", "NULL", "[]"})


class RefusalError(Exception):
    """Why the container must not start: one line, an error of nri-rdma."""


def refusal(code: str, what: str, where: str, hint: str) -> RefusalError:
    """In the form of our errors; docs/operations.md has an entry for every code."""
    return RefusalError(f"nri-rdma: {code}: {what}, {where}. Next: {hint}.")


def main(arguments: list[str], program: str) -> int:
    """Exit code 0: it may start; 1: refused; 2: this program is not used as it should be. `program` is its path."""
    if {"--help", "-h"} & set(arguments):
        sys.stdout.write(f"{USAGE}\n")
        return 0
    options = read_options(arguments[1:])
    verb = arguments[0] if arguments else ""
    if not options or verb not in {"verify", "spec"}:
        sys.stderr.write(f"{USAGE}\n")
        return 2
    if verb == "spec":
        return add_hook(options, program)
    try:
        verify(options, sys.stdin.buffer.read())
    except RefusalError as error:
        return refuse(str(error))
    except Exception as error:  # noqa: BLE001 - a bug; the pod may have asked, so it fails closed
        what = f"the guard met what it does not know: {type(error).__name__} {error}"
        return refuse(str(refusal("INTERNAL", what, PROGRAM, "report it with the container's state and config.json")))
    return 0


def refuse(line: str) -> int:
    """Say why, in one line."""
    sys.stderr.write(" ".join(line.split())[:LONGEST_LINE] + "\n")
    return 1


def read_options(arguments: list[str]) -> dict[str, str]:
    """Flags with their values, `--flag value` or `--flag=value`; empty when there is one that cannot be used."""
    options, rest = dict(DEFAULTS), list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag not in DEFAULTS or not (equals or rest):
            return {}
        options[flag] = value if equals else rest.pop(0)
    seconds = options["--timeout"].replace(".", "", 1)
    return options if seconds.isdecimal() and float(options["--timeout"]) > 0 else {}


def verify(options: dict[str, str], data: bytes) -> None:
    """Return when the container of this state may start. Raises RefusalError."""
    prefix, pool, device = options["--annotation-prefix"], options["--pool"], options["--device"]
    resource, checkpoint = options["--resource"], read_checkpoint(options["--kubelet-checkpoint"])
    if not (pool or device or resource or may_ask(data, prefix) or may_claim(data, checkpoint)):
        return
    state, annotations = read_state(data)
    ours, claims = asked_in(annotations, prefix), claimed(checkpoint, annotations)
    if not (ours or pool or device or resource or claims) or one(annotations, CONTAINER_TYPE) == "sandbox":
        return
    pod = f"{one(annotations, POD_NAMESPACE)}/{one(annotations, POD_NAME)}"
    container, sandbox_id = one(annotations, CONTAINER_NAME), one(annotations, SANDBOX_ID)
    if not container or not sandbox_id:
        hint = "use the guard with containerd or CRI-O, see hooks/README.md"
        raise refusal("OCI-STATE", "the state names no container and sandbox of Kubernetes", pod, hint)
    where = f"{pod}, container {container}"
    devices, variables, memlock = read_configuration(str(state.get("bundle")), where)
    pid = state.get("pid")
    question = b"".join(
        (
            text_field(1, sandbox_id),
            text_field(2, pod),
            text_field(3, container),
            text_field(4, str(state.get("id", ""))),
            *(field(5, text_field(1, key) + text_field(2, value)) for key, value in ours.items()),
            *(field(6, text_field(1, path) + number(2, major) + number(3, minor)) for path, major, minor in devices),
            *(text_field(7, name) for name, _ in variables),
            *([text_field(8, pool)] if pool else []),
            *([text_field(9, device)] if device else []),
            *(text_field(10, name) for name in claims),
            *([text_field(11, resource)] if resource else []),
            number(12, pid if isinstance(pid, int) else 0),
            *(number(13, it) for it in memlock),
            *(field(14, text_field(1, name) + text_field(2, value)) for name, value in variables if name in INDEXES),
            text_field(15, str(state.get("bundle", ""))),
        )
    )
    path = options["--control-socket"]
    answer = ask(path, "Verify", question, float(options["--timeout"]), where)
    prove_ms = answer.get(3)
    if isinstance(prove_ms, int) and prove_ms:
        answer = ask(path, "Prove", question, prove_ms / 1000 + PROOF_MARGIN_S, where)
    hear(answer, path, where)


def may_ask(data: bytes, prefix: str) -> bool:
    """Whether it can be that annotations in this JSON text ask: cheap, for every container of the node. A key can be
    written with escapes."""
    return prefix.encode() in data or b"\\u" in data or b"\\/" in data


def opened(path: str, flags: int) -> int:
    """Open a file to read it. What is none is read without a wait: nobody may ever write into a FIFO."""
    return posix.open(path, flags | posix.O_NONBLOCK)


def read_checkpoint(path: str) -> bytes:
    """The kubelet's checkpoint of claims; nothing where none of them is ours, and where there is no file that can be
    read: to refuse then would be to refuse every container of the node."""
    try:
        with open(path, "rb", buffering=0, opener=opened) as file:
            checkpoint = file.readall()
    except OSError:
        return b""
    return checkpoint if DRIVER.encode() in checkpoint else b""


def may_claim(data: bytes, checkpoint: bytes) -> bool:
    """Whether it can be that the pod of this JSON text has a claim of ours: cheap, as `may_ask`. No text within a value
    looks like a key with its value: its quotation marks are written with escapes."""
    if not checkpoint:
        return False
    found = [data.partition(f'"{key}":"'.encode())[2] for key in POD_UID]
    uids = [rest.partition(b'"')[0] for rest in found if rest]
    return any(uid in checkpoint for uid in uids) or not uids


def claimed(checkpoint: bytes, annotations: dict[str, object]) -> list[str]:
    """The CDI devices of the pod's claims of our driver. Raises RefusalError where it may have one, and the checkpoint
    cannot be understood or names no CDI device of it."""
    uid = one(annotations, POD_UID) if checkpoint else ""
    if not uid or uid.encode() not in checkpoint:
        return []
    where = f"{one(annotations, POD_NAMESPACE)}/{one(annotations, POD_NAME)}"
    try:
        claims = read_json(read_json(checkpoint)["Data"].encode())["ClaimInfoStateList"] or ()
        drivers = [dict(it["DriverState"] or {}) for it in claims if uid in dict(it["PodUIDs"] or {})]
        ours = [it[DRIVER]["Devices"] or () for it in drivers if DRIVER in it]
        names = [[name for device in devices for name in device["CDIDeviceIDs"] or ()] for devices in ours]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"the kubelet's checkpoint has a form that is not known: {type(error).__name__} {error}"
        hint = "see docs/operations.md: the kubelet may be newer than this nri-rdma"
        raise refusal("KUBELET-STATE", what, where, hint) from error
    if not all(names):
        what = "a claim of this pod has no CDI device in the kubelet's checkpoint"
        raise refusal("KUBELET-STATE", what, where, "nothing to do: it is tried again")
    return [name for of_claim in names for name in of_claim]


def read_state(data: bytes) -> tuple[dict[str, object], dict[str, object]]:
    """The state and its annotations. Raises RefusalError: a text that cannot be read, and may have our prefix, asks."""
    try:
        state = read_json(data)
        annotations = state.get("annotations") or {}
        return state, dict(annotations.items())
    except (ValueError, AttributeError, RecursionError) as error:
        what = f"the container's state cannot be read: {error}"
        raise refusal("OCI-STATE", what, "stdin", "see the log of the OCI runtime") from error


def read_json(data: bytes) -> "dict[str, Any]":
    """The object in a text. Raises ValueError, AttributeError or RecursionError."""
    from _json import make_scanner  # what json.loads comes to, in a tenth of its import (7 ms)

    text = data.decode().strip(" \t\r\n")
    try:
        value, end = make_scanner(Strict)(text, 0)  # type: ignore[arg-type]  # any context of its shape
    except (StopIteration, SystemError) as error:  # the scanner's own words need json, which nobody has imported
        raise ValueError("it is no JSON") from error
    if end != len(text):
        raise ValueError("there is something after its JSON")
    return dict(value.items())


class Strict:
    """How JSON is read: as json.loads does."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


def asked_in(annotations: dict[str, object], prefix: str) -> dict[str, str]:
    """The annotations that are ours; none where all of them ask for nothing. One that is no text asks."""
    ours = {
        key: value if isinstance(value, str) else repr(value)
        for key, value in annotations.items()
        if key == prefix or key.startswith(f"{prefix}/")
    }
    return ours if any(value.strip(BLANKS) not in ASKS_FOR_NOTHING for value in ours.values()) else {}


def one(annotations: dict[str, object], keys: tuple[str, ...]) -> str:
    """The value of these keys, or "". Raises RefusalError when they do not agree: CRI-O hands on what a pod's author
    writes, and only one of the keys is the runtime's."""
    found = {str(annotations[key]) for key in keys if annotations.get(key)}
    if len(found) > 1:
        what = f"{' and '.join(key for key in keys if key in annotations)} do not agree"
        raise refusal("OCI-STATE", what, "annotations of the pod", "remove the pod's annotations of that name")
    return found.pop() if found else ""


def read_configuration(bundle: str, where: str) -> tuple[list[tuple[str, int, int]], list[tuple[str, str]], list[int]]:
    """Character devices (path, major, minor), variables and, if it is said, the RLIMIT_MEMLOCK that holds the program,
    in config.json. Raises RefusalError."""
    path = f"{bundle}/config.json"
    try:
        with open(path, "rb", opener=opened) as file:
            spec = read_json(file.read())
        nodes = (spec.get("linux") or {}).get("devices") or []
        devices = [(it["path"], int(it["major"]), int(it["minor"])) for it in nodes if it.get("type") in {"c", "u"}]
        process = spec.get("process") or {}
        variables = [entry.partition("=")[::2] for entry in process.get("env") or []]
        limits = process.get("rlimits") or []
        memlock = [int(it["soft"]) for it in limits if it.get("type") == "RLIMIT_MEMLOCK"]
        return devices, variables, [NO_LIMIT] if may_lock(spec) else memlock
    except OSError as error:
        what = f"{path} cannot be read: {error.strerror}"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"{path} is no OCI configuration: {type(error).__name__} {error}"
    raise refusal("OCI-STATE", what, where, "see the log of the OCI runtime")


def may_lock(spec: "dict[str, Any]") -> bool:
    """Whether the container's program has CAP_IPC_LOCK on the host: RLIMIT_MEMLOCK does not hold it then. A program of
    another user than root has what is ambient; in a user namespace the capability does not count."""
    process = spec.get("process") or {}
    kind = "ambient" if (process.get("user") or {}).get("uid") else "effective"
    namespaces = [it.get("type") for it in (spec.get("linux") or {}).get("namespaces") or ()]
    return "CAP_IPC_LOCK" in ((process.get("capabilities") or {}).get(kind) or ()) and "user" not in namespaces


def ask(path: str, method: str, question: bytes, seconds: float, where: str) -> dict[int, object]:
    """The fields of the daemon's answer to a call of ttrpc (docs/ttrpc.md). Raises RefusalError, in time."""
    import time
    from _socket import timeout as late  # TimeoutError is another one before Python 3.10

    until = time.monotonic() + seconds
    try:
        try:
            return call(path, until, method, question)
        except CROWDED:
            time.sleep(seconds / 4)
            return call(path, until, method, question)
    except CROWDED as error:
        what = f"the daemon has too many callers at once: {error.strerror} ({path})"
        raise refusal("DAEMON-LATE", what, where, LATE_HINT) from error
    except late as error:
        what = f"the daemon did not answer in {seconds:g} s on {path}"
        raise refusal("DAEMON-LATE", what, where, LATE_HINT) from error
    except OSError as error:
        what = f"the daemon is gone: {error.strerror or error} ({path})"
        hint = "start it (systemctl start nri-rdma): the kubelet tries again"
        raise refusal("DAEMON-ABSENT", what, where, hint) from error
    except ValueError as error:
        what = f"no daemon that answers as nri-rdma does ({path}): {error}"
        raise refusal("DAEMON-ABSENT", what, where, "restart the daemon when it is older than this hook") from error


def hear(answer: dict[int, object], path: str, where: str) -> None:
    """Return when the daemon says that the container is complete. Raises RefusalError."""
    if answer.get(1) == 1:
        return
    line = answer.get(2, b"")
    text = line.decode(errors="replace") if isinstance(line, bytes) else ""
    if text.startswith("nri-rdma: "):
        raise RefusalError(text)
    raise refusal("DAEMON-ABSENT", f"no daemon that answers as nri-rdma does ({path})", where, "see `nri-rdma status`")


def call(path: str, until: float, method: str, payload: bytes) -> dict[int, object]:
    """The fields of the message that a method answers, `until` a moment of time.monotonic(). Raises OSError, or
    ValueError for what is no answer."""
    import time
    from _socket import AF_UNIX, SOCK_STREAM, socket

    left = max(1, int((until - time.monotonic()) * 1e9))
    request = text_field(1, SERVICE) + text_field(2, method) + field(3, payload) + number(4, left)
    connection = socket(AF_UNIX, SOCK_STREAM)

    def in_time() -> socket:
        connection.settimeout(max(0.001, until - time.monotonic()))
        return connection

    def receive(size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = in_time().recv(size - len(data))
            if not more:
                raise ConnectionError("it hung up")
            data += more
        return data

    try:
        in_time().connect(path)
        in_time().sendall(len(request).to_bytes(4, "big") + FIRST_STREAM + b"\1\0" + request)
        header = receive(10)
        length = int.from_bytes(header[:4], "big")
        if header[4:9] != FIRST_STREAM + b"\2" or length > LONGEST_ANSWER:
            raise ValueError("this is no response of ttrpc")
        response = fields(receive(length))
    finally:
        connection.close()
    status, answer = response.get(1, b""), response.get(2, b"")
    if not isinstance(status, bytes) or not isinstance(answer, bytes):
        raise ValueError("this is no response of ttrpc")  # noqa: TRY004 - it is the daemon's, as the one above
    told = fields(status)
    if told.get(1, 0) != 0:
        words = told.get(2, b"")
        raise ValueError(words.decode(errors="replace") if isinstance(words, bytes) else "an error without words")
    return fields(answer)


# Protocol buffers, as far as these messages need them.


def field(key: int, data: bytes) -> bytes:
    """A field of bytes, a text or a message."""
    return varint(key << 3 | 2) + varint(len(data)) + data


def text_field(key: int, text: str) -> bytes:
    """A text; what is not Unicode in it is replaced."""
    return field(key, str(text).encode(errors="replace"))


def number(key: int, value: int) -> bytes:
    """An int64; a negative one takes ten bytes."""
    return varint(key << 3) + varint(value & (1 << 64) - 1)


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))


def fields(data: bytes) -> dict[int, object]:
    """Numbers and bytes of a message by the number of their field; of one the last counts. Raises ValueError."""
    found: dict[int, object] = {}
    place = 0
    while place < len(data):
        tag, place = read_varint(data, place)
        value, place = read_varint(data, place) if tag & 7 in {0, 2} else (FIXED_SIZES.get(tag & 7, len(data)), place)
        if tag & 7 == 0:
            found[tag >> 3] = value
            continue
        if place + value > len(data):
            raise ValueError("the answer ends within a field")
        found[tag >> 3] = data[place : place + value]
        place += value
    return found


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    for byte in data[place : place + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place + shift // 7
    raise ValueError("the answer ends within a number")


def add_hook(options: dict[str, str], program: str) -> int:
    """Write the OCI configuration on stdin to stdout with this program as its createRuntime hook and without limits.

    Running it on its own output changes nothing. `ctr oci spec` prints RLIMIT_NOFILE 1024. containerd gives that limit
    to containers only if their base_runtime_spec has it; no program of the node could open more files."""
    import json
    import os

    try:
        spec = json.load(sys.stdin)
        hooks = spec.setdefault("hooks", {})
        others = [it for it in hooks.get("createRuntime") or [] if os.path.basename(it["path"]) != PROGRAM]
        (spec.get("process") or {}).pop("rlimits", None)
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        hint = f"ctr oci spec | {PROGRAM} spec > FILE"
        return refuse(str(refusal("OCI-STATE", f"this is no OCI configuration: {error}", "stdin", hint)))
    path = os.path.realpath(program)
    flags = [part for flag, value in options.items() if value != DEFAULTS[flag] for part in (flag, value)]
    hooks["createRuntime"] = [*others, {"path": path, "args": [PROGRAM, "verify", *flags], "timeout": HOOK_TIMEOUT_S}]
    sys.stdout.write(json.dumps(spec, indent=2) + "\n")
    return 0
