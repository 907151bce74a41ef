"""Checks of the guard: who refuses a pod that asks while no daemon lives, and what its set-up does to other containers.

The runtime's configuration says for which handlers it is set up; the daemon that runs, whether it has really asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol  # Any: configurations of others, and the daemon's document

from nri_rdma.commands.doctor.configuration import crio_files, crio_hook_folders, read_toml, table_at, texts
from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.install.hook import fault_of, foreign_at, is_program
from nri_rdma.config.settings import Settings
from nri_rdma.errors import NotReadyError
from nri_rdma.model.pool import PoolDoor
from nri_rdma.text.kubelet_checkpoint import FILE as CHECKPOINT_FILE
from nri_rdma.text.shares import GUARD_HOOK, GUARD_MODULE

if TYPE_CHECKING:
    from nri_rdma.commands.doctor.machine import Machine

PLUGIN = "nri-rdma"
"""Our name at the runtime, where the settings do not say another."""
_STAGE = "createRuntime"
_CRI_TABLES = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_NRI_TABLE = "io.containerd.nri.v1.nri"
_FIX = "set the hook up as docs/guard.md says, and restart the runtime"
_FIX_BLOCKED = (
    "put both files of the hook back where the runtime looks for it, or take base_runtime_spec (CRI-O: the hook's"
    " definition) out and restart the runtime"
)
_FLAGS = ("--annotation-prefix", "--control-socket", "--kubelet-checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The guard of a handler's containers: `fault` is the reason why they have none, "" when they have one. `blocks`:
    no container of the handler starts at all, whether it asks for anything or not."""

    handler: str
    fault: str
    blocks: bool = False


class ConfiguredHost(Protocol):
    """The place of the runtime's configuration, and the settings that the hook must have."""

    @property
    def settings(self) -> Settings: ...

    @property
    def etc(self) -> Path: ...

    @property
    def share(self) -> Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisHost:
    """The host that this process runs on."""

    settings: Settings
    etc: Path = Path("/etc")
    share: Path = Path("/usr/share")


@dataclass(frozen=True, slots=True, kw_only=True)
class _BaseSpec:
    """A base_runtime_spec with the guard's hook, the names of the handlers that use it, and the limits that it sets."""

    path: Path
    handlers: tuple[str, ...]
    rlimits: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """The reason why a hook guards nothing, "" when it does; `blocks` as in Setup."""

    text: str = ""
    blocks: bool = False


class _WrongError(Exception):
    """A file of the runtime that cannot be used."""


def guard(machine: Machine) -> Finding:
    """Find out who refuses a pod while no daemon lives."""
    asked, unasked = _contact(machine)
    setups = setups_of(machine)
    guarded = [it.handler for it in setups if not it.fault]
    faults = [f"{it.handler}: {it.fault}" for it in setups if it.fault]
    blocked = [f"{it.handler}: {it.fault}" for it in setups if it.blocks]
    if blocked:
        return problem("guard", f"no container starts: {'; '.join(blocked)}", _FIX_BLOCKED)
    ways = [f"createRuntime hook for {', '.join(guarded)}"] if guarded else []
    ways += [*_resource(machine), *([asked] if asked else [])]
    validators = [
        f"{it}, which helps while the daemon is absent, not when it answers late" for it in _validators(machine)
    ]
    if not ways and not setups:
        return warning("guard", _unknown(machine), f"run `nri-rdma doctor` on the host; if there is none, {_FIX}")
    if not ways:
        words = f" ({'; '.join((*faults, *validators))})" if faults or validators else ""
        return warning("guard", f"none: while no daemon runs, pods start without the devices they ask for{words}", _FIX)
    ways += validators
    gaps = [*faults, *([unasked] if unasked else [])]
    if gaps:
        return warning("guard", f"{'; '.join(ways)}. Not guarded: {'; '.join(gaps)}", _FIX)
    return ok("guard", "; ".join(ways))


def setups_of(host: ConfiguredHost) -> tuple[Setup, ...]:
    """Return how each runtime handler that is configured here is guarded; nothing where no configuration is."""
    return (*_containerd(host), *_crio(host))


def limits(machine: Machine) -> Finding:
    """Report base specs with the guard's hook that set limits: every container of their handlers has them."""
    specs = _guarded_specs(machine)
    if not specs:
        return not_applicable("limits", "no base_runtime_spec has the guard's hook")
    limited = [spec for spec in specs if spec.rlimits]
    if not limited:
        return ok(
            "limits", f"{' and '.join(str(spec.path) for spec in specs)}: no limits, containers have containerd's"
        )
    found = [
        f"{spec.path} gives every container of containerd's {' and '.join(spec.handlers)} "
        f"{', '.join(map(_limit, spec.rlimits))}"
        for spec in limited
    ]
    files = " and ".join(str(spec.path) for spec in limited)
    return warning("limits", "; ".join(found), f"remove process.rlimits from {files}, and restart containerd")


