"""The OCI hook of nri-rdma for podman and Docker.

A CDI spec brings it (`nri-rdma cdi generate --hooks`). For containers with annotations, podman calls it from a folder
of hooks (`nri-rdma install podman`), and Docker calls it in place of the OCI runtime (`nri-rdma install docker`).

`attach` is a createRuntime hook: the container is created and its program does not run yet; its state comes on stdin.
The hook sends the container's network namespace to the daemon, with one question about all devices of the container,
waits for the answer, and sets RLIMIT_MEMLOCK. Unless the answer is yes, it exits with 1 and one line on stderr and in
the system's log, and the container does not start. `return` is a poststop hook: the daemon returns the devices to the
host. Without this hook it does so when the container's first process ends.

`prepare` is podman's precreate hook for containers with annotations. It reads config.json from stdin, and writes it to
stdout with the nodes and variables of the devices that the daemon reserved. `attach-prepared` is their createRuntime
hook; it does what `attach` does. If `prepare` has to refuse, podman would not show the reason. So it adds a
createRuntime hook whose path is the text of the error: the OCI runtime cannot run it, and shows the path.

`create` is for Docker, which has no precreate hook. It runs before the OCI runtime's `create`: it changes config.json
as `prepare` does, adds the hooks `attach-prepared` and `return`, and then executes the OCI runtime. An error goes to
the file of `--log`, like the OCI runtime's own errors: Docker shows it, and no container is created.

A container with several devices has this hook several times. Each one asks for all of them, and asking again changes
nothing. Needs Python 3.9 and its standard library. Every container with a device waits for this program, so it imports
as late as possible.

The program nri-rdma-oci-hook in the same folder calls `main`. An upgrade replaces this module first, so an older
program may call it: the arguments of `main` must not change.
"""

import posix
import sys

TYPE_CHECKING = False  # `typing` takes longer to import than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROGRAM = "nri-rdma-oci-hook"
USAGE = """usage: nri-rdma-oci-hook attach --device NAME [--pool NAME] [--mode MODE] [--netdev NAME]
                                [--memlock unlimited|BYTES] [--hca-handles N] [--hca-objects N] [--socket PATH]
       nri-rdma-oci-hook prepare|attach-prepared [--annotation-prefix TEXT] [--socket PATH]
       nri-rdma-oci-hook return [--socket PATH]
       nri-rdma-oci-hook create [--annotation-prefix TEXT] [--socket PATH] -- OCI-RUNTIME ARGUMENT...
attach, return: an OCI hook; reads the container's state from stdin, and exits with 1 if it must not start.
prepare: podman's precreate hook; reads config.json from stdin, and writes it to stdout with the devices added.
create: adds the devices to the bundle in the arguments of an OCI runtime's `create`, then runs the OCI runtime."""
WISH = ("--device", "--pool", "--mode", "--netdev", "--memlock", "--hca-handles", "--hca-objects")
"""The flags that describe a CDI device's request."""
SOCKET = "--socket"
PREFIX = "--annotation-prefix"
DEFAULT_PREFIX = "rdma.noderesource.dev"
PREPARED = ".prepared"
"""Suffix of the annotation that `prepare` adds to config.json; its value has the variables that `prepare` has set."""
VARIABLES = ("NCCL_", "UCX_", "NVSHMEM_", "FI_", "MC_", "GLOO_SOCKET_IFNAME", "RDMA_DEVICES_", "RDMA_NETDEVS_")
"""The prefixes of the environment variables that the daemon may set."""
INDEXES = ("NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX")
"""The variables that are sent with their values, because a proof uses the GID that they name."""
DEFAULT_SOCKET = "/run/nri-rdma/oci.sock"
HOOK_TIMEOUT_S = 15
"""The timeout in config.json of the hooks that `create` adds. Their own timeouts are shorter."""
ABSENT_S = 2.0
"""How long a starting container waits for a daemon that does not listen or does not answer at all. It may be
starting."""
ABSENT_AT_END_S = 0.3
"""How long an ended container waits for a daemon that does not listen or does not answer at all. It is short, because a
daemon that starts later returns the devices by itself."""
ATTACH_S = 10.0
"""How long a container waits after the daemon has received the question. It is longer than the daemon takes to
refuse."""
LOOK_AGAIN_S = 0.05
LONGEST = 1 << 17
LONGEST_LINE = 1000
RDMA_NODES = "/dev/infiniband/"
START = "start the daemon (systemctl start nri-rdma), then the container"


