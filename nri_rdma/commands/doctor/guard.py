"""Checks of the guard: an OCI hook that keeps a container from starting without its devices, also while no daemon runs.

Doctor asks the running runtime which of its runtime handlers have the guard. If the runtime does not answer, doctor
reads the runtime's configuration. The running daemon reports whether the hook has asked it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol  # Any: configurations of others, and the daemon's document

from nri_rdma.commands.common.runtime_configs import crio_files, crio_hook_folders, read_toml, table_at, texts
from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.config.settings import Settings
from nri_rdma.errors import NotReadyError
from nri_rdma.host.containerd.containerd_api import ContainerdError
from nri_rdma.host.containerd.handlers import RuntimeHandler
from nri_rdma.host.guard_setups import Setup, WrongError, containerd_setup, crio_setup, guard_hook_in, running_setups

if TYPE_CHECKING:
    from nri_rdma.commands.doctor.machine import Machine

PLUGIN = "nri-rdma"
"""The name under which nri-rdma registers with the runtime, unless the settings give another."""
_CRI_TABLES = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")
_NRI_TABLE = "io.containerd.nri.v1.nri"
_FIX = "run `nri-rdma install containerd`, or crio, and restart the runtime (docs/guard.md)"
_FIX_BLOCKED = (
    "put both files of the hook back where the runtime looks for it, or take base_runtime_spec (CRI-O: the hook's"
    " definition) out and restart the runtime"
)


class ConfiguredHost(Protocol):
    """The host to check: the folders with the configuration of its runtime, and the daemon's settings, which the hook
    must share."""

    @property
    def settings(self) -> Settings: ...

    @property
    def etc(self) -> Path: ...

    @property
    def share(self) -> Path: ...

    @property
    def run(self) -> Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisHost:
    """The host on which this process runs, with the usual folders."""

    settings: Settings
    etc: Path = Path("/etc")
    share: Path = Path("/usr/share")
    run: Path = Path("/run")


@dataclass(frozen=True, slots=True, kw_only=True)
class _BaseSpec:
    """An OCI configuration for containerd (`base_runtime_spec`) with the guard, an OCI hook that keeps a container from
    starting without its devices.

    `handlers` are the names of the runtime handlers that use the configuration. `rlimits` are the limits that it sets.
    """

    path: Path
    handlers: tuple[str, ...]
    rlimits: tuple[Any, ...]


def guard(machine: Machine) -> Finding:
    """Report what refuses pods that ask for devices while no daemon runs, and which runtime handlers lack the guard, an
    OCI hook that keeps a container from starting without its devices."""
    if machine.engines:
        refused = f"no container of {' or '.join(machine.engines)} that asks starts while no daemon runs"
        return ok("guard", f"not needed: {refused}")
    asked, unasked = _contact(machine)
    setups = setups_of(machine)
    guarded = [it.handler for it in setups if not it.fault]
    faults = [f"{it.handler}: {it.fault}" for it in setups if it.fault and it.is_known]
    unknown = [f"{it.handler}: {it.fault}" for it in setups if not it.is_known]
    blocked = [f"{it.handler}: {it.fault}" for it in setups if it.blocks]
    if blocked:
        return problem("guard", f"no container starts: {'; '.join(blocked)}", _FIX_BLOCKED)
    resource = [*_resource(machine)]
    ways = [*([f"createRuntime hook for {', '.join(guarded)}"] if guarded else []), *resource]
    ways += [asked] if asked else []
    validators = [
        f"{it}, which helps while the daemon is absent, not when it answers late" for it in _validators(machine)
    ]
    if not ways and not faults:
        words = "; ".join((_unknown(machine), *unknown))
        return warning("guard", words, f"run `nri-rdma doctor` on the host; if there is none, {_FIX}")
    if not ways:
        words = f" ({'; '.join((*faults, *validators))})"
        return warning("guard", f"none: while no daemon runs, pods start without the devices they ask for{words}", _FIX)
    ways += validators
    if not setups and not resource:
        unknown = ["which runtime handlers have it: no runtime answers, and no configuration of one is here"]
    gaps = [*faults, *([unasked] if unasked else [])]
    words = f". Not guarded: {'; '.join(gaps)}" if gaps else ""
    words += f". Not known: {'; '.join(unknown)}" if unknown else ""
    if words:
        return warning("guard", f"{'; '.join(ways)}{words}", _FIX)
    return ok("guard", "; ".join(ways))


def setups_of(host: ConfiguredHost) -> tuple[Setup, ...]:
    """Return, for each runtime handler of this host, whether its containers get the guard: an OCI hook that keeps a
    container from starting without its devices.

    The running runtime reports it. If no runtime answers, its configuration is read. Empty if there is neither.
    """
    configured = (*_containerd(host), *_crio(host))
    sockets = (host.settings.containerd_socket, host.run / "crio/crio.sock")
    try:
        running = running_setups(sockets, host.settings)
    except ContainerdError:  # use its configuration instead; another check reports that it does not answer
        running = None
    return configured if running is None else tuple(_to_come(it, configured) for it in running)


def _to_come(running: Setup, configured: tuple[Setup, ...]) -> Setup:
    """Return the handler's setup of the guard, an OCI hook that keeps a container from starting without its devices.

    If the running runtime lacks the guard for this handler, but its configuration file has it, the text in `fault` adds
    that a restart of the runtime suffices.
    """
    if running.fault and any(it.handler == running.handler and not it.fault for it in configured):
        return replace(running, fault=f"{running.fault}; its configuration now has one: restart the runtime")
    return running


def limits(machine: Machine) -> Finding:
    """Report each OCI configuration of containerd (`base_runtime_spec`) that has the guard, an OCI hook that keeps a
    container from starting without its devices, and also sets rlimits.

    The report is needed because containerd gives such rlimits to every container of the runtime handlers that use the
    configuration.
    """
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
    """Return an rlimit of an OCI spec as words, such as "RLIMIT_NOFILE 1024 (hard 4096)"."""
    limit = table_at(entry)
    return f"{limit.get('type')} {limit.get('soft')} (hard {limit.get('hard')})"


def _contact(machine: Machine) -> tuple[str, str]:
    """Return two texts from the running daemon's status: how many containers the guard has asked about, and which
    containers started without asking. The guard is an OCI hook that keeps a container from starting without its
    devices.

    A text is "" if there is nothing to say or no daemon answers.
    """
    status = machine.daemon
    if isinstance(status, NotReadyError):
        return "", ""
    told = status["guard"]
    asked = f"the daemon was asked about {told['asked']} containers" if told.get("asked") else ""
    return asked, "; ".join(told.get("unguarded", ()))


def _resource(machine: Machine) -> Iterator[str]:
    """Yield one sentence if the kubelet serves the guard resource: an extended resource that only adds the guard, an
    OCI hook that keeps a container from starting without its devices."""
    status = machine.daemon
    given = "" if isinstance(status, NotReadyError) else given_resource(status.get("guard_resource"))
    if given:
        yield f"createRuntime hook of containers with the resource {given}, which an admission policy can give"


def given_resource(resource: Mapping[str, Any] | None) -> str:
    """Return the name of the guard resource from a status document. The guard resource is an extended resource that
    only adds the guard, an OCI hook that keeps a container from starting without its devices.

    The name is "" if the resource is not registered with the kubelet, or if containers with it do not get the hook.
    """
    if not resource or resource["registration"]["error"] or not resource["guarded"]:
        return ""
    return str(resource["resource"])


def _unknown(machine: Machine) -> str:
    """Return a sentence that says why doctor cannot find out whether containers have the guard, an OCI hook that keeps
    a container from starting without its devices."""
    status = machine.daemon
    asked = "no daemon answers that a hook could have asked"
    if not isinstance(status, NotReadyError):
        earlier = ", only an earlier one" if status["guard"].get("last") else ""
        asked = f"no hook has asked this daemon{earlier}"
    return (
        f"not known: no configuration of containerd or CRI-O is in {machine.etc}, and {asked}; without a guard, pods"
        " start without the devices they ask for while no daemon runs"
    )


def _containerd(host: ConfiguredHost) -> Iterator[Setup]:
    if _containerd_file(host).exists():
        for handler in _handlers(host) or (RuntimeHandler(name="runc"),):
            yield containerd_setup(handler, host.settings)


def _crio(host: ConfiguredHost) -> Iterator[Setup]:
    if (host.etc / "crio").exists():
        yield crio_setup(crio_hook_folders(host.etc, host.share), host.settings)


def _containerd_file(host: ConfiguredHost) -> Path:
    return host.etc / "containerd/config.toml"


def _handlers(host: ConfiguredHost) -> tuple[RuntimeHandler, ...]:
    """Return the runtime handlers of containerd's configuration file, and of the files that it imports. A key in an
    imported file overrides the key in the main file."""
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
    return tuple(_handler(name, it) for name, it in found.items())


def _handler(name: str, table: Mapping[str, Any]) -> RuntimeHandler:
    base = table.get("base_runtime_spec")
    return RuntimeHandler(
        name=name,
        base_spec=base if isinstance(base, str) else "",
        annotations=texts(table.get("pod_annotations")),
    )


def _guarded_specs(host: ConfiguredHost) -> tuple[_BaseSpec, ...]:
    """Return each OCI configuration of containerd (`base_runtime_spec`) that has the guard, an OCI hook that keeps a
    container from starting without its devices.

    Other such configurations are left out, because nri-rdma did not write them.
    """
    handlers: dict[Path, list[str]] = {}
    for handler in _handlers(host):
        if handler.base_spec:
            handlers.setdefault(Path(handler.base_spec), []).append(handler.name)
    specs = []
    for path, names in handlers.items():
        with suppress(WrongError):  # the check of the guard reports it
            hook, document = guard_hook_in(path)
            if hook is not None:
                rlimits = table_at(document, "process").get("rlimits")
                limits = tuple(rlimits) if isinstance(rlimits, list) else ()
                specs.append(_BaseSpec(path=path, handlers=tuple(names), rlimits=limits))
    return tuple(specs)


def _validators(host: ConfiguredHost) -> Iterator[str]:
    """Yield one sentence for each runtime whose NRI validator refuses containers that nri-rdma did not process.
    Runtimes with NRI 0.10 have this setting."""
    containerd = table_at(read_toml(host.etc / "containerd/config.toml"), "plugins", _NRI_TABLE, "default_validator")
    name = host.settings.plugin_name or PLUGIN
    if containerd.get("enable") is True and name in texts(containerd.get("required_plugins")):
        yield f"containerd's validator requires {name} of every container"
    for path in crio_files(host.etc):
        crio = table_at(read_toml(path), "crio", "nri", "default_validator")
        required = texts(crio.get("nri_validator_required_plugins"))
        if crio.get("nri_enable_default_validator") is True and name in required:
            yield f"CRI-O's validator requires {name} of every container"