def _limit(entry: Any) -> str:
    """RLIMIT_NOFILE 1024 (hard 4096)."""
    limit = table_at(entry)
    return f"{limit.get('type')} {limit.get('soft')} (hard {limit.get('hard')})"


def _contact(machine: Machine) -> tuple[str, str]:
    """Return what the daemon knows of the hook: that it asks, and where it did not."""
    status = machine.daemon
    if isinstance(status, NotReadyError):
        return "", ""
    told = status["guard"]
    asked = f"the daemon was asked about {told['asked']} containers" if told.get("asked") else ""
    return asked, "; ".join(told.get("unguarded", ()))


def _resource(machine: Machine) -> Iterator[str]:
    """Yield that the kubelet gives the guard to containers that ask for a resource."""
    status = machine.daemon
    given = "" if isinstance(status, NotReadyError) else given_resource(status.get("guard_resource"))
    if given:
        yield f"createRuntime hook of containers with the resource {given}, which an admission policy can give"


def given_resource(resource: Mapping[str, Any] | None) -> str:
    """Return the guard resource of a status document, if the kubelet knows it and the guard comes with it, else ""."""
    if not resource or resource["registration"]["error"] or not resource["guarded"]:
        return ""
    return str(resource["resource"])


def _unknown(machine: Machine) -> str:
    """Say what is missing to know whether there is a guard."""
    status = machine.daemon
    asked = "no daemon answers that could have been asked"
    if not isinstance(status, NotReadyError):
        earlier = ", only an earlier one" if status["guard"].get("last") else ""
        asked = f"no hook has asked this daemon{earlier}"
    return (
        f"not known: no configuration of containerd or CRI-O is in {machine.etc}, and {asked}; without a guard, pods"
        " start without the devices they ask for while no daemon runs"
    )


# containerd: an OCI configuration for each handler


def _containerd(host: ConfiguredHost) -> Iterator[Setup]:
    if not _containerd_file(host).exists():
        return
    handlers = _handlers(host)
    for name, handler in handlers.items() or {"runc": {}}.items():
        fault = _fault_of_handler(host, handler)
        yield Setup(handler=f"containerd's {name}", fault=fault.text, blocks=fault.blocks)


def _containerd_file(host: ConfiguredHost) -> Path:
    return host.etc / "containerd/config.toml"


def _handlers(host: ConfiguredHost) -> Mapping[str, Mapping[str, Any]]:
    """The runtime handlers of containerd's configuration and of the files that it imports, which come after it."""
    path = _containerd_file(host)
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


def _guarded_specs(host: ConfiguredHost) -> tuple[_BaseSpec, ...]:
    """Return each base_runtime_spec with our hook once; limits in others are their owner's choice."""
    handlers: dict[Path, list[str]] = {}
    for name, handler in _handlers(host).items():
        if (base := _base_of(handler)) is not None:
            handlers.setdefault(base, []).append(name)
    specs = []
    for path, names in handlers.items():
        with suppress(_WrongError):  # the check of the guard reports it
            document = _json(path)
            if _hook_in(document) is not None:
                rlimits = table_at(document, "process").get("rlimits")
                limits = tuple(rlimits) if isinstance(rlimits, list) else ()
                specs.append(_BaseSpec(path=path, handlers=tuple(names), rlimits=limits))
    return tuple(specs)


def _fault_of_handler(host: ConfiguredHost, handler: Mapping[str, Any]) -> _Fault:
    base = _base_of(handler)
    if base is None:
        return _Fault(text="no base_runtime_spec")
    try:
        hook = _hook_in(_json(base))
    except _WrongError as error:
        return _Fault(text=str(error))
    if hook is None:
        return _Fault(text=f"{base} has no {GUARD_HOOK} among its {_STAGE} hooks")
    if fault := _fault_of_program(Path(hook["path"])):
        return _Fault(text=fault, blocks=True)
    patterns = texts(handler.get("pod_annotations"))
    unseen = [key for key in _keys(host) if not any(_lets_through(it, key) for it in patterns)]
    if unseen:
        prefix = host.settings.annotation_prefix
        return _Fault(text=f'pod_annotations hides {unseen[0]} from the hook: it needs ["{prefix}", "{prefix}/*"]')
    return _Fault(text=_fault_of_hook(host, hook))


def _base_of(handler: Mapping[str, Any]) -> Path | None:
    base = handler.get("base_runtime_spec")
    return Path(base) if isinstance(base, str) and base else None


