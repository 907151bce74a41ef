"""The settings of the daemon. Each is a field of Settings, from which its flag, environment variable, TOML key and
documentation are derived.

A value comes from the flag, else ``NRI_RDMA_NAME``, else the configuration file, else the default. Pools and rules are
tables: they come from the file only (nri_rdma.text.pools). A runtime that starts the daemon itself may send a
configuration text, which replaces the file.
"""

from __future__ import annotations

import contextlib
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
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.listen_address import ListenAddress, parse_listen_address
from nri_rdma.model.pool import DEFAULT_POOL, HANDLER_CHARACTER, RESOURCE, Pool, PoolDoor, Rule, is_kubernetes_own
from nri_rdma.model.request import ANNOTATION_PREFIX, ANNOTATION_PREFIX_HINT, UNLIMITED, Mode
from nri_rdma.model.usage import Address, Lifelines, Network, parse_address
from nri_rdma.model.waits import Waits
from nri_rdma.text.forms import FLAG, TEXT_SCHEMA, Form, Schema, number, parsed_by, pattern_schema, text_of
from nri_rdma.text.nodes import Node, Scalar, node_of, shown
from nri_rdma.text.quantities import QUANTITY, bytes_of
from nri_rdma.text.reading import empty_or, parsed, text_with, written
from nri_rdma.text.refusals import bounded, is_deeper, meant, refused
from nri_rdma.text.toml import line_of, lines_of