class RefusalError(Exception):
    """The reason why the container must not start, as one line in the form of nri-rdma's errors."""


def refusal(code: str, what: str, where: str, hint: str) -> RefusalError:
    """Return a refusal in the form of nri-rdma's errors. docs/operations.md explains each code."""
    return RefusalError(f"nri-rdma: {code}: {what}, {where}. Next: {hint}.")


def main(arguments: "list[str]", program: str) -> int:
    """Run the program and return the exit code: 0: the container may start; 1: refused; 2: wrong usage. `program` is
    the program's path."""
    if {"--help", "-h"} & set(arguments):
        sys.stdout.write(f"{USAGE}\n")
        return 0
    verb = arguments[0] if arguments else ""
    if verb == "create":
        return create(arguments[1:], program)
    flags = read_flags(arguments[1:])
    handle = HANDLERS.get(verb)
    if flags is None or handle is None or (handle is attach and WISH[0] not in flags):
        sys.stderr.write(f"{USAGE}\n")
        return 2
    try:
        handle(sys.stdin.buffer.read(), flags)
    except RefusalError as error:
        return refuse(str(error))
    except Exception as error:  # noqa: BLE001 - a bug: fail closed, the container asked for devices
        return refuse(str(unknown(error)))
    return 0


def unknown(error: Exception) -> RefusalError:
    """Return the refusal for a bug in this program."""
    what = f"the hook failed with an unexpected error: {type(error).__name__} {error}"
    return refusal("INTERNAL", what, PROGRAM, "report it with the container's state and config.json")


def refuse(line: str) -> int:
    """Write the error as one line to stderr and to the system's log, because not every OCI runtime shows a hook's
    stderr. Return the exit code 1."""
    line = one_line(line)
    sys.stderr.write(f"{line}\n")
    log(line)
    return 1


def one_line(text: str) -> str:
    """Return the text as one line, cut to LONGEST_LINE characters."""
    return " ".join(text.split())[:LONGEST_LINE]


def log(line: str) -> None:
    """Write an error to the system's log."""
    import syslog

    syslog.openlog(PROGRAM, syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR, line)


def read_flags(arguments: list[str]) -> "dict[str, str] | None":
    """Return the flags with their values, given as `--flag value`; None if one is invalid."""
    flags = dict(zip(arguments[::2], arguments[1::2]))
    return None if len(arguments) % 2 or set(flags) - {*WISH, SOCKET, PREFIX} else flags


def prepare(data: bytes, flags: "dict[str, str]") -> None:
    """Write the container's configuration to stdout with its devices added; after an error, so that it cannot start.

    Raises RefusalError if the configuration cannot be parsed.
    """
    spec = read_json(data, "stdin")
    try:
        add_devices(spec, flags, container_of(spec))
    except Exception as error:  # noqa: BLE001 - also a bug: fail closed, the container asked for devices
        line = one_line(str(error if isinstance(error, RefusalError) else unknown(error)))
        log(line)
        hooks = spec.get("hooks") or {}
        spec["hooks"] = {**hooks, "createRuntime": [{"path": f"/{line}"}, *(hooks.get("createRuntime") or ())]}
    sys.stdout.write(json_of(spec))


def add_devices(spec: "dict[str, Any]", flags: "dict[str, str]", container: str) -> None:
    """Have the daemon reserve the devices that the container's annotations ask for, and add them to `spec`. Raises
    RefusalError."""
    path, prefix = flags.get(SOCKET, DEFAULT_SOCKET), flags.get(PREFIX, DEFAULT_PREFIX)
    linux, process = spec["linux"], spec["process"]
    question = {
        "version": 1,
        "ask": "prepare",
        "id": container,
        "devices": wishes(spec, path),
        "annotations": ours(spec, prefix),
        "nodes": rdma_nodes(linux),
        "variables": list(variables(spec)),
        "network": any(it.get("type") == "network" for it in linux.get("namespaces") or ()),
        "links": links_in(linux),
    }
    given = ask(path, question, container, ABSENT_S, network_in(linux))
    nodes, env = given.get("nodes"), given.get("env")
    if nodes is None or env is None:
        raise refusal("OCI-STATE", "the daemon's answer has no devices", container, "install hook and daemon anew")
    added = {node[0] for node in nodes}
    linux["devices"] = [it for it in linux.get("devices") or () if it.get("path") not in added]
    rules = linux.setdefault("resources", {}).setdefault("devices", [])
    for node, major, minor, mode, uid, gid in nodes:
        numbers = {"type": "c", "major": major, "minor": minor}
        linux["devices"].append({"path": node, **numbers, "fileMode": mode, "uid": uid, "gid": gid})
        rules.append({"allow": True, **numbers, "access": "rwm"})
    process["env"] = [*(process.get("env") or ()), *(f"{name}={value}" for name, value in env)]
    spec.setdefault("annotations", {})[f"{prefix}{PREPARED}"] = json_of(dict(env))