def _hook_in(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the guard's hook in an OCI configuration."""
    hooks = table_at(document, "hooks").get(_STAGE)
    return _ours(hooks if isinstance(hooks, list) else [])


def _keys(host: ConfiguredHost) -> tuple[str, ...]:
    prefix = host.settings.annotation_prefix
    return prefix, f"{prefix}/pod", f"{prefix}/container.a"


def _lets_through(pattern: str, key: str) -> bool:
    """As Go's path.Match, which containerd uses: `*` stands for no slash."""
    parts, names = pattern.split("/"), key.split("/")
    return len(parts) == len(names) and all(map(fnmatchcase, names, parts))


# CRI-O: definitions in folders, for all handlers


def _crio(host: ConfiguredHost) -> Iterator[Setup]:
    if not (host.etc / "crio").exists():
        return
    definitions = [path for folder in crio_hook_folders(host.etc, host.share) for path in sorted(folder.glob("*.json"))]
    faults = [fault for path in definitions if (fault := _fault_of_definition(host, path)) is not None]
    blocking = [fault.text for fault in faults if fault.blocks]
    if blocking:
        yield Setup(handler="CRI-O", fault="; ".join(blocking), blocks=True)
    elif _Fault() in faults:
        yield Setup(handler="CRI-O", fault="")
    else:
        folders = ", ".join(map(str, crio_hook_folders(host.etc, host.share)))
        yield Setup(handler="CRI-O", fault="; ".join(it.text for it in faults) or f"no {GUARD_HOOK} in {folders}")


def _fault_of_definition(host: ConfiguredHost, path: Path) -> _Fault | None:
    """None: it is about another hook."""
    try:
        document = _json(path)
    except _WrongError:
        return None  # CRI-O says that itself, and does not start
    hook = table_at(document, "hook")
    if _ours([hook]) is None:
        return None
    if _STAGE not in texts(document.get("stages")):
        return _Fault(text=f"{path} has not the stage {_STAGE}")
    if table_at(document, "when").get("always") is not True:
        return _Fault(text=f"{path} is not for every container (when: always)")
    if fault := _fault_of_program(Path(hook["path"])):
        return _Fault(text=f"{path}: {fault}", blocks=True)
    return _Fault(text=_fault_of_hook(host, hook))


# Both


def _ours(hooks: Iterable[Any]) -> Mapping[str, Any] | None:
    """The guard's hook among these."""
    for hook in hooks:
        if (
            isinstance(hook, dict)
            and Path(str(hook.get("path"))).name == GUARD_HOOK
            and "verify" in texts(hook.get("args"))
        ):
            return hook
    return None


def _fault_of_program(program: Path) -> str:
    """Return what keeps the hook from being run; "" if it, its interpreter and its module are there."""
    if not (is_program(program) and is_program(_interpreter_of(program))):
        return f"{program} cannot be run"
    return fault_of(program.resolve(), GUARD_MODULE)


def _interpreter_of(path: Path) -> Path:
    """Return the program that the first line of a script names; the file itself if it is no script, or unreadable."""
    try:
        with path.open("rb") as file:
            line = file.readline(256).decode(errors="replace")
    except OSError:
        return path
    words = line[2:].split() if line.startswith("#!") else []
    return Path(words[0]) if words else path


def _fault_of_hook(host: ConfiguredHost, hook: Mapping[str, Any]) -> str:
    if foreign := foreign_at(Path(hook["path"])):
        return foreign
    wanted, standard = _values(host.settings), _values(Settings())
    serves_claims = any(pool.door is PoolDoor.CLAIMS for pool in host.settings.pools)
    for flag, ours, default in zip(_FLAGS if serves_claims else _FLAGS[:2], wanted, standard, strict=False):
        given = _flag(texts(hook.get("args")), flag) or default
        if given != ours:
            return f"the hook's {flag} is {given}, and the daemon's is {ours}"
    return ""


def _values(settings: Settings) -> tuple[str, ...]:
    """Return what the hook's flags have to say."""
    return (
        settings.annotation_prefix,
        str(settings.control_path),
        str(settings.kubelet_plugins_dir.parent / CHECKPOINT_FILE),
    )


def _flag(arguments: Sequence[str], flag: str) -> str:
    for number, argument in enumerate(arguments):
        if argument == flag:
            return next(iter(arguments[number + 1 :]), "")
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return ""


def _validators(host: ConfiguredHost) -> Iterator[str]:
    """Runtimes with NRI 0.10 can be told that no container is made that a plugin has not seen."""
    containerd = table_at(read_toml(host.etc / "containerd/config.toml"), "plugins", _NRI_TABLE, "default_validator")
    name = host.settings.plugin_name or PLUGIN
    if containerd.get("enable") is True and name in texts(containerd.get("required_plugins")):
        yield f"containerd's validator requires {name} of every container"
    for path in crio_files(host.etc):
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
