"""Check of the guard: who refuses a pod that asks while no daemon lives.

The runtime's configuration says for which handlers it is set up; the daemon that runs, whether it has really asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path
from typing import Any  # Any: configurations of others, and the daemon's document

from nri_rdma.commands.doctor.configuration import crio_files, read_toml, table_at, texts
from nri_rdma.commands.doctor.finding import Finding, ok, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.config.settings import Settings
from nri_rdma.errors import NotReadyError

HOOK = "nri-rdma-hook"
PLUGIN = "nri-rdma"
"""Our name at the runtime, where the settings do not say another."""
_STAGE = "createRuntime"
_CRI_TABLES = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_NRI_TABLE = "io.containerd.nri.v1.nri"
_FIX = "set the hook up as docs/guard.md says, and restart the runtime"
_FLAGS = ("--annotation-prefix", "--control-socket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a handler's containers are guarded: `fault` is why they are not, "" when they are."""

    handler: str
    fault: str


class _WrongError(Exception):
    """A file of the runtime that cannot be used."""


def guard(machine: Machine) -> Finding:
    """Who refuses a pod while no daemon lives."""
    asked, unasked = _contact(machine)
    setups = (*_containerd(machine), *_crio(machine))
    guarded = [it.handler for it in setups if not it.fault]
    faults = [f"{it.handler}: {it.fault}" for it in setups if it.fault]
    ways = [f"createRuntime hook for {', '.join(guarded)}"] if guarded else []
    ways += [asked] if asked else []
    ways += list(_validators(machine))
    if not ways:
        words = f" ({'; '.join(faults)})" if faults else ""
        return warning("guard", f"none: while no daemon runs, pods start without the devices they ask for{words}", _FIX)
    gaps = [*faults, *([unasked] if unasked else [])]
    if gaps:
        return warning("guard", f"{'; '.join(ways)}. Not guarded: {'; '.join(gaps)}", _FIX)
    return ok("guard", "; ".join(ways))


def _contact(machine: Machine) -> tuple[str, str]:
    """What the daemon knows of the hook: that it asks, and where it did not."""
    status = machine.daemon
    if isinstance(status, NotReadyError) or status["guard"]["active"] == "none":
        return "", ""
    told = status["guard"]
    return f"the daemon was asked about {told['asked']} containers", "; ".join(told.get("unguarded", ()))


# containerd: an OCI configuration for each handler


def _containerd(machine: Machine) -> Iterator[Setup]:
    path = machine.etc / "containerd/config.toml"
    if not path.exists():
        return
    handlers = _handlers(path)
    for name, handler in handlers.items() or {"runc": {}}.items():
        yield Setup(handler=f"containerd's {name}", fault=_fault_of_handler(machine, handler))


def _handlers(path: Path) -> Mapping[str, Mapping[str, Any]]:
    """The runtime handlers of a configuration and of the files that it imports, which come after it."""
    main = read_toml(path)
    imports = [
        path.parent / name
        for pattern in texts(main.get("imports"))
        for name in sorted(glob(pattern, root_dir=path.parent))  # noqa: PTH207 - Path.glob takes no absolute pattern
    ]
    found: dict[str, dict[str, Any]] = {}
    for document in (main, *map(read_toml, imports)):
        for table in _CRI_TABLES:
            for name in table_at(document, "plugins", table, "containerd", "runtimes"):
                handler = table_at(document, "plugins", table, "containerd", "runtimes", name)
                found[name] = {**found.get(name, {}), **handler}
    return found


def _fault_of_handler(machine: Machine, handler: Mapping[str, Any]) -> str:
    base = handler.get("base_runtime_spec")
    if not isinstance(base, str) or not base:
        return "no base_runtime_spec"
    try:
        hooks = table_at(_json(Path(base)), "hooks").get(_STAGE)
    except _WrongError as error:
        return str(error)
    hook = _ours(hooks if isinstance(hooks, list) else [])
    if hook is None:
        return f"{base} has no {HOOK} among its {_STAGE} hooks"
    patterns = texts(handler.get("pod_annotations"))
    unseen = [key for key in _keys(machine) if not any(_lets_through(it, key) for it in patterns)]
    if unseen:
        prefix = machine.settings.annotation_prefix
        return f'pod_annotations hides {unseen[0]} from the hook: it needs ["{prefix}", "{prefix}/*"]'
    return _fault_of_hook(machine, hook)


