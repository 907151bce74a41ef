"""The settings: one field each, from which flag, environment variable, TOML key and documentation derive.

A value comes from the flag, else ``NRI_RDMA_NAME``, else the configuration file, else the default. A runtime that
starts the daemon itself may send a text in the place of that file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any  # Any: values before they are parsed

from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.model.request import UNLIMITED

DEFAULT_CONFIG_FILE = Path("/etc/nri-rdma/config.toml")
SENT_CONFIG = "the configuration that the runtime sent"
ENVIRONMENT_PREFIX = "NRI_RDMA_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memlock:
    """The RLIMIT_MEMLOCK of containers that get devices: bytes, or None to leave it alone.

    `automatic` raises it to unlimited where the runtime may, and leaves it alone elsewhere.
    """

    bytes: int | None = None
    automatic: bool = False


def _setting(default: object, text: str, parse: Callable[[str, Any], object], metavar: str = "TEXT") -> Any:
    return field(default=default, metadata={"help": text, "parse": parse, "metavar": metavar})


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _refused(name, value, "a text")
    return value


def _path(name: str, value: Any) -> Path:
    return Path(_text(name, value))


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
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
    if text.isdigit() and 0 < int(text) < UNLIMITED:
        return Memlock(bytes=int(text))
    raise _refused(name, value, "auto, unlimited, keep or a number of bytes")


def _choice(*words: str) -> Callable[[str, Any], str]:
    def parse(name: str, value: Any) -> str:
        if value not in words:
            raise _refused(name, value, " or ".join(words))
        return str(value)

    return parse


def _refused(name: str, value: Any, allowed: str) -> SettingError:
    return SettingError(
        ErrorCode.SETTING, f"{name} = {value!r} cannot be used", hint=f"{name.replace('_', '-')} is {allowed}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the daemon."""

    nri_socket: Path = _setting(Path("/var/run/nri/nri.sock"), "Socket of the runtime's NRI.", _path, "PATH")
    plugin_name: str | None = _setting(
        None,
        "Name under which the runtime knows this plugin; default: of a program NN-NAME, or nri-rdma.",
        _plugin_name,
    )
    plugin_index: str | None = _setting(
        None,
        "Order among the runtime's plugins: late ones see what others inject; default: of a program NN-NAME, or 90.",
        _index,
        "NN",
    )
    annotation_prefix: str = _setting("rdma.noderesource.dev", "Prefix of the annotations that are ours.", _text)
    allow_default_pool: bool = _setting(
        False, "Let the pool `default` serve exclusive requests too, not only shared ones.", _flag
    )
    memlock: Memlock = _setting(
        Memlock(automatic=True), "RLIMIT_MEMLOCK of containers with devices.", _memlock, "auto|unlimited|keep|BYTES"
    )
    sysfs_root: Path = _setting(
        Path("/sys"), "Where the hardware is read: the machine's sysfs or a tree like it.", _path, "DIR"
    )
    dev_root: Path = _setting(Path("/dev"), "Where the modes of device nodes are read.", _path, "DIR")
    cgroup_root: Path = _setting(
        Path("/sys/fs/cgroup"), "Where the host's cgroups are read, and limits written.", _path, "DIR"
    )
    state_dir: Path = _setting(
        Path("/run/nri-rdma"), "Journal and lock; on a tmpfs, it dies with the boot.", _path, "DIR"
    )
    control_socket: Path | None = _setting(
        None, "Socket of `status` and `trace`; default: control.sock in the state directory.", _path, "PATH"
    )
    tracing: bool = _setting(True, "Record a span of every event and step of pods that ask.", _flag, "true|false")
    log_level: str = _setting(
        "info", "Least level that is logged.", _choice("debug", "info", "warning", "error"), "LEVEL"
    )
    log_format: str = _setting("text", "Log lines for people or for machines.", _choice("text", "json"), "text|json")
    log_file: Path | None = _setting(
        None,
        "File of the log; default: stderr, or syslog when the runtime starts the daemon (what syslog does not take goes"
        " to nri-rdma.log in the state directory).",
        _path,
        "PATH",
    )

    @property
    def control_path(self) -> Path:
        """The control socket."""
        return self.control_socket or self.state_dir / "control.sock"

    @property
    def fallback_log(self) -> Path:
        """Where log lines go that syslog does not take."""
        return self.state_dir / "nri-rdma.log"


def load_settings(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    config_file: Path | None = None,
    *,
    sent: str = "",
) -> Settings:
    """Settings from all sources. A flag that is None was not given; `sent` is what the runtime sent in the place of the
    file, "" when it sent nothing. Raises SettingError that names the setting."""
    from_file = _parse(sent, SENT_CONFIG) if sent.strip() else _read_file(config_file)
    values: dict[str, Any] = {}
    for item in fields(Settings):
        for value in (
            flags.get(item.name),
            environment.get(ENVIRONMENT_PREFIX + item.name.upper()),
            from_file.get(item.name),
        ):
            if value is not None:
                values[item.name] = item.metadata["parse"](item.name, value)
                break
    return Settings(**values)


def _read_file(config_file: Path | None) -> Mapping[str, object]:
    path = config_file or DEFAULT_CONFIG_FILE
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        if config_file is None:
            return {}
        raise _bad_config(str(path), "it does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_config(str(path), str(error)) from error
    return _parse(text, str(path))


def _parse(text: str, where: str) -> Mapping[str, object]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _bad_config(where, str(error)) from error
    known = {item.name for item in fields(Settings)}
    unknown = sorted(set(table) - known)
    if unknown:
        raise _bad_config(where, f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return table


def _bad_config(where: str, why: str) -> SettingError:
    return SettingError(
        ErrorCode.SETTING, f"the configuration cannot be used: {why}", where=where, hint="mend the file"
    )
