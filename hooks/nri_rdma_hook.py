"""The guard of nri-rdma: no container starts without the RDMA devices that its pod asked for, even if the daemon is
dead.

`verify` is an OCI createRuntime hook: the container is created and its program does not run yet; its state comes on
stdin. The hook asks the daemon whether the container has everything. Unless the answer is yes, it exits with 1 and one
line on stderr, and the container does not start. If the pod asks for nothing, the hook does not need the daemon.

A pod asks by its annotations, and by claims of our driver. The kubelet's checkpoint lists the claims; it is written
before the pod starts. With these flags the container asks, whatever its pod says: `--pool` comes with a share of a
pool, `--device` with a claim or another driver's CDI device, and `--resource` with the guard resource.

`spec` reads an OCI configuration from stdin, adds the verify hook, removes `process.rlimits`, and writes it to stdout.

Needs Python 3.9 and its standard library. Every container of the node waits for this program, so it imports as late as
possible. Of `json` and `socket` it imports only the C part, which takes a tenth of the time.

The program nri-rdma-hook in the same folder calls `main`. An upgrade replaces this module first, so an older program
may call it: the arguments of `main` must not change.
"""

import posix
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from typing import Any

PROGRAM = "nri-rdma-hook"
USAGE = """usage: nri-rdma-hook verify|spec [--annotation-prefix TEXT] [--control-socket PATH] [--timeout SECONDS]
                            [--kubelet-checkpoint PATH] [--pool NAME] [--device CDI-DEVICE] [--resource NAME]
verify: an OCI hook; reads the container's state from stdin, and exits with 1 if the container must not start
        --pool: the container has shares of this pool, and must have their devices
        --device: the container has this CDI device, of a claim or with our key, which must be attached
        --resource: the container has this guard resource, and the daemon must have answered its CreateContainer
spec:   adds that hook to an OCI configuration (`ctr oci spec`) and removes its process.rlimits, from stdin to stdout"""
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
"""Errors of a daemon with too many callers: its queue is full, or it closes connections unread. They also occur if the
daemon is killed meanwhile; a second call shows which it is."""
LATE_HINT = "nothing to do: the kubelet tries again; if it stays so see `nri-rdma status` and the daemon's log"
INDEXES = ("NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX")
"""The variables that are sent with their values, because a proof uses the GID that they name."""
NO_LIMIT = (1 << 64) - 1
PROOF_MARGIN_S = 1.5
"""How much longer the hook waits for the answer than the proof in the container may take."""
HOOK_TIMEOUT_S = 10
"""The hook's timeout in the OCI configuration: after it the OCI runtime kills the hook and refuses the container. The
calls to the daemon have shorter timeouts."""
SERVICE = "nri_rdma.control.v1.Control"
DRIVER = "rdma.noderesource.dev"
"""The name of our DRA driver."""
FIRST_STREAM = b"\0\0\0\1"
LONGEST_ANSWER = 1 << 20
LONGEST_LINE = 1000
FIXED_SIZES = {1: 8, 5: 4}
"""Protobuf's wire types of fixed size, with their sizes in bytes."""

# The annotation of containerd, then that of CRI-O; where CRI-O has none, the kubelet's label.
SANDBOX_ID = ("io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID")
CONTAINER_NAME = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
CONTAINER_TYPE = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
POD_NAMESPACE = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")
POD_NAME = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
POD_UID = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")
BLANKS = " \r\n"
"""The characters that the daemon's YAML ignores before a value. Other blanks, such as a tab, are an error there, so a
value that begins with one counts as a request."""
ASKS_FOR_NOTHING = frozenset({"", "~", "null", "Null", "NULL", "[]"})


class RefusalError(Exception):
    """The reason why the container must not start, as one line in the form of nri-rdma's errors."""


def refusal(code: str, what: str, where: str, hint: str) -> RefusalError:
    """Return a refusal in the form of nri-rdma's errors. docs/operations.md explains each code."""
    return RefusalError(f"nri-rdma: {code}: {what}, {where}. Next: {hint}.")


def main(arguments: list[str], program: str) -> int:
    """Run the program and return the exit code: 0: the container may start; 1: refused; 2: wrong usage. `program` is
    the program's path."""
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
    except Exception as error:  # noqa: BLE001 - a bug: fail closed, the pod may have asked for devices
        what = f"the guard failed with an unexpected error: {type(error).__name__} {error}"
        return refuse(str(refusal("INTERNAL", what, PROGRAM, "report it with the container's state and config.json")))
    return 0