def _keys(machine: Machine) -> tuple[str, ...]:
    prefix = machine.settings.annotation_prefix
    return prefix, f"{prefix}/pod", f"{prefix}/container.a"


def _lets_through(pattern: str, key: str) -> bool:
    """As Go's path.Match, which containerd uses: `*` stands for no slash."""
    parts, names = pattern.split("/"), key.split("/")
    return len(parts) == len(names) and all(map(fnmatchcase, names, parts))


# CRI-O: definitions in folders, for all handlers


def _crio(machine: Machine) -> Iterator[Setup]:
    if not (machine.etc / "crio").exists():
        return
    definitions = [path for folder in _hook_folders(machine) for path in sorted(folder.glob("*.json"))]
    faults = [fault for path in definitions if (fault := _fault_of_definition(machine, path)) is not None]
    if "" in faults:
        yield Setup(handler="CRI-O", fault="")
    else:
        folders = ", ".join(map(str, _hook_folders(machine)))
        yield Setup(handler="CRI-O", fault="; ".join(faults) or f"no {HOOK} in {folders}")


def _hook_folders(machine: Machine) -> tuple[Path, ...]:
    """CRI-O's hooks_dir; the last file that sets it counts."""
    folders: Sequence[str] = (str(machine.share / "containers/oci/hooks.d"),)
    for path in crio_files(machine.etc):
        folders = texts(table_at(read_toml(path), "crio", "runtime").get("hooks_dir")) or folders
    return tuple(Path(folder) for folder in folders)


def _fault_of_definition(machine: Machine, path: Path) -> str | None:
    """None: it is about another hook."""
    try:
        document = _json(path)
    except _WrongError:
        return None  # CRI-O says that itself, and does not start
    hook = table_at(document, "hook")
    if _ours([hook]) is None:
        return None
    if _STAGE not in texts(document.get("stages")):
        return f"{path} has not the stage {_STAGE}"
    if table_at(document, "when").get("always") is not True:
        return f"{path} is not for every container (when: always)"
    return _fault_of_hook(machine, hook)


# Both


def _ours(hooks: Iterable[Any]) -> Mapping[str, Any] | None:
    """The guard's hook among these."""
    for hook in hooks:
        if isinstance(hook, dict) and Path(str(hook.get("path"))).name == HOOK and "verify" in texts(hook.get("args")):
            return hook
    return None


def _fault_of_hook(machine: Machine, hook: Mapping[str, Any]) -> str:
    if not os.access(hook["path"], os.X_OK):
        return f"{hook['path']} cannot be run: no container starts"
    wanted = (machine.settings.annotation_prefix, str(machine.settings.control_path))
    standard = (Settings().annotation_prefix, str(Settings().control_path))
    for flag, ours, default in zip(_FLAGS, wanted, standard, strict=True):
        given = _flag(texts(hook.get("args")), flag) or default
        if given != ours:
            return f"the hook's {flag} is {given}, and the daemon's is {ours}"
    return ""


def _flag(arguments: Sequence[str], flag: str) -> str:
    for number, argument in enumerate(arguments):
        if argument == flag:
            return next(iter(arguments[number + 1 :]), "")
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return ""


def _validators(machine: Machine) -> Iterator[str]:
    """Runtimes with NRI 0.10 can be told that no container is made that a plugin has not seen."""
    containerd = table_at(read_toml(machine.etc / "containerd/config.toml"), "plugins", _NRI_TABLE, "default_validator")
    name = machine.settings.plugin_name or PLUGIN
    if containerd.get("enable") is True and name in texts(containerd.get("required_plugins")):
        yield f"containerd's validator requires {name} of every container"
    for path in crio_files(machine.etc):
        crio = table_at(read_toml(path), "crio", "nri", "default_validator")
        required = texts(crio.get("nri_validator_required_plugins"))
        if crio.get("nri_enable_default_validator") is True and name in required:
            yield f"CRI-O's validator requires {name} of every container"


def _json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise _WrongError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _WrongError(f"{path} is no JSON") from error
    return table_at(document)