def links_in(linux: "dict[str, Any]") -> "list[str]":
    """Return the netdevs in the container's network namespace, if it is that of another container's process; otherwise
    none.

    Raises RefusalError.
    """
    paths = [str(it.get("path", "")) for it in linux.get("namespaces") or () if it.get("type") == "network"]
    folder, is_process, _ = paths[0].rpartition("/ns/net") if paths else ("", "", "")
    if not (is_process and folder.startswith("/proc/")):
        return []
    try:
        with open(f"{folder}/net/dev") as file:
            return [line.partition(":")[0].strip() for line in file.readlines()[2:]]  # after two header lines
    except OSError as error:
        what, hint = f"{error.filename} cannot be read: {error.strerror}", "start the pod again"
        raise refusal("OCI-STATE", what, "stdin", hint) from error


def network_in(linux: "dict[str, Any]") -> int:
    """Return a descriptor of the container's network namespace; -1 if the OCI runtime will create it. Raises
    RefusalError."""
    paths = [str(it.get("path", "")) for it in linux.get("namespaces") or () if it.get("type") == "network"]
    if not paths or not paths[0]:
        return -1
    try:
        return posix.open(paths[0], posix.O_RDONLY)
    except OSError as error:
        what, hint = f"{paths[0]} cannot be read: {error.strerror}", "start the container again"
        raise refusal("OCI-STATE", what, "stdin", hint) from error


def container_of(spec: "dict[str, Any]") -> str:
    """Return the id of a podman container that is about to be created, from the path of its folder. Raises
    RefusalError."""
    for mount in spec.get("mounts") or ():
        if mount.get("destination") == "/run/.containerenv":
            folder = str(mount.get("source")).rpartition("/userdata/")[0]
            return folder.rpartition("/")[2]
    what = "the configuration has no /run/.containerenv, so it is not podman's"
    raise refusal("OCI-STATE", what, "stdin", "use this hook with podman; docs/podman.md")


def ours(spec: "dict[str, Any]", prefix: str) -> "dict[str, str]":
    """Return the annotations with our prefix."""
    annotations = spec.get("annotations") or {}
    return {key: text for key, text in annotations.items() if key == prefix or key.startswith(f"{prefix}/")}


def variables(spec: "dict[str, Any]") -> "dict[str, str]":
    """Return those of the container's variables, with values, that the daemon might set differently."""
    entries = (spec.get("process") or {}).get("env") or ()
    return dict(entry.split("=", 1) for entry in entries if entry.startswith(VARIABLES) and "=" in entry)


def may_lock(spec: "dict[str, Any]") -> bool:
    """Return whether the container's program has CAP_IPC_LOCK on the host, so that RLIMIT_MEMLOCK does not limit it.

    A program of a user other than root has only ambient capabilities. In a user namespace the capability does not
    count.
    """
    process = spec.get("process") or {}
    kind = "ambient" if (process.get("user") or {}).get("uid") else "effective"
    namespaces = [it.get("type") for it in (spec.get("linux") or {}).get("namespaces") or ()]
    return "CAP_IPC_LOCK" in ((process.get("capabilities") or {}).get(kind) or ()) and "user" not in namespaces


def memlock_in(spec: "dict[str, Any]") -> "int | None":
    """Return the RLIMIT_MEMLOCK in the container's configuration; None if it has none."""
    limits = (spec.get("process") or {}).get("rlimits") or ()
    return next((int(it["soft"]) for it in limits if it.get("type") == "RLIMIT_MEMLOCK"), None)