DEFAULT_CONFIG_FILE = Path("/etc/nri-rdma/config.toml")
CDI_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""The directories of CDI specs. Administrators write into the first, programs into the second. A spec in the second
overrides one in the first, which is CDI's rule."""
SANDBOXED_HANDLERS = ("kata*", "gvisor*", "runsc*", "firecracker*")
"""The runtime handlers under which Kata Containers, gVisor and Firecracker are usually set up."""
DEFAULT_ORIGIN = "default"
SENT_CONFIG = "the configuration that the runtime sent"
ENVIRONMENT_PREFIX = "NRI_RDMA_"
MAX_BYTES = 1 << 20
"""The most bytes of a configuration file; a longer file is refused. A file with a hundred pools has 30 KiB."""
MAX_DOTS = 2048
"""The most dots in a line of a configuration; a line with more is refused. A key names one table for each of its dots,
and the time that tomllib takes for a key grows with the square of the tables."""
LONGEST_WAIT_S = 1.5
"""The longest wait that can be set; a longer one is refused. A runtime drops a plugin that does not answer within 2 s,
and a longer wait would leave no time for the answer."""
SHORTEST_PROOF_S, LONGEST_PROOF_S = 0.5, 6.0
"""The shortest and the longest time limit of a proof (a test transfer by RDMA before a container starts). The
container's OCI hook waits for it. OCI runtimes end the hook after 10 s, of which it may already wait 2 s for the
daemon's first answer."""
MAX_DEPTH = 16
"""The most levels of tables and lists; a deeper text is refused. A label's value in a list of a rule is five deep."""
_STRICT_ADOPTION = Adoption(others=VendorAdoption(adopt=Adopt.ENFORCE))
_HANDLER = re.compile(f"{HANDLER_CHARACTER}{{1,253}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memlock:
    """The RLIMIT_MEMLOCK of containers that get devices: bytes, or None to leave the limit alone.

    `automatic` raises the limit to unlimited if the runtime is allowed to; otherwise it leaves the limit alone.
    """

    bytes: int | None = None
    automatic: bool = False


def _setting(default: object, text: str, form: Form, metavar: str = "TEXT") -> Any:
    return field(default=default, metadata={"help": text, "form": form, "metavar": metavar})


def _table(text: str, default: object = ()) -> Any:
    return field(default=default, metadata={"help": text, "table": True})


@dataclass(frozen=True, slots=True)
class _Given(Scalar):
    """A scalar from a flag, an environment variable or TOML. Flags and variables are always texts, so that numbers and
    truth values are also read from texts."""

    @property
    def value(self) -> str | None:
        """Return the text; None for a number, a truth value or a date of TOML."""
        return None if self.plain else self.text

    @property
    def number(self) -> int | None:
        """Return the whole number, whether it is a number of TOML or a text; None if it is not a whole number."""
        return int(self.text) if re.fullmatch(r"0|-?[1-9][0-9]{0,18}", self.text) else None

    @property
    def truth(self) -> bool | None:
        """Return the truth value, whether it is one of TOML or a word in a text, such as yes or 0; None if it is not
        one."""
        return {"true": True, "false": False}.get(self.text) if self.plain else _WORDS.get(self.text.lower())


_WORDS = {**dict.fromkeys(("true", "1", "yes", "on"), True), **dict.fromkeys(("false", "0", "no", "off"), False)}


def _any(parse: Callable[[str], object], allowed: str, schema: Schema) -> Form:
    """Return a Form (reader and JSON Schema) for a text, a number or a truth value. `parse` turns the text by which the
    value is written into a setting. `allowed` is the hint of the error."""
    return parsed_by(parse, allowed, schema, written(allowed))


def _list(parse: Callable[[str], object], allowed: str, items: Schema = TEXT_SCHEMA, *, or_none: bool = False) -> Form:
    """Return a Form (reader and JSON Schema) for a list, or for one text with commas between the values. `parse` turns
    each value into a part of the setting. With `or_none`, an empty text is an empty list."""
    read_item = parsed(parse, allowed, text_with(allowed))

    def read(node: Node, where: str) -> tuple[object, ...]:
        if isinstance(node, Scalar) and not node.plain:
            node = [_Given(it.strip(), plain=False) for it in node.text.split(",") if node.text or not or_none]
        if not isinstance(node, list):
            raise refused(where, f"{shown(node)} is not a list", allowed)
        return tuple(read_item(item, where) for item in node)

    return Form(read, {"anyOf": [TEXT_SCHEMA, {"type": "array", "items": items}]})


def _choice(*words: str) -> Form:
    """Return a Form (reader and JSON Schema) for a text that must be one of `words`."""
    allowed = " or ".join(words)
    return parsed_by({word: word for word in words}.get, allowed, {"enum": [*words]}, text_with(allowed))


def _seconds(least: float, most: float) -> Form:
    """Return a Form (reader and JSON Schema) for a number of seconds from `least` to `most`."""

    def parse(text: str) -> float | None:
        return seconds if least <= (seconds := float(text)) <= most else None

    allowed = f"a number of seconds from {least:g} to {most:g}"
    return _any(parse, allowed, {"type": "number", "minimum": least, "maximum": most})


def _resource(text: str) -> str | None:
    return text if not text or (RESOURCE.fullmatch(text) and not is_kubernetes_own(text)) else None


def _memlock(text: str) -> Memlock | None:
    words = {"auto": Memlock(automatic=True), "keep": Memlock(), "unlimited": Memlock(bytes=UNLIMITED)}
    number = bytes_of(text) or 0
    return Memlock(bytes=number) if 0 < number < UNLIMITED else words.get(text)


def _address(text: str) -> Address | None:
    """Return an address without the port that may follow it: ``10.0.0.1:6443``, ``[fd00::1]:6443``. Returns None if the
    text is not an address."""
    found = re.fullmatch(r"\[([^]]*)\](?::[0-9]+)?", text) or re.fullmatch(r"([^:]*):[0-9]+", text)
    return parse_address(found[1] if found else text)


_string = text_with("a text")
_TEXT = Form(_string, TEXT_SCHEMA)
_PREFIX = text_of(ANNOTATION_PREFIX, ANNOTATION_PREFIX_HINT, _string)
_RESOURCE = parsed_by(
    _resource,
    "PREFIX/NAME such as rdma.noderesource.dev/guard; Kubernetes' own names are taken",
    {"type": "string", "pattern": f"^(?:|{RESOURCE.pattern})$"},
    _string,
)
_PATH = parsed_by(Path, "a text", TEXT_SCHEMA, _string)
_PATH_OR_NONE = Form(empty_or(_PATH.read), TEXT_SCHEMA)
_PATHS = _list(lambda text: Path(text) if text else None, "a list of directories")
_HANDLERS = _list(
    lambda text: text if _HANDLER.fullmatch(text) else None,
    "a list of runtime handlers; * and ? are wild",
    pattern_schema(_HANDLER),
    or_none=True,
)
_ORDER = "two digits: runtimes call plugins in this order"
_INDEX = text_of(re.compile(r"[0-9]{2}"), _ORDER, written(_ORDER))
_PLUGIN_NAME = text_of(re.compile(r"[a-zA-Z0-9_.+-]+"), "letters, digits and _.+-", _string)  # what NRI 0.12 registers
_MEMLOCK = _any(
    _memlock,
    "auto, unlimited, keep, a number of bytes, or a quantity such as 512Mi",
    {
        "anyOf": [
            {"enum": ["auto", "unlimited", "keep"]},
            {"type": "integer", "minimum": 1, "maximum": UNLIMITED - 1},
            pattern_schema(QUANTITY),
        ]
    },
)
_NODE_IPS = _list(
    lambda text: parse_address(text.strip()),  # 0.0.0.0 and :: are no address of the node's
    "an address, or several with commas between them, as the kubelet's --node-ip",
)
_API_SERVER = parsed_by(_address, "an address, or ADDRESS:PORT; names are not resolved", TEXT_SCHEMA, _string)
_NETWORKS = _list(
    lambda text: ip_network(text.strip()) if "/" in text else None,
    "a network such as 10.96.0.0/12, or several with commas between them",
)
_LISTEN_ADDRESS = Form(
    empty_or(
        parsed(
            parse_listen_address,
            "ADDRESS:PORT, such as 127.0.0.1:9178 or [::]:9178; names are not resolved",
            _string,
        )
    ),
    {"type": "string", "pattern": "^(?:|.+:[0-9]{1,5})$"},
)
_NICE = number(-20, 0)
_WAIT = _seconds(0, LONGEST_WAIT_S)
"""The Form (reader and JSON Schema) of a waiting time for which every pod of the node may have to wait."""
_PROOF_TIME = _seconds(SHORTEST_PROOF_S, LONGEST_PROOF_S)
"""The Form (reader and JSON Schema) of the time limit of a proof, for which the OCI hook of a container waits."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the daemon."""

    nri_socket: Path = _setting(Path("/var/run/nri/nri.sock"), "Socket of the runtime's NRI.", _PATH, "PATH")
    plugin_name: str | None = _setting(
        None,
        "Name of this plugin in the runtime; default: NAME of a program called NN-NAME, or nri-rdma.",
        _PLUGIN_NAME,
    )
    plugin_index: str | None = _setting(
        None,
        "Order among the runtime's plugins: later ones see what others inject; default: NN of a program NN-NAME,"
        " or 90.",
        _INDEX,
        "NN",
    )
    annotation_prefix: str = _setting("rdma.noderesource.dev", "Prefix of nri-rdma's annotations.", _PREFIX)
    allow_default_pool: bool = _setting(
        False,
        "Let the pool `default` serve requests with `mode: exclusive` too; a request without a mode stays shared.",
        FLAG,
    )
    sandboxed_handlers: tuple[str, ...] = _setting(
        SANDBOXED_HANDLERS,
        "Runtime handlers whose containers have a kernel of their own, where the node's devices do not work: a pod of"
        " one that asks for devices is refused. `*` and `?` are wild; empty: none.",
        _HANDLERS,
        "HANDLER[,HANDLER...]",
    )
    memlock: Memlock = _setting(
        Memlock(automatic=True), "RLIMIT_MEMLOCK of containers with devices.", _MEMLOCK, "auto|unlimited|keep|BYTES"
    )
    name_holders: bool = _setting(False, _NAME_HOLDERS, FLAG, "true|false")
    attach: str = _setting(
        "overlapped",
        "`overlapped` attaches while the pod starts, and its containers wait; `blocking` attaches before RunPodSandbox"
        " is answered, and restores the host before StopPodSandbox is, while every pod of the node waits.",
        _choice("overlapped", "blocking"),
        "overlapped|blocking",
    )
    sandbox_wait: float = _setting(
        0.0, "Seconds that RunPodSandbox waits for an overlapped attach before it is answered.", _WAIT, "SECONDS"
    )
    barrier_wait: float = _setting(
        0.2,
        "Seconds that a container waits for an attach that still runs, before the kubelet is told to retry.",
        _WAIT,
        "SECONDS",
    )
    nice: int = _setting(
        -10, "The daemon's nice value, if it was started with 0 and may change it; 0 leaves it so.", _NICE, "NUMBER"
    )
    sysfs_root: Path = _setting(
        Path("/sys"), "Where the hardware is read: the machine's sysfs, or a directory tree like it.", _PATH, "DIR"
    )
    dev_root: Path = _setting(Path("/dev"), "Where the modes of device nodes are read.", _PATH, "DIR")
    proc_root: Path = _setting(
        Path("/proc"), "Where NVIDIA's driver lists its GPUs: the machine's procfs, or a tree like it.", _PATH, "DIR"
    )
    cgroup_root: Path = _setting(
        Path("/sys/fs/cgroup"), "Where the host's cgroups are read and limits are written.", _PATH, "DIR"
    )
    cdi_dirs: tuple[Path, ...] = _setting(
        CDI_DIRECTORIES, "Where CDI specs are read; a later directory overrides an earlier one.", _PATHS, "DIR[,DIR...]"
    )
    kubelet_socket: Path = _setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        "Socket where the kubelet reports what it allocated to pods (PodResources); it need not exist.",
        _PATH,
        "PATH",
    )
    device_plugin_dir: Path = _setting(
        Path("/var/lib/kubelet/device-plugins"),
        "The kubelet's folder for sockets of device plugins, where pools with door = resource are served.",
        _PATH,
        "DIR",
    )
    kubelet_plugins_dir: Path = _setting(
        Path("/var/lib/kubelet/plugins"),
        "The kubelet's folder for sockets of drivers, where pools with door = claims are served. Beside it are"
        " plugins_registry, with the socket by which the kubelet finds them, and dra_manager_state, which says which"
        " pods have a claim.",
        _PATH,
        "DIR",
    )
    node_name: str = _setting("", "The node's name in the cluster; empty: that of the host.", _TEXT, "NAME")
    kubeconfig: Path | None = _setting(
        None,
        "File with the API server and the credentials for it, with pools with door = claims; empty: the service account"
        " of the daemon's pod.",
        _PATH_OR_NONE,
        "PATH",
    )
    guard_hook: Path | None = _setting(
        Path("/usr/local/lib/nri-rdma/nri-rdma-hook"),
        "The guard's hook on the host, which containers with shares get if it is there when the daemon starts. Empty:"
        " they get none.",
        _PATH_OR_NONE,
        "PATH",
    )
    guard_resource: str = _setting("", _GUARD_RESOURCE, _RESOURCE, "PREFIX/NAME")
    verbs_python: Path | None = _setting(
        Path("/usr/bin/python3"),
        "The distribution's Python, with its pyverbs (Debian: python3-pyverbs), which is asked for the capacity of"
        " devices whose pools have shares, and tries devices (`prove`, `nri-rdma verify`; Python 3.10 or newer)."
        " Empty: shares have no limits but those that are written, and nothing is proven.",
        _PATH_OR_NONE,
        "PATH",
    )
    proof_timeout: float = _setting(3.0, _PROOF_TIMEOUT, _PROOF_TIME, "SECONDS")
    kubelet_wait: float = _setting(
        0.05,
        "Seconds that RunPodSandbox waits for the kubelet's answer, while every pod of the node waits. Without one a"
        " pod is placed as if the kubelet knew nothing of it, and one that asks for strict alignment is refused.",
        _WAIT,
        "SECONDS",
    )
    containerd_socket: Path | None = _setting(
        Path("/run/containerd/containerd.sock"),
        "Socket of containerd's own API: there the daemon asks releases that leave parts of a refused sandbox behind to"
        " remove them, and, with pools that are asked by a resource, whether containerd reads CDI specs; empty: it does"
        " not ask.",
        _PATH_OR_NONE,
        "PATH",
    )
    state_dir: Path = _setting(
        Path("/run/nri-rdma"), "Directory of journal and lock, on a tmpfs, so that a reboot clears it.", _PATH, "DIR"
    )
    control_socket: Path | None = _setting(
        None, "Socket of `status` and `trace`; default: control.sock in the state directory.", _PATH, "PATH"
    )
    metrics_address: ListenAddress | None = _setting(None, _METRICS_ADDRESS, _LISTEN_ADDRESS, "ADDRESS:PORT")
    tracing: bool = _setting(True, _TRACING, FLAG, "true|false")
    log_level: str = _setting("info", _LOG_LEVEL, _choice("debug", "info", "warning", "error"), "LEVEL")
    log_format: str = _setting("text", "Log lines for people or for machines.", _choice("text", "json"), "text|json")

    node_ip: tuple[Address, ...] | None = _setting(
        None,
        "The node's own addresses (the kubelet's --node-ip, several with commas): a netdev that has one is in use. A"
        " netdev with a default route that packets of others take is always in use.",
        _NODE_IPS,
        "ADDRESS[,ADDRESS]",
    )
    api_server: Address | None = _setting(
        None,
        "Address of the API server (ADDRESS or ADDRESS:PORT): the netdev of the route to it is in use."
        " Default: KUBERNETES_SERVICE_HOST of the environment.",
        _API_SERVER,
        "ADDRESS[:PORT]",
    )
    service_range: tuple[Network, ...] | None = _setting(
        None,
        "Addresses of the cluster's services (the API server's --service-cluster-ip-range): a netdev that moves into a"
        " pod brings no route there along.",
        _NETWORKS,
        "NETWORK[,NETWORK]",
    )
    log_file: Path | None = _setting(
        None,
        "File of the log; default: stderr, or syslog if the runtime starts the daemon (lines that syslog does not take"
        " go to nri-rdma.log in the state directory).",
        _PATH,
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
        """The path of the socket at which the daemon answers `nri-rdma status` and `nri-rdma trace`."""
        return self.control_socket or self.state_dir / "control.sock"

    @property
    def hook_socket(self) -> Path:
        """The path of the socket at which the daemon answers the OCI hooks of podman and Docker."""
        return self.state_dir / "oci.sock"

    def lifelines(self, environment: Mapping[str, str]) -> Lifelines:
        """Return the addresses that the node and its pods must be able to reach: node, API server and services. If the
        setting `api_server` is missing, its address comes from KUBERNETES_SERVICE_HOST. A host name in that variable is
        ignored, because resolving it could take long."""
        told = parse_address(environment.get("KUBERNETES_SERVICE_HOST", ""))
        return Lifelines(
            node_ips=self.node_ip or (), api_server=self.api_server or told, service_range=self.service_range or ()
        )

    @property
    def waits(self) -> Waits:
        """The limits of how long a call of the runtime may wait until devices are attached to a pod."""
        return Waits(blocking=self.attach == "blocking", sandbox_s=self.sandbox_wait, barrier_s=self.barrier_wait)

    @property
    def fallback_log(self) -> Path:
        """The path of the file for log lines that syslog does not accept."""
        return self.state_dir / "nri-rdma.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The text of a configuration (TOML). `name` stands for it in errors. `file` is its path; None if the text does not
    come from a file. `is_sent` says that the runtime sent the text."""

    name: str
    text: str = ""
    file: Path | None = None
    is_sent: bool = False

    @classmethod
    def sent_or_read(cls, sent: str, config_file: Path | None) -> Document:
        """Return the text that the runtime sent; if that is empty, read the configuration file. Raises SettingError if
        the file cannot be read."""
        return cls(name=SENT_CONFIG, text=sent, is_sent=True) if sent.strip() else cls.read(config_file)

    @classmethod
    def read(cls, config_file: Path | None) -> Document:
        """Read the configuration file. A file that is named must exist; None stands for DEFAULT_CONFIG_FILE, which may
        be missing. Raises SettingError if the file cannot be read."""
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
        """Read the file of the document again; a text that the runtime sent is returned unchanged. Raises SettingError
        if the file cannot be read. A file that was deleted is an error, too: without its pools, every device would be
        in the default pool."""
        return self if self.is_sent else Document.read(self.file)

    def line_of(self, path: str) -> int:
        """Return the line of a key (``rules[0].namespaces``); 0 if the text does not have the key."""
        return line_of(lines_of(self.text), path)

    def place_of(self, path: str) -> str:
        """Return the name of the document and the line of a key, such as ``config.toml:12``; only the name if the text
        does not have the key."""
        line = self.line_of(path)
        return f"{self.name}:{line}" if line else self.name


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file without blocking, as an opener for `open`. Opening a FIFO would otherwise block until another process
    writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The settings that were read, and the origin of each as a text for people: a flag, a variable, a line of a file,
    or `default`.

    `again` reads all sources once more; it raises SettingError if they cannot be used. `problems` are the errors in
    spite of which the daemon starts (nri_rdma.config.start). `closed` says why pods that ask for devices are refused
    because of these errors; "" if they are not refused.
    """

    settings: Settings
    origins: Mapping[str, str]
    again: Callable[[], Settings]
    problems: tuple[SettingError, ...] = ()
    closed: str = ""


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], config_file: Path | None = None, *, sent: str = ""
) -> Settings:
    """Return the settings from all sources. A flag that is None was not given. `sent` is a configuration text from the
    runtime, which replaces the file; "" if the runtime sent none. Raises SettingError that names the wrong setting."""
    return load(flags, environment, Document.sent_or_read(sent, config_file)).settings