def refuse(line: str) -> int:
    """Write the error to stderr as one line, and return the exit code 1."""
    sys.stderr.write(" ".join(line.split())[:LONGEST_LINE] + "\n")
    return 1


def read_options(arguments: list[str]) -> dict[str, str]:
    """Return all options with their values, given as `--flag value` or `--flag=value`; empty if an argument is
    invalid."""
    options, rest = dict(DEFAULTS), list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if flag not in DEFAULTS or not (equals or rest):
            return {}
        options[flag] = value if equals else rest.pop(0)
    seconds = options["--timeout"].replace(".", "", 1)
    return options if seconds.isdecimal() and float(options["--timeout"]) > 0 else {}


def verify(options: dict[str, str], data: bytes) -> None:
    """Check the container whose state is in `data`. Raises RefusalError if it must not start."""
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
    """Return whether annotations in this JSON text may ask for devices. Cheap, because every container of the node is
    checked.

    A text with JSON escapes counts, because the key may be written with them.
    """
    return prefix.encode() in data or b"\\u" in data or b"\\/" in data


def opened(path: str, flags: int) -> int:
    """Open a file for reading without blocking, because a FIFO without a writer would block for ever."""
    return posix.open(path, flags | posix.O_NONBLOCK)


def read_checkpoint(path: str) -> bytes:
    """Return the kubelet's checkpoint of claims; b"" if it has no claim of our driver, or if it cannot be read.

    An unreadable checkpoint must not refuse: that would refuse every container of the node.
    """
    try:
        with open(path, "rb", buffering=0, opener=opened) as file:
            checkpoint = file.readall()
    except OSError:
        return b""
    return checkpoint if DRIVER.encode() in checkpoint else b""


def may_claim(data: bytes, checkpoint: bytes) -> bool:
    """Return whether the pod in this JSON text may have a claim of our driver. Cheap, because every container is
    checked.

    The search for the key cannot match inside a value, because quotation marks in values are escaped.
    """
    if not checkpoint:
        return False
    found = [data.partition(f'"{key}":"'.encode())[2] for key in POD_UID]
    uids = [rest.partition(b'"')[0] for rest in found if rest]
    return any(uid in checkpoint for uid in uids) or not uids


def claimed(checkpoint: bytes, annotations: dict[str, object]) -> list[str]:
    """Return the CDI devices of the pod's claims of our driver.

    Raises RefusalError if the pod may have a claim, and the checkpoint cannot be parsed or has no CDI device for it.
    """
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
    """Return the container's state and its annotations. Raises RefusalError if the state cannot be parsed."""
    try:
        state = read_json(data)
        annotations = state.get("annotations") or {}
        return state, dict(annotations.items())
    except (ValueError, AttributeError, RecursionError) as error:
        what = f"the container's state cannot be read: {error}"
        raise refusal("OCI-STATE", what, "stdin", "see the log of the OCI runtime") from error


def read_json(data: bytes) -> "dict[str, Any]":
    """Parse a JSON object. Raises ValueError, AttributeError or RecursionError."""
    from _json import make_scanner  # the core of json.loads; importing json takes ten times as long (7 ms)

    text = data.decode().strip(" \t\r\n")
    try:
        value, end = make_scanner(Strict)(text, 0)  # type: ignore[arg-type]  # it takes any object with these attributes
    except (StopIteration, SystemError) as error:  # the scanner's own errors need json, which is not imported
        raise ValueError("it is no JSON") from error
    if end != len(text):
        raise ValueError("there is something after its JSON")
    return dict(value.items())