def create(arguments: "list[str]", program: str) -> int:
    """Add devices to a container's configuration, then execute the OCI runtime's `create`. Returns an exit code only on
    an error."""
    import os

    at = arguments.index("--") if "--" in arguments else len(arguments)
    flags, words = read_flags(arguments[:at]), arguments[at + 1 :]
    if flags is None or not words:
        sys.stderr.write(f"{USAGE}\n")
        return 2
    try:
        prepare_bundle(words, flags, program)
        os.execvp(words[0], words)
    except Exception as error:  # noqa: BLE001 - also a bug: fail closed, the container may ask for devices
        if isinstance(error, OSError):
            what = f"{error.filename or words[0]} cannot be used: {error.strerror}"
            error = refusal("OCI-STATE", what, words[-1], "see the log of Docker and containerd")
        line = one_line(str(error if isinstance(error, RefusalError) else unknown(error)))
        tell_engine(value_of(words, "--log"), line)
        return refuse(line)


def prepare_bundle(words: "list[str]", flags: "dict[str, str]", program: str) -> None:
    """Add devices and our hooks to the container's config.json, if its annotations ask for devices.

    `words` are the OCI runtime's arguments; `program` is the path of the hook's program. Raises RefusalError and
    OSError.
    """
    import os

    path, container = f"{value_of(words, '--bundle', '-b') or '.'}/config.json", words[-1]
    with open(path, "rb", opener=opened) as file:
        spec, mode = read_json(file.read(), path), os.fstat(file.fileno()).st_mode
    if not ours(spec, flags.get(PREFIX, DEFAULT_PREFIX)):
        return
    if "restore" in words[:-1]:
        what = "a container that asks for devices cannot be restored from a checkpoint"
        raise refusal("OCI-STATE", what, container, "start it without --checkpoint")
    add_devices(spec, flags, container)
    socket = [SOCKET, flags[SOCKET]] if SOCKET in flags else []
    prefix = [PREFIX, flags[PREFIX]] if PREFIX in flags else []
    hooks = spec["hooks"] = spec.get("hooks") or {}
    for stage, own in (("createRuntime", ["attach-prepared", *prefix]), ("poststop", ["return"])):
        hook = {"path": os.path.abspath(program), "args": [PROGRAM, *own, *socket], "timeout": HOOK_TIMEOUT_S}
        hooks[stage] = [*(hooks.get(stage) or ()), hook]
    beside = f"{path}.nri-rdma"
    with open(beside, "w") as file_beside:
        os.fchmod(file_beside.fileno(), mode & 0o777)
        file_beside.write(json_of(spec))
    os.replace(beside, path)


def value_of(words: "list[str]", *flags: str) -> str:
    """Return the value of a flag in the OCI runtime's arguments; "" if it is missing."""
    for word, following in zip(words, [*words[1:], ""]):
        name, equals, value = word.partition("=")
        if name in flags:
            return value if equals else following
    return ""


def tell_engine(log_file: str, line: str) -> None:
    """Write the error into the OCI runtime's log file, where the engine looks for it; with "", do nothing.

    The error is also on stderr and in the system's log.
    """
    if not log_file:
        return
    try:
        with open(log_file, "a") as file:
            file.write(json_of({"level": "error", "msg": line}) + "\n")
    except OSError as error:
        log(f"{log_file} cannot be written: {error.strerror}")


def attach(data: bytes, flags: "dict[str, str]") -> None:
    """Have the daemon attach the devices of the container's CDI devices. Raises RefusalError."""

    def asked(spec: "dict[str, Any]", path: str) -> "dict[str, Any]":
        return {"devices": wishes(spec, path, flags)}

    attach_asked(data, flags, asked)


def attach_prepared(data: bytes, flags: "dict[str, str]") -> None:
    """Have the daemon attach the devices that the container's annotations ask for. Raises RefusalError."""
    prefix = flags.get(PREFIX, DEFAULT_PREFIX)

    def asked(spec: "dict[str, Any]", path: str) -> "dict[str, Any]":
        text = (spec.get("annotations") or {}).get(f"{prefix}{PREPARED}")
        if text is None:
            what = "podman made the container without asking the precreate hook"
            raise refusal("OCI-STATE", what, "config.json", "set podman up anew: nri-rdma install podman")
        prepared = read_json(text.encode(), f"{prefix}{PREPARED}")
        own = [name for name, value in variables(spec).items() if prepared.get(name) != value]
        return {
            "devices": wishes(spec, path),
            "annotations": ours(spec, prefix),
            "prepared": prepared,
            "variables": own,
        }

    attach_asked(data, flags, asked)