def load_some(
    names: Collection[str], flags: Mapping[str, object], environment: Mapping[str, str], document: Document
) -> Settings:
    """Read only the settings in `names`, from a document that may have errors. All other settings have their defaults;
    so has a named setting whose value in the document is wrong. Raises SettingError for a wrong flag or variable."""
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
                values[item.name] = _parsed(item, table[item.name], document.name, 0)
    return Settings(**values)


def load(flags: Mapping[str, object], environment: Mapping[str, str], document: Document) -> Loaded:
    """Return the settings from all sources, with their origins. Raises SettingError for the first problem."""
    reading = Reading(flags, environment, document)
    for problem in reading.problems():
        raise problem.error
    return reading.loaded()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of a configuration. `name` is the setting that it concerns; "" for a problem of the whole text, of a
    pool or of a rule. `until` says what applies until the problem is mended; "" if that depends on the setting."""

    error: SettingError
    name: str = ""
    until: str = ""


class Reading:
    """One reading of the flags, the environment and a configuration text.

    `problems` does the reading, and continues after each problem. A setting that cannot be read is missing in `values`.
    A pool that cannot be read is in `values`, but pods that ask for it are refused. If `adopt` cannot be read, its mode
    is enforce.
    """

    def __init__(self, flags: Mapping[str, object], environment: Mapping[str, str], document: Document) -> None:
        self.values: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._flags = flags
        self._environment = environment
        self._document = document

    def loaded(self, problems: tuple[SettingError, ...] = (), closed: str = "") -> Loaded:
        """Return the settings that `problems` has read. `problems` are the errors in spite of which the daemon starts,
        and `closed` says why pods that ask for devices are refused; "" if they are not refused."""
        flags, environment, document = self._flags, self._environment, self._document
        return Loaded(
            settings=Settings(**self.values),
            origins=self._origins,
            again=lambda: load(flags, environment, document.again()).settings,
            problems=problems,
            closed=closed,
        )

    def problems(self) -> Iterator[Problem]:
        """Read all sources, and yield each problem that is found. Contradictions between pools and other settings come
        last."""
        table: Mapping[str, Any] = {}
        try:
            table = parse_table(self._document)
        except SettingError as error:
            yield Problem(error=error)
        for key in table:
            yield from self._name(key)
        for item in fields(Settings):
            if not item.metadata.get("table"):
                yield from self._setting(item, table)
            else:
                self._origins[item.name] = self._document.place_of(item.name) if item.name in table else DEFAULT_ORIGIN
        if "adopt" in table:
            yield from self._adoption(table["adopt"])
        if "pools" in table:
            yield from self._pools(table["pools"])
        if "rules" in table:
            yield from self._rules(table["rules"])
        yield from self._together()

    def _name(self, key: str) -> Iterator[Problem]:
        known = tuple(item.name for item in fields(Settings))
        if key not in known:
            near = meant(key, known)
            error = SettingError(
                ErrorCode.SETTING,
                f"unknown setting {bounded(key)}",
                where=self._document.place_of(key),
                hint=f"write {near}" if near else f"known are {', '.join(sorted(known))}",
                line=self._document.line_of(key),
                path=bounded(key),
            )
            yield Problem(error=error, name=near)

    def _setting(self, item: Field[Any], table: Mapping[str, Any]) -> Iterator[Problem]:
        try:
            value, origin = read_setting(item, self._flags, self._environment, self._document, table)
        except SettingError as error:
            yield Problem(error=error, name=item.name)
            return
        self._origins[item.name] = origin
        if origin != DEFAULT_ORIGIN:
            self.values[item.name] = value

    def _adoption(self, written: object) -> Iterator[Problem]:
        from nri_rdma.text.pools import read_adoption  # late, as below: imports YAML

        try:
            self.values["adopt"] = read_adoption(node_of(written))
        except RequestError as error:
            self.values["adopt"] = _STRICT_ADOPTION
            yield self._problem(error, "mode enforce counts")

    def _pools(self, written: object) -> Iterator[Problem]:
        from nri_rdma.text.pools import read_each_pool, read_pools

        if not isinstance(written, dict) or not written:
            try:
                read_pools(node_of(written))
            except RequestError as error:
                yield self._problem(error)
            return
        pools = []
        for name, read in read_each_pool({name: node_of(item) for name, item in written.items()}).items():
            if isinstance(read, Pool):
                pools.append(replace(read, where=self._document.place_of(read.where)))
                continue
            problem = self._problem(read, "pods that ask for this pool are refused")
            # Through the door of claims the kubelet still gives back what pods of it have.
            claimed = isinstance(written[name], dict) and written[name].get("door") == PoolDoor.CLAIMS
            door = PoolDoor.CLAIMS if claimed else PoolDoor.ANNOTATIONS
            where, closed = problem.error.where, reason_of(problem.error)
            pools.append(Pool(name=bounded(name), modes=tuple(Mode), door=door, where=where, closed=closed))
            yield problem
        self.values["pools"] = tuple(pools)
        self._origins["pools"] = pools[0].where

    def _rules(self, written: object) -> Iterator[Problem]:
        from nri_rdma.text.pools import check_rules, read_rule, read_rules

        are_readable = True
        for index, item in enumerate(written if isinstance(written, list) else ()):
            try:
                read_rule(node_of(item), f"rules[{index}]", index + 1)
            except RequestError as error:
                are_readable = False
                yield self._problem(error)
        try:
            rules = read_rules(node_of(written)) if are_readable else ()
            check_rules(self.values.get("pools") or (Pool(name=DEFAULT_POOL, modes=tuple(Mode)),), rules)
        except RequestError as error:
            yield self._problem(error)
            return
        self.values["rules"] = tuple(replace(rule, where=self._document.place_of(rule.where)) for rule in rules)
        self._origins["rules"] = self.values["rules"][0].where if rules else DEFAULT_ORIGIN

    def _together(self) -> Iterator[Problem]:
        """Yield the contradictions between pools and other settings. A pool must not use the guard resource: the
        containers of the pool would get only the guard, an OCI hook that keeps a container from starting without its
        devices."""
        pools, resource = self.values.get("pools", ()), self.values.get("guard_resource")
        pool = next((it for it in pools if it.resource and it.resource == resource), None)
        if pool is not None:
            what = f"{pool.resource} is also the resource of {pool.where}"
            yield self._misplaced("guard_resource", what, "choose another name")
        if pools and self.values.get("allow_default_pool"):
            what = "allow_default_pool is for a configuration without pools"
            hint = f'take it away, or write modes = ["exclusive", "shared"] in a pool {DEFAULT_POOL}'
            yield self._misplaced("allow_default_pool", what, hint)

    def _misplaced(self, name: str, what: str, hint: str) -> Problem:
        where, line = self._origins[name], self._document.line_of(name)
        error = SettingError(ErrorCode.SETTING, what, where=where, line=line, path=name, hint=hint)
        return Problem(error=error, name=name)

    def _problem(self, error: RequestError, until: str = "") -> Problem:
        """Return the Problem for an error in a pool, a rule or `adopt`, with its line in the document. `until` says
        what applies until the error is mended; "" if pods that ask for devices are then refused."""
        path = f"{error.where}.{error.key}" if error.key else error.where
        where = f"{self._document.place_of(path)} {error.where}"
        line = self._document.line_of(path)
        # In TOML all that stands below a table belongs to it.
        is_setting = error.key in {item.name for item in fields(Settings)}
        hint = f"{error.key} is a setting: write it above the first [table]; {error.hint}" if is_setting else error.hint
        told = SettingError(ErrorCode.SETTING, error.what, where=where, hint=hint, line=line, path=error.where)
        told.__cause__ = error
        return Problem(error=told, until=until)


def reason_of(error: SettingError) -> str:
    """Return the cause and the place of an error, as one text. Pods that are refused because of the error get this text
    as the reason."""
    return f"{error.what}, {error.where}" if error.where else error.what


def read_setting(
    item: Field[Any],
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    document: Document,
    table: Mapping[str, Any],
) -> tuple[Any, str]:
    """Return a setting's value and its origin. They are None and DEFAULT_ORIGIN if no source has a value. `table` has
    the keys of the document. Raises SettingError for a value that cannot be used."""
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
    return _parsed(item, value, origin, line), origin


def misnamed_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each environment variable that looks like a misspelt setting (NRI_RDMA_...), with the variable or the flag
    that was probably meant. Variables that Kubernetes makes for a Service whose name begins with nri-rdma are
    skipped."""
    known = {f"{ENVIRONMENT_PREFIX}{it.name.upper()}" for it in fields(Settings) if not it.metadata.get("table")}
    for name in environment:
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not _OF_SERVICE.fullmatch(name):
            if name == f"{ENVIRONMENT_PREFIX}CONFIG":
                yield name, "the flag --config"  # the file has no variable; nearest is KUBECONFIG
                continue
            near = meant(name.removeprefix(ENVIRONMENT_PREFIX), (it.removeprefix(ENVIRONMENT_PREFIX) for it in known))
            if near:
                yield name, f"{ENVIRONMENT_PREFIX}{near}"