class Strict:
    """The options of the JSON scanner, as in json.loads."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


def asked_in(annotations: dict[str, object], prefix: str) -> dict[str, str]:
    """Return the annotations with our prefix; none if all their values are empty. A value that is not a string counts
    as a request."""
    ours = {
        key: value if isinstance(value, str) else repr(value)
        for key, value in annotations.items()
        if key == prefix or key.startswith(f"{prefix}/")
    }
    return ours if any(value.strip(BLANKS) not in ASKS_FOR_NOTHING for value in ours.values()) else {}


def one(annotations: dict[str, object], keys: tuple[str, ...]) -> str:
    """Return the value of these keys, or "" if there is none.

    Raises RefusalError if their values differ: CRI-O passes on what the pod's author writes, and only one key is the
    runtime's own.
    """
    found = {str(annotations[key]) for key in keys if annotations.get(key)}
    if len(found) > 1:
        what = f"{' and '.join(key for key in keys if key in annotations)} do not agree"
        raise refusal("OCI-STATE", what, "annotations of the pod", "remove the pod's annotations of that name")
    return found.pop() if found else ""


def read_configuration(bundle: str, where: str) -> tuple[list[tuple[str, int, int]], list[tuple[str, str]], list[int]]:
    """Return from config.json the character devices (path, major, minor), the variables, and RLIMIT_MEMLOCK.

    The limit is a list of one number, unlimited if the program may lock any memory, or an empty list if there is none.
    Raises RefusalError.
    """
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
    """Return whether the container's program has CAP_IPC_LOCK on the host, so that RLIMIT_MEMLOCK does not limit it.

    A program of a user other than root has only ambient capabilities. In a user namespace the capability does not
    count.
    """
    process = spec.get("process") or {}
    kind = "ambient" if (process.get("user") or {}).get("uid") else "effective"
    namespaces = [it.get("type") for it in (spec.get("linux") or {}).get("namespaces") or ()]
    return "CAP_IPC_LOCK" in ((process.get("capabilities") or {}).get(kind) or ()) and "user" not in namespaces


def ask(path: str, method: str, question: bytes, seconds: float, where: str) -> dict[int, object]:
    """Call a method of the daemon over ttrpc (docs/ttrpc.md), and return the fields of its answer. Raises RefusalError
    within `seconds`."""
    import time
    from _socket import timeout as late  # before Python 3.10 it is not TimeoutError

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
        hint = "start it (systemctl start nri-rdma; on Kubernetes see its pod on this node): the kubelet tries again"
        raise refusal("DAEMON-ABSENT", what, where, hint) from error
    except ValueError as error:
        what = f"no daemon of nri-rdma answers ({path}): {error}"
        raise refusal("DAEMON-ABSENT", what, where, "restart the daemon when it is older than this hook") from error


def hear(answer: dict[int, object], path: str, where: str) -> None:
    """Raise RefusalError unless the daemon's answer says that the container has everything."""
    if answer.get(1) == 1:
        return
    line = answer.get(2, b"")
    text = line.decode(errors="replace") if isinstance(line, bytes) else ""
    if text.startswith("nri-rdma: "):
        raise RefusalError(text)
    raise refusal("DAEMON-ABSENT", f"no daemon of nri-rdma answers ({path})", where, "see `nri-rdma status`")


def call(path: str, until: float, method: str, payload: bytes) -> dict[int, object]:
    """Call a method of the daemon, and return the fields of its answer by number; `until` is in seconds of
    time.monotonic().

    Raises OSError, and ValueError if the answer is not a valid one.
    """
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
        raise ValueError("this is no response of ttrpc")  # noqa: TRY004 - the daemon's mistake, as above
    told = fields(status)
    if told.get(1, 0) != 0:
        words = told.get(2, b"")
        raise ValueError(words.decode(errors="replace") if isinstance(words, bytes) else "an error without words")
    return fields(answer)


# The part of protobuf that these messages need.


def field(key: int, data: bytes) -> bytes:
    """Return an encoded field of type bytes, string or message."""
    return varint(key << 3 | 2) + varint(len(data)) + data


def text_field(key: int, text: str) -> bytes:
    """Return an encoded string field. Characters that are not valid Unicode are replaced."""
    return field(key, str(text).encode(errors="replace"))


def number(key: int, value: int) -> bytes:
    """Return an encoded int64 field. A negative number takes ten bytes."""
    return varint(key << 3) + varint(value & (1 << 64) - 1)


def varint(value: int) -> bytes:
    """Return a number as a protobuf varint: seven bits in each byte, the lowest first."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))


def fields(data: bytes) -> dict[int, object]:
    """Return the fields of a message: field number to number or bytes. Of a repeated field only the last one. Raises
    ValueError."""
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
    """Return the varint at `place`, and the position after it. Raises ValueError."""
    value = shift = 0
    for byte in data[place : place + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place + shift // 7
    raise ValueError("the answer ends within a number")


def add_hook(options: dict[str, str], program: str) -> int:
    """Read an OCI configuration from stdin, add this program as a createRuntime hook, remove the rlimits, and write it
    to stdout.

    Doing it twice changes nothing. The rlimits are removed because `ctr oci spec` writes RLIMIT_NOFILE 1024: as a
    base_runtime_spec, the configuration would set this limit for every container of the node.
    """
    import json
    import os

    try:
        spec = json.load(sys.stdin)
        hooks = spec["hooks"] = {} if spec.get("hooks") is None else spec["hooks"]
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