def attach_asked(data: bytes, flags: "dict[str, str]", asked: "Callable[..., dict[str, Any]]") -> None:
    """Have the daemon attach the devices for which `asked` returns the fields of the question. Raises RefusalError.

    `data` is the container's state. `asked` gets its configuration and the path of the daemon's socket.
    """
    path = flags.get(SOCKET, DEFAULT_SOCKET)
    state = read_json(data, "stdin")
    container, pid = str(state.get("id")), state.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        raise refusal("OCI-STATE", f"the state names no process ({pid!r})", container, "see the log of the OCI runtime")
    bundle = f"{state.get('bundle')}/config.json"
    try:
        with open(bundle, "rb", opener=opened) as file:
            spec = read_json(file.read(), bundle)
        namespace = posix.open(f"/proc/{pid}/ns/net", posix.O_RDONLY)  # importing os takes longer than all of this
    except OSError as error:
        what = f"{error.filename} cannot be read: {error.strerror}"
        raise refusal("OCI-STATE", what, container, "see the log of the OCI runtime") from error
    linux = spec.get("linux")
    linux = linux if isinstance(linux, dict) else {}
    question = {
        "version": 1,
        "ask": "attach",
        "id": container,
        "pid": pid,
        **asked(spec, path),
        "nodes": rdma_nodes(linux),
        "cgroup": str(linux.get("cgroupsPath") or ""),
        "indexes": {name: value for name, value in variables(spec).items() if name in INDEXES},
        "locks": may_lock(spec),
        "memlock": memlock_in(spec),
        "bundle": str(state.get("bundle")),
    }
    given = ask(path, question, container, ABSENT_S, namespace)
    set_memlock(pid, given, container)


def give_back(data: bytes, flags: "dict[str, str]") -> None:
    """Have the daemon return the container's devices to the host. Raises RefusalError."""
    container = str(read_json(data, "stdin").get("id"))
    path = flags.get(SOCKET, DEFAULT_SOCKET)
    ask(path, {"version": 1, "ask": "return", "id": container}, container, ABSENT_AT_END_S)


def opened(path: str, flags: int) -> int:
    """Open a file for reading without blocking, because a FIFO without a writer would block for ever."""
    return posix.open(path, flags | posix.O_NONBLOCK)


def read_json(data: bytes, where: str) -> "dict[str, Any]":
    """Parse a JSON object. Raises RefusalError."""
    from _json import make_scanner  # the core of json.loads; importing json takes ten times as long (7 ms)

    try:
        text = data.decode().strip(" \t\r\n")
        value, end = make_scanner(Strict)(text, 0)  # type: ignore[arg-type]  # it takes any object with these attributes
        if end != len(text):
            raise ValueError("there is something after it")
        return dict(value.items())
    except (ValueError, AttributeError, RecursionError, StopIteration, SystemError) as error:
        # SystemError: the scanner's own errors need json, which is not imported.
        raise refusal("OCI-STATE", "this is no JSON object", where, "see the log of the OCI runtime") from error


class Strict:
    """The options of the JSON scanner, as in json.loads."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


def json_of(value: object) -> str:
    """Return a value of read_json as JSON text."""
    from _json import encode_basestring_ascii

    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]

    if isinstance(value, dict):
        return "{" + ",".join(f"{json_of(key)}:{json_of(it)}" for key, it in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(json_of, value)) + "]"
    return encode_basestring_ascii(value) if isinstance(value, str) else str(value)


def wishes(spec: "dict[str, Any]", path: str, own: "dict[str, str] | None" = None) -> "list[dict[str, str]]":
    """Return the requests of all hooks of this container's CDI devices that use the daemon's socket `path`. `own` are
    the flags of the hook that runs.

    A CDI device that was given twice is returned once.
    """
    hooks = spec.get("hooks")
    entries = hooks.get("createRuntime") if isinstance(hooks, dict) else None
    given = [words[2:] for entry in entries or () if (words := entry.get("args") or [])[:2] == [PROGRAM, "attach"]]
    found = []
    for flags in (*map(read_flags, given), own):
        if flags is None or flags.get(SOCKET, DEFAULT_SOCKET) != path:
            continue
        wish = {name[2:]: flags[name] for name in WISH if name in flags}
        if wish not in found:
            found.append(wish)
    return found


def rdma_nodes(linux: "dict[str, Any]") -> "list[tuple[object, object, object]]":
    """Return the container's RDMA device nodes: path, major, minor."""
    nodes = linux.get("devices") or ()
    return [(it["path"], it["major"], it["minor"]) for it in nodes if str(it.get("path", "")).startswith(RDMA_NODES)]