_OF_SERVICE = re.compile(r"[A-Z0-9_]+?_(SERVICE_(HOST|PORT)|PORT)(_.*)?")


def _parsed(item: Field[Any], value: object, origin: str, line: int) -> object:
    try:
        return item.metadata["form"].read(node_of(value, _Given), item.name)
    except RequestError as error:
        what = f"{item.name} = {bounded(repr(value))} cannot be used"
        hint = f"{item.name.replace('_', '-')} is {error.hint.removeprefix('write ')}"
        raise SettingError(ErrorCode.SETTING, what, where=origin, hint=hint, line=line, path=item.name) from error


def parse_table(document: Document) -> Mapping[str, Any]:
    """Parse a configuration text as TOML, and return its values by key. The values are not checked yet. Raises
    SettingError if the text is not TOML, or if its tables are nested too deep."""
    for at, line in enumerate(document.text.split("\n"), start=1):
        if line.count(".") > MAX_DOTS:
            raise _bad_document(document.name, f"there are more than {MAX_DOTS} dots in line {at}", at)
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
    """Return the line that an error text of tomllib names; 0 if it names none."""
    if "(at end of document)" in told:
        return text.count("\n") + 1
    found = re.search(r"\(at line (\d+), ", told)
    return int(found[1]) if found else 0


def _bad_document(name: str, why: str, line: int = 0) -> SettingError:
    what = f"the configuration cannot be used: {why}"
    return SettingError(ErrorCode.SETTING, what, where=name, hint="mend the file", line=line)
