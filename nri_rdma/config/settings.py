"""The settings: one field each, from which flag, environment variable, TOML key and documentation derive.

A value comes from the flag, else ``NRI_RDMA_NAME``, else the configuration file, else the default. Pools and rules are
tables: they come from the file only (nri_rdma.text.pools). A runtime that starts the daemon itself may send a text
instead of that file.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any  # Any: values before they are parsed

from nri_rdma.errors import ErrorCode, RequestError, SettingError
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.listen_address import ListenAddress, parse_listen_address
from nri_rdma.model.pool import DEFAULT_POOL, HANDLER_CHARACTER, RESOURCE, Pool, Rule, is_kubernetes_own
from nri_rdma.model.request import ANNOTATION_PREFIX, ANNOTATION_PREFIX_HINT, UNLIMITED, Mode
from nri_rdma.model.usage import Address, Lifelines, Network, parse_address
from nri_rdma.model.waits import Waits
from nri_rdma.text.quantities import QUANTITY, bytes_of
from nri_rdma.text.refusals import bounded, is_deeper, meant
from nri_rdma.text.toml import line_of, lines_of

DEFAULT_CONFIG_FILE = Path("/etc/nri-rdma/config.toml")
CDI_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""In rising priority, as CDI has them: what an administrator wrote, then what programs write."""
SANDBOXED_HANDLERS = ("kata*", "gvisor*", "runsc*", "firecracker*")
"""The runtime handlers under which Kata Containers, gVisor and Firecracker are usually set up."""
DEFAULT_ORIGIN = "default"
SENT_CONFIG = "the configuration that the runtime sent"
ENVIRONMENT_PREFIX = "NRI_RDMA_"
MAX_BYTES = 1 << 20
"""Longest configuration file; a longer one is refused. One with a hundred pools has 30 KiB."""
MAX_DOTS = 2048
"""Most dots in a line; a line with more is refused: the time of tomllib for a key grows with the square of the tables
that the key names."""
LONGEST_WAIT_S = 1.5
"""Longest wait that can be set; a longer one is refused. A runtime drops a plugin that does not answer within 2 s, and
a longer wait would leave no time for the answer."""
SHORTEST_PROOF_S, LONGEST_PROOF_S = 0.5, 6.0
"""Shortest and longest time of a proof that can be set. OCI runtimes end the hook after 10 s, which waits 2 s for the
daemon's first answer."""
MAX_DEPTH = 16
"""Greatest depth of tables and lists; a deeper text is refused. A label's value in a list of a rule is five deep."""
_HANDLER = re.compile(f"{HANDLER_CHARACTER}{{1,253}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memlock:
    """The RLIMIT_MEMLOCK of containers that get devices: bytes, or None to leave it alone.

    `automatic` raises it to unlimited where the runtime may, and leaves it alone elsewhere.
    """

    bytes: int | None = None
    automatic: bool = False


def _setting(default: object, text: str, parse: Callable[[str, Any], object], metavar: str = "TEXT") -> Any:
    schema = {"enum": list(parse.words)} if isinstance(parse, _Choice) else _SCHEMAS[parse]
    return field(default=default, metadata={"help": text, "parse": parse, "metavar": metavar, "schema": schema})


def _table(text: str, default: object = ()) -> Any:
    return field(default=default, metadata={"help": text, "table": True})


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _refused(name, value, "a text")
    return value


def _prefix(name: str, value: Any) -> str:
    text = _text(name, value)
    if not ANNOTATION_PREFIX.fullmatch(text):
        raise _refused(name, value, ANNOTATION_PREFIX_HINT)
    return text


def _resource(name: str, value: Any) -> str:
    """Read the name of an extended resource; an empty text is none."""
    text = _text(name, value)
    if text and (not RESOURCE.fullmatch(text) or is_kubernetes_own(text)):
        raise _refused(name, value, "PREFIX/NAME such as rdma.noderesource.dev/guard; Kubernetes' own names are taken")
    return text


def _path(name: str, value: Any) -> Path:
    return Path(_text(name, value))


def _path_or_none(name: str, value: Any) -> Path | None:
    """Read a path; an empty text is None."""
    text = _text(name, value)
    return Path(text) if text else None


def _paths(name: str, value: Any) -> tuple[Path, ...]:
    """Read a list of directories, or a text with commas between them; the last counts most."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
        raise _refused(name, value, "a list of directories")
    return tuple(Path(item) for item in items)


def _handlers(name: str, value: Any) -> tuple[str, ...]:
    """Read a list of runtime handlers, or a text with commas between them; an empty one is none."""
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",")] if value else []
    if not isinstance(value, list) or not all(isinstance(item, str) and _HANDLER.fullmatch(item) for item in value):
        raise _refused(name, value, "a list of runtime handlers; * and ? are wild")
    return tuple(value)


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise _refused(name, value, "true or false")


def _index(name: str, value: Any) -> str:
    text = str(value)
    if not re.fullmatch(r"[0-9]{2}", text):
        raise _refused(name, value, "two digits: runtimes call plugins in this order")
    return text


def _plugin_name(name: str, value: Any) -> str:
    text = _text(name, value)
    if not re.fullmatch(r"[a-zA-Z0-9_.+-]+", text):  # what NRI 0.12 lets register
        raise _refused(name, value, "letters, digits and _.+-")
    return text


def _memlock(name: str, value: Any) -> Memlock:
    text = str(value)
    if text == "auto":
        return Memlock(automatic=True)
    if text == "keep":
        return Memlock()
    if text == "unlimited":
        return Memlock(bytes=UNLIMITED)
    number = bytes_of(text)
    if number is not None and 0 < number < UNLIMITED:
        return Memlock(bytes=number)
    raise _refused(name, value, "auto, unlimited, keep, a number of bytes, or a quantity such as 512Mi")


def _node_ips(name: str, value: Any) -> tuple[Address, ...]:
    items = value.split(",") if isinstance(value, str) else value
    allowed = "an address, or several with commas between them, as the kubelet's --node-ip"
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise _refused(name, value, allowed)
    found = tuple(address for item in items if (address := parse_address(item.strip())) is not None)
    if len(found) != len(items):  # also for 0.0.0.0 and ::, which are no address of the node's
        raise _refused(name, value, allowed)
    return found


def _api_server(name: str, value: Any) -> Address:
    """Read the address of the API server. The port is ignored: routes have none."""
    address = parse_address(_without_port(_text(name, value)))
    if address is None:
        raise _refused(name, value, "an address, or ADDRESS:PORT; names are not resolved")
    return address


def _networks(name: str, value: Any) -> tuple[Network, ...]:
    items = value.split(",") if isinstance(value, str) else value
    allowed = "a network such as 10.96.0.0/12, or several with commas between them"
    if not isinstance(items, list) or not all(isinstance(item, str) and "/" in item for item in items):
        raise _refused(name, value, allowed)
    try:
        return tuple(ip_network(item.strip()) for item in items)
    except ValueError as error:
        raise _refused(name, value, allowed) from error


def _without_port(text: str) -> str:
    """Return ``10.0.0.1:6443`` and ``[fd00::1]:6443`` without what follows the address."""
    bracketed = re.fullmatch(r"\[([^]]*)\](?::[0-9]+)?", text)
    plain = re.fullmatch(r"([^:]*):[0-9]+", text)
    found = bracketed or plain
    return found[1] if found else text


def _wait(name: str, value: Any) -> float:
    """Read a time in seconds for which every pod of the node may have to wait."""
    return _seconds(name, value, 0, LONGEST_WAIT_S)


def _proof_time(name: str, value: Any) -> float:
    """Read a time in seconds for which the hook of a container waits."""
    return _seconds(name, value, SHORTEST_PROOF_S, LONGEST_PROOF_S)


def _seconds(name: str, value: Any, least: float, most: float) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not least <= seconds <= most:
        raise _refused(name, value, f"a number of seconds from {least:g} to {most:g}")
    return seconds


def _listen_address(name: str, value: Any) -> ListenAddress | None:
    """Read an address with a port; an empty text is None."""
    text = _text(name, value)
    found = parse_listen_address(text)
    if found is None and text:
        raise _refused(name, value, "ADDRESS:PORT, such as 127.0.0.1:9178 or [::]:9178; names are not resolved")
    return found


def _nice(name: str, value: Any) -> int:
    text = str(value)
    if not re.fullmatch(r"0|-(?:[1-9]|1[0-9]|20)", text):
        raise _refused(name, value, "a whole number from -20 to 0")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Reads one of some words."""

    words: tuple[str, ...]

    def __call__(self, name: str, value: Any) -> str:
        if value not in self.words:
            raise _refused(name, value, " or ".join(self.words))
        return str(value)


_SCHEMAS: Mapping[Callable[[str, Any], object], Mapping[str, object]] = {
    _text: {"type": "string"},
    _prefix: {"type": "string", "pattern": f"^{ANNOTATION_PREFIX.pattern}$"},
    _resource: {"type": "string", "pattern": f"^(?:|{RESOURCE.pattern})$"},
    _path: {"type": "string"},
    _path_or_none: {"type": "string"},
    _paths: {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    _handlers: {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string", "pattern": f"^(?:{_HANDLER.pattern})$"}},
        ]
    },
    _flag: {"type": "boolean"},
    _index: {"type": "string", "pattern": "^[0-9]{2}$"},
    _plugin_name: {"type": "string", "pattern": "^[a-zA-Z0-9_.+-]+$"},
    _node_ips: {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    _api_server: {"type": "string"},
    _networks: {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    _listen_address: {"type": "string", "pattern": "^(?:|.+:[0-9]{1,5})$"},
    _nice: {"type": "integer", "minimum": -20, "maximum": 0},
    _wait: {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_S},
    _proof_time: {"type": "number", "minimum": SHORTEST_PROOF_S, "maximum": LONGEST_PROOF_S},
    _memlock: {
        "anyOf": [
            {"enum": ["auto", "unlimited", "keep"]},
            {"type": "integer", "minimum": 1, "maximum": UNLIMITED - 1},
            {"type": "string", "pattern": f"^(?:{QUANTITY.pattern})$"},
        ]
    },
}
"""The JSON Schema of the values that each of these reads from a file."""


_LOG_LEVEL = "Lowest level that is logged; debug: each step of a pod's way, with its time and reason, too."
_METRICS_ADDRESS = (
    "Where /metrics (for Prometheus) and /healthz are served over HTTP, without encryption or password: 127.0.0.1:9178"
    " for this host only, [::]:9178 for whoever reaches it. Empty: nowhere."
)

_NAME_HOLDERS = (
    "Name the pods that hold devices where another pod is refused because of them, also to that pod's author, in"
    " events. The log and `nri-rdma status` name them in any case."
)
_PROOF_TIMEOUT = (
    "Seconds that the proof of a container with `prove: true` may take; then the container is refused. Other containers"
    " do not wait meanwhile."
)
_TRACING = "Record a span for every event and step of pods that ask for devices."
_GUARD_RESOURCE = (
    "A resource that gives a container the guard and nothing else, such as rdma.noderesource.dev/guard, for nodes whose"
    " runtime is not set up for the guard: the daemon serves it to the kubelet. Empty: none."
)


def _refused(name: str, value: Any, allowed: str) -> SettingError:
    what, hint = f"{name} = {bounded(repr(value))} cannot be used", f"{name.replace('_', '-')} is {allowed}"
    return SettingError(ErrorCode.SETTING, what, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the daemon."""

    nri_socket: Path = _setting(Path("/var/run/nri/nri.sock"), "Socket of the runtime's NRI.", _path, "PATH")
    plugin_name: str | None = _setting(
        None,
        "Name of this plugin in the runtime; default: NAME of a program called NN-NAME, or nri-rdma.",
        _plugin_name,
    )
    plugin_index: str | None = _setting(
        None,
        "Order among the runtime's plugins: later ones see what others inject; default: NN of a program NN-NAME,"
        " or 90.",
        _index,
        "NN",
    )
    annotation_prefix: str = _setting("rdma.noderesource.dev", "Prefix of nri-rdma's annotations.", _prefix)
    allow_default_pool: bool = _setting(
        False,
        "Let the pool `default` serve requests with `mode: exclusive` too; a request without a mode stays shared.",
        _flag,
    )
    sandboxed_handlers: tuple[str, ...] = _setting(
        SANDBOXED_HANDLERS,
        "Runtime handlers whose containers have a kernel of their own, where the node's devices do not work: a pod of"
        " one that asks for devices is refused. `*` and `?` are wild; empty: none.",
        _handlers,
        "HANDLER[,HANDLER...]",
    )
    memlock: Memlock = _setting(
        Memlock(automatic=True), "RLIMIT_MEMLOCK of containers with devices.", _memlock, "auto|unlimited|keep|BYTES"
    )
    name_holders: bool = _setting(False, _NAME_HOLDERS, _flag, "true|false")
    attach: str = _setting(
        "overlapped",
        "`overlapped` attaches while the pod starts, and its containers wait; `blocking` attaches before RunPodSandbox"
        " is answered, and restores the host before StopPodSandbox is, while every pod of the node waits.",
        _Choice(("overlapped", "blocking")),
        "overlapped|blocking",
    )
    sandbox_wait: float = _setting(
        0.0, "Seconds that RunPodSandbox waits for an overlapped attach before it is answered.", _wait, "SECONDS"
    )
    barrier_wait: float = _setting(
        0.2,
        "Seconds that a container waits for an attach that still runs, before the kubelet is told to retry.",
        _wait,
        "SECONDS",
    )
    nice: int = _setting(
        -10, "The daemon's nice value, if it was started with 0 and may change it; 0 leaves it so.", _nice, "NUMBER"
    )
    sysfs_root: Path = _setting(
        Path("/sys"), "Where the hardware is read: the machine's sysfs, or a directory tree like it.", _path, "DIR"
    )
    dev_root: Path = _setting(Path("/dev"), "Where the modes of device nodes are read.", _path, "DIR")
    proc_root: Path = _setting(
        Path("/proc"), "Where NVIDIA's driver lists its GPUs: the machine's procfs, or a tree like it.", _path, "DIR"
    )
    cgroup_root: Path = _setting(
        Path("/sys/fs/cgroup"), "Where the host's cgroups are read and limits are written.", _path, "DIR"
    )
    cdi_dirs: tuple[Path, ...] = _setting(
        CDI_DIRECTORIES, "Where CDI specs are read; a later directory overrides an earlier one.", _paths, "DIR[,DIR...]"
    )
    kubelet_socket: Path = _setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        "Socket where the kubelet reports what it allocated to pods (PodResources); it need not exist.",
        _path,
        "PATH",
    )
    device_plugin_dir: Path = _setting(
        Path("/var/lib/kubelet/device-plugins"),
        "The kubelet's folder for sockets of device plugins, where pools with door = resource are served.",
        _path,
        "DIR",
    )
    kubelet_plugins_dir: Path = _setting(
        Path("/var/lib/kubelet/plugins"),
        "The kubelet's folder for sockets of drivers, where pools with door = claims are served. Beside it are"
        " plugins_registry, with the socket by which the kubelet finds them, and dra_manager_state, which says which"
        " pods have a claim.",
        _path,
        "DIR",
    )
    node_name: str = _setting("", "The node's name in the cluster; empty: that of the host.", _text, "NAME")
    kubeconfig: Path | None = _setting(
        None,
        "File with the API server and the credentials for it, with pools with door = claims; empty: the service account"
        " of the daemon's pod.",
        _path_or_none,
        "PATH",
    )
    guard_hook: Path | None = _setting(
        Path("/usr/local/lib/nri-rdma/nri-rdma-hook"),
        "The guard's hook on the host, which containers with shares get if it is there when the daemon starts. Empty:"
        " they get none.",
        _path_or_none,
        "PATH",
    )
    guard_resource: str = _setting("", _GUARD_RESOURCE, _resource, "PREFIX/NAME")
    verbs_python: Path | None = _setting(
        Path("/usr/bin/python3"),
        "The distribution's Python, with its pyverbs (Debian: python3-pyverbs), which is asked for the capacity of"
        " devices whose pools have shares, and tries devices (`prove`, `nri-rdma verify`; Python 3.10 or newer)."
        " Empty: shares have no limits but those that are written, and nothing is proven.",
        _path_or_none,
        "PATH",
    )
    proof_timeout: float = _setting(3.0, _PROOF_TIMEOUT, _proof_time, "SECONDS")
    kubelet_wait: float = _setting(
        0.05,
        "Seconds that RunPodSandbox waits for the kubelet's answer, while every pod of the node waits. Without one a"
        " pod is placed as if the kubelet knew nothing of it, and one that asks for strict alignment is refused.",
        _wait,
        "SECONDS",
    )
    containerd_socket: Path | None = _setting(
        Path("/run/containerd/containerd.sock"),
        "Socket of containerd's own API: there the daemon asks releases that leave parts of a refused sandbox behind to"
        " remove them, and, with pools that are asked by a resource, whether containerd reads CDI specs; empty: it does"
        " not ask.",
        _path_or_none,
        "PATH",
    )
    state_dir: Path = _setting(
        Path("/run/nri-rdma"), "Directory of journal and lock, on a tmpfs, so that a reboot clears it.", _path, "DIR"
    )
    control_socket: Path | None = _setting(
        None, "Socket of `status` and `trace`; default: control.sock in the state directory.", _path, "PATH"
    )
    metrics_address: ListenAddress | None = _setting(None, _METRICS_ADDRESS, _listen_address, "ADDRESS:PORT")
    tracing: bool = _setting(True, _TRACING, _flag, "true|false")
    log_level: str = _setting("info", _LOG_LEVEL, _Choice(("debug", "info", "warning", "error")), "LEVEL")
    log_format: str = _setting("text", "Log lines for people or for machines.", _Choice(("text", "json")), "text|json")

    node_ip: tuple[Address, ...] | None = _setting(
        None,
        "The node's own addresses (the kubelet's --node-ip, several with commas): a netdev that has one is in use. A"
        " netdev with a default route that packets of others take is always in use.",
        _node_ips,
        "ADDRESS[,ADDRESS]",
    )
    api_server: Address | None = _setting(
        None,
        "Address of the API server (ADDRESS or ADDRESS:PORT): the netdev of the route to it is in use."
        " Default: KUBERNETES_SERVICE_HOST of the environment.",
        _api_server,
        "ADDRESS[:PORT]",
    )
    service_range: tuple[Network, ...] | None = _setting(
        None,
        "Addresses of the cluster's services (the API server's --service-cluster-ip-range): a netdev that moves into a"
        " pod brings no route there along.",
        _networks,
        "NETWORK[,NETWORK]",
    )
    log_file: Path | None = _setting(
        None,
        "File of the log; default: stderr, or syslog if the runtime starts the daemon (lines that syslog does not take"
        " go to nri-rdma.log in the state directory).",
        _path,
        "PATH",
    )
    pools: tuple[Pool, ...] = _table("What pods may ask for; without any, the pool `default` has every device.")
    rules: tuple[Rule, ...] = _table(
        "Who may ask which pool for what; the first rule that applies to pod and pool decides."
    )
    adopt: Adoption = _table(
        "What is done with RDMA devices that others gave to containers; without it they are observed.", Adoption()
    )

    @property
    def control_path(self) -> Path:
        """The control socket."""
        return self.control_socket or self.state_dir / "control.sock"

    @property
    def hook_socket(self) -> Path:
        """The socket that OCI hooks of podman and Docker ask."""
        return self.state_dir / "oci.sock"

    def lifelines(self, environment: Mapping[str, str]) -> Lifelines:
        """Return the addresses that the node lives by. A name that a cluster has put into KUBERNETES_SERVICE_HOST is
        skipped: resolving it could take longer than everything else."""
        told = parse_address(environment.get("KUBERNETES_SERVICE_HOST", ""))
        return Lifelines(
            node_ips=self.node_ip or (), api_server=self.api_server or told, service_range=self.service_range or ()
        )

    @property
    def waits(self) -> Waits:
        """The longest times that the runtime waits for attaches."""
        return Waits(blocking=self.attach == "blocking", sandbox_s=self.sandbox_wait, barrier_s=self.barrier_wait)

    @property
    def fallback_log(self) -> Path:
        """The file for log lines that syslog does not take."""
        return self.state_dir / "nri-rdma.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The text of a configuration (TOML), with its name in errors; and its file, when the text is a file's."""

    name: str
    text: str = ""
    file: Path | None = None
    is_sent: bool = False

    @classmethod
    def sent_or_read(cls, sent: str, config_file: Path | None) -> Document:
        """Return what the runtime sent, else the file. Raises as `read`."""
        return cls(name=SENT_CONFIG, text=sent, is_sent=True) if sent.strip() else cls.read(config_file)

    @classmethod
    def read(cls, config_file: Path | None) -> Document:
        """Read the named file, which must exist; else the usual one, which need not. Raises SettingError."""
        path = config_file or DEFAULT_CONFIG_FILE
        try:
            with open(path, "rb", opener=_open_without_waiting) as file:
                if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                    raise _bad_document(str(path), "it is a FIFO, not a file")
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise _bad_document(str(path), f"it is longer than {MAX_BYTES} bytes")
            return cls(name=str(path), text=data.decode().replace("\r\n", "\n"), file=path)
        except FileNotFoundError as error:
            if config_file is None:
                return cls(name=str(path))
            what, hint = (
                "there is no such configuration file",
                "write it, or name another with --config",
            )
            raise SettingError(ErrorCode.SETTING, what, where=str(path), hint=hint) from error
        except (OSError, UnicodeDecodeError) as error:
            raise _bad_document(str(path), str(error)) from error

    def again(self) -> Document:
        """Read the document again. A file that existed must still exist: without it, pods would be offered what the
        default offers. A text that the runtime sent stays the same. Raises as `read`."""
        return self if self.is_sent else Document.read(self.file)

    def line_of(self, path: str) -> int:
        """Return the line of a key (``rules[0].namespaces``), 0 when there is none."""
        return line_of(lines_of(self.text), path)

    def place_of(self, path: str) -> str:
        """Return name and line of a key."""
        line = self.line_of(path)
        return f"{self.name}:{line}" if line else self.name


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a FIFO without waiting for somebody who writes."""
    return os.open(path, flags | os.O_NONBLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The settings, and the source of each for people: a flag, a variable, a line of a file, or `default`.

    `again` reads all sources once more. Raises SettingError. `problems` are what a start goes on without
    (nri_rdma.config.start); `closed` says why those who ask for devices are refused meanwhile, "" when they are not.
    """

    settings: Settings
    origins: Mapping[str, str]
    again: Callable[[], Settings]
    problems: tuple[SettingError, ...] = ()
    closed: str = ""


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], config_file: Path | None = None, *, sent: str = ""
) -> Settings:
    """Return the settings from all sources. A flag that is None was not given; `sent` is the runtime's text instead of
    the file, "" when it sent none. Raises SettingError that names the setting."""
    return load(flags, environment, Document.sent_or_read(sent, config_file)).settings


def load_some(
    names: Collection[str], flags: Mapping[str, object], environment: Mapping[str, str], document: Document
) -> Settings:
    """Return the settings of these names where the document as a whole cannot be used: what can be read of them in it
    counts, the others have their defaults. Raises SettingError for a flag or variable."""
    try:
        table = parse_table(document)
    except SettingError:
        table = {}
    values: dict[str, Any] = {}
    for item in fields(Settings):
        if item.name not in names:
            continue
        value, _ = read_setting(item, flags, environment, document, {})
        if value is not None:
            values[item.name] = value
        elif item.name in table:
            with contextlib.suppress(SettingError):  # the caller has reported that the document is wrong
                values[item.name] = item.metadata["parse"](item.name, table[item.name])
    return Settings(**values)


def load(flags: Mapping[str, object], environment: Mapping[str, str], document: Document) -> Loaded:
    """Return the settings from all sources, with their origins. Raises as load_settings."""
    table = parse_table(document)
    for key in table:
        refuse_unknown(key, document)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for item in fields(Settings):
        if item.metadata.get("table"):
            continue
        value, origins[item.name] = read_setting(item, flags, environment, document, table)
        if origins[item.name] != DEFAULT_ORIGIN:
            values[item.name] = value
    tables = _read_tables(table, document)
    settings = Settings(**values, **tables)
    origins["pools"] = settings.pools[0].where if settings.pools else "default"
    origins["rules"] = settings.rules[0].where if settings.rules else "default"
    origins["adopt"] = document.place_of("adopt") if "adopt" in table else "default"
    taken = shared_resource(settings, document, origins["guard_resource"])
    if taken is not None:
        raise taken
    if settings.pools and settings.allow_default_pool:
        raise needless_default_pool(document, origins["allow_default_pool"])
    return Loaded(settings=settings, origins=origins, again=lambda: load(flags, environment, document.again()).settings)


def read_setting(
    item: Field[Any],
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    document: Document,
    table: Mapping[str, Any],
) -> tuple[Any, str]:
    """Return a setting's value and its origin; None and DEFAULT_ORIGIN where no source has it. Raises SettingError."""
    variable = ENVIRONMENT_PREFIX + item.name.upper()
    sources: tuple[tuple[str, object], ...] = (
        (f"--{item.name.replace('_', '-')}", flags.get(item.name)),
        (variable, environment.get(variable)),
        (document.name, table.get(item.name)),
    )
    origin, value = next((source for source in sources if source[1] is not None), (DEFAULT_ORIGIN, None))
    if value is None:
        return None, origin
    line = 0
    if origin == document.name:
        origin, line = document.place_of(item.name), document.line_of(item.name)
    return _parsed(item.metadata["parse"], item.name, value, origin, line), origin


def misnamed_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that are no setting's, each with the one that was probably meant. Those that Kubernetes makes
    of a Service whose name begins with nri-rdma are none."""
    known = {f"{ENVIRONMENT_PREFIX}{it.name.upper()}" for it in fields(Settings) if not it.metadata.get("table")}
    for name in environment:
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not _OF_SERVICE.fullmatch(name):
            near = meant(name.removeprefix(ENVIRONMENT_PREFIX), (it.removeprefix(ENVIRONMENT_PREFIX) for it in known))
            if near:
                yield name, f"{ENVIRONMENT_PREFIX}{near}"


_OF_SERVICE = re.compile(r"[A-Z0-9_]+?_(SERVICE_(HOST|PORT)|PORT)(_.*)?")


def needless_default_pool(document: Document, origin: str) -> SettingError:
    """Return the error of allow_default_pool beside pools."""
    return SettingError(
        ErrorCode.SETTING,
        "allow_default_pool is for a configuration without pools",
        where=origin,
        line=document.line_of("allow_default_pool"),
        path="allow_default_pool",
        hint=f'take it away, or write modes = ["exclusive", "shared"] in a pool {DEFAULT_POOL}',
    )


def shared_resource(settings: Settings, document: Document, origin: str) -> SettingError | None:
    """Return the error of a pool that is asked by the guard resource: its containers would have the guard alone."""
    pool = next((it for it in settings.pools if it.resource and it.resource == settings.guard_resource), None)
    if pool is None:
        return None
    return SettingError(
        ErrorCode.SETTING,
        f"{pool.resource} is also the resource of {pool.where}",
        where=origin,
        line=document.line_of("guard_resource"),
        path="guard_resource",
        hint="choose another name",
    )


def _parsed(parse: Callable[[str, Any], object], name: str, value: object, origin: str, line: int) -> object:
    try:
        return parse(name, value)
    except SettingError as error:
        raise SettingError(error.code, error.what, where=origin, hint=error.hint, line=line, path=name) from error


def parse_table(document: Document) -> Mapping[str, Any]:
    """Return the keys of a text, unread. Raises SettingError when the text is no TOML."""
    for number, line in enumerate(document.text.split("\n"), start=1):
        if line.count(".") > MAX_DOTS:
            raise _bad_document(document.name, f"there are more than {MAX_DOTS} dots in line {number}", number)
    try:
        table = tomllib.loads(document.text)
    except tomllib.TOMLDecodeError as error:
        raise _bad_document(document.name, str(error), _line_told(str(error), document.text)) from error
    except ValueError as error:
        raise _bad_document(document.name, "a number in it has too many digits") from error
    except RecursionError as error:
        raise _bad_document(document.name, "it is nested too deep") from error
    if is_deeper(table, MAX_DEPTH):
        raise _bad_document(document.name, f"it is nested deeper than {MAX_DEPTH} levels")
    return table


def _line_told(told: str, text: str) -> int:
    """Return the line that tomllib names, 0 when it names none."""
    if "(at end of document)" in told:
        return text.count("\n") + 1
    found = re.search(r"\(at line (\d+), ", told)
    return int(found[1]) if found else 0


def refuse_unknown(key: str, document: Document) -> None:
    """Raise SettingError when the name is no setting's."""
    known = tuple(item.name for item in fields(Settings))
    if key not in known:
        raise SettingError(
            ErrorCode.SETTING,
            f"unknown setting {bounded(key)}",
            where=document.place_of(key),
            hint=f"write {near}" if (near := meant(key, known)) else f"known are {', '.join(sorted(known))}",
            line=document.line_of(key),
            path=bounded(key),
        )


def _read_tables(table: Mapping[str, Any], document: Document) -> Mapping[str, Any]:
    """Read pools, rules and `adopt`. Each rule has its place, because refusals name it."""
    if not table.keys() & {"pools", "rules", "adopt"}:
        return {}
    from nri_rdma.text.pools import (  # late: imports YAML
        check_rules,
        node_of,
        read_adoption,
        read_pools,
        read_rules,
    )

    try:
        adoption = read_adoption(node_of(table["adopt"])) if "adopt" in table else Adoption()
        pools = read_pools(node_of(table["pools"])) if "pools" in table else ()
        rules = read_rules(node_of(table["rules"])) if "rules" in table else ()
        check_rules(pools or (Pool(name=DEFAULT_POOL, modes=tuple(Mode)),), rules)
    except RequestError as error:
        raise refusal_in(document, error) from error
    return {
        "pools": tuple(replace(pool, where=document.place_of(pool.where)) for pool in pools),
        "rules": tuple(replace(rule, where=document.place_of(rule.where)) for rule in rules),
        "adopt": adoption,
    }


def check_setting(name: str, value: object, document: Document) -> None:
    """Raise SettingError when a setting of the text cannot have its value. Pools and rules are not looked at."""
    item = next(item for item in fields(Settings) if item.name == name)
    if not item.metadata.get("table"):
        _parsed(item.metadata["parse"], name, value, document.place_of(name), document.line_of(name))


def refusal_in(document: Document, error: RequestError) -> SettingError:
    """Return the error of a pool or a rule, with its place in the document."""
    path = f"{error.where}.{error.key}" if error.key else error.where
    where = f"{document.place_of(path)} {error.where}"
    line = document.line_of(path)
    return SettingError(ErrorCode.SETTING, error.what, where=where, hint=error.hint, line=line, path=error.where)


def _bad_document(name: str, why: str, line: int = 0) -> SettingError:
    what = f"the configuration cannot be used: {why}"
    return SettingError(ErrorCode.SETTING, what, where=name, hint="mend the file", line=line)