def set_memlock(pid: int, given: "dict[str, Any]", container: str) -> None:
    """Set RLIMIT_MEMLOCK of the process that will execute the container's program.

    Raises RefusalError if the limit cannot be set and the daemon requires it.
    """
    wanted = given.get("memlock")
    if not isinstance(wanted, int):
        return
    import resource

    number = resource.RLIM_INFINITY if wanted >= 1 << 63 else wanted
    try:
        resource.prlimit(pid, resource.RLIMIT_MEMLOCK, (number, number))
    except OSError as error:
        if given.get("must"):
            what = f"RLIMIT_MEMLOCK cannot be set to {wanted}: {error.strerror}"
            hint = "ask for less, or give podman or dockerd CAP_SYS_RESOURCE (LimitMEMLOCK=infinity for its unit)"
            raise refusal("MEMLOCK-LIMIT", what, container, hint) from error


def ask(path: str, question: object, where: str, absent_s: float, fd: int = -1) -> "dict[str, Any]":
    """Send a question to the daemon and return its answer. Raises RefusalError.

    `absent_s` is how long to wait for a daemon that does not listen; `fd` is a descriptor to send, -1: none.
    """
    import time
    from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket  # half the import of socket
    from _socket import timeout as late

    packet = json_of(question).encode()
    if len(packet) > LONGEST:
        what = f"the question about this container takes {len(packet)} bytes, and at most {LONGEST} are allowed"
        raise refusal("ANNOTATION-SIZE", what, where, "ask with shorter annotations")
    rights = [(SOL_SOCKET, SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))] if fd >= 0 else []
    until = time.monotonic() + absent_s
    last = until + ATTACH_S
    while True:
        connection, has_heard = socket(AF_UNIX, SOCK_SEQPACKET), False
        try:
            connection.settimeout(max(0.01, until - time.monotonic()))
            connection.connect(path)
            connection.sendmsg([packet], rights)
            answer = heard = read_answer(connection.recv(LONGEST), where)
            if "heard" in heard:
                has_heard = True
                connection.settimeout(max(0.01, last - time.monotonic()))
                answer = read_answer(connection.recv(LONGEST), where)
        except late as error:
            what = f"the daemon did not answer on {path}"
            raise refusal("DAEMON-LATE", what, where, "see the daemon's log and process; restart it") from error
        except PermissionError as error:
            what = f"{path} is for root: containers of other users (rootless) get no RDMA devices"
            raise refusal("PRIVILEGE", what, where, "start the container as root (sudo podman run ...)") from error
        except (FileNotFoundError, ConnectionError, BlockingIOError) as error:
            if has_heard:  # the daemon ended during the call: the next one will start soon
                until = min(last, time.monotonic() + absent_s)
            if time.monotonic() + LOOK_AGAIN_S < until:
                time.sleep(LOOK_AGAIN_S)
                continue
            if isinstance(error, BlockingIOError):
                what = f"the daemon has too many callers at once ({path})"
                raise refusal("DAEMON-LATE", what, where, "start the container again") from error
            raise refusal("DAEMON-ABSENT", f"no daemon listens on {path}", where, START) from error
        except OSError as error:
            what = f"the daemon cannot be asked: {error.strerror or error} ({path})"
            raise refusal("DAEMON-ABSENT", what, where, START) from error
        finally:
            connection.close()
        if "refusal" in answer:
            raise RefusalError(str(answer["refusal"]))
        return answer


def read_answer(data: bytes, where: str) -> "dict[str, Any]":
    """Parse a packet from the daemon. Raises ConnectionError if the daemon has disconnected."""
    if not data:
        raise ConnectionError("it hung up")
    return read_json(data, where)


HANDLERS = {"prepare": prepare, "attach": attach, "attach-prepared": attach_prepared, "return": give_back}
