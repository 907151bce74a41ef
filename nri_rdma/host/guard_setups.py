"""Determine which runtime handlers (RuntimeClass handlers) run the guard: the OCI hook that keeps a container from
starting without its devices.

containerd adds the guard to the containers of a handler by the handler's setting base_runtime_spec; CRI-O adds it to
all containers by a hook definition. The handlers come from the running runtime's answer, or from its configuration
files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any  # Any: configurations of others

from nri_rdma.config.settings import Settings
from nri_rdma.host.containerd.handlers import RunningCrio, RuntimeHandler, running_handlers
from nri_rdma.host.hook_program import fault_with_interpreter, foreign_at
from nri_rdma.model.pool import PoolDoor
from nri_rdma.text.kubelet_checkpoint import FILE as CHECKPOINT_FILE
from nri_rdma.text.share_annotations import GUARD_HOOK, GUARD_MODULE

CRIO = "CRI-O"
"""The name under which all handlers of CRI-O are reported together, because the hooks of CRI-O apply to all of them."""
_OF_CONTAINERD = "containerd's "
_STAGE = "createRuntime"
_FLAGS = ("--annotation-prefix", "--control-socket", "--kubelet-checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The state of the guard in one runtime handler. The guard is an OCI hook that keeps a container from starting
    without its devices. `fault` says why the guard does not work; "" if it works.

    `blocks`: the fault keeps every container of this handler from starting. `is_known` False: the handler's
    configuration cannot be seen from here, and `fault` says why. `is_default`: pods that name no handler use this one.
    """

    handler: str
    fault: str
    blocks: bool = False
    is_known: bool = True
    is_default: bool = False

    @property
    def name(self) -> str:
        """The handler's name at the runtime. All handlers of CRI-O share the name "CRI-O"."""
        return self.handler.removeprefix(_OF_CONTAINERD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """The reason why the guard (an OCI hook that keeps a container from starting without its devices) does not work; ""
    if it works. `blocks`: the fault keeps every container of the handler from starting."""

    text: str = ""
    blocks: bool = False


class WrongError(Exception):
    """The error for a configuration file of the runtime that is unreadable or is not JSON."""


def running_setups(sockets: Iterable[Path | None], settings: Settings) -> tuple[Setup, ...] | None:
    """Return the state of the guard in each handler of a running runtime. The guard is an OCI hook that keeps a
    container from starting without its devices. The runtime is the first one that answers at one of these CRI sockets;
    None if none does.

    Raises ContainerdError if a runtime accepts the connection but does not answer in time. Blocks.
    """
    for socket in sockets:
        match running_handlers(socket):
            case RunningCrio(hook_folders=folders):
                return (crio_setup(folders, settings),)
            case tuple() as handlers:
                return tuple(_seen_from_here(it, settings) for it in handlers)
            case None:
                continue
    return None


def setup_of(setups: Iterable[Setup], handler: str) -> Setup | None:
    """Return the entry of `setups` for a pod's runtime handler; "" stands for the default handler. None if the runtime
    did not report that handler."""
    return next((it for it in setups if it.handler == CRIO or (it.name == handler if handler else it.is_default)), None)


def containerd_setup(handler: RuntimeHandler, settings: Settings) -> Setup:
    """Return the state of the guard in a handler of containerd. The guard is an OCI hook that keeps a container from
    starting without its devices."""
    fault = _fault_of_handler(handler, settings)
    return Setup(
        handler=f"{_OF_CONTAINERD}{handler.name}",
        fault=fault.text,
        blocks=fault.blocks,
        is_default=handler.is_default,
    )


def crio_setup(folders: Sequence[Path], settings: Settings) -> Setup:
    """Return the state of the guard in CRI-O, for all of its handlers. The guard is an OCI hook that keeps a container
    from starting without its devices. `folders` are the folders from which CRI-O reads hook definitions."""
    definitions = [path for folder in folders for path in sorted(folder.glob("*.json"))]
    faults = [fault for path in definitions if (fault := _fault_of_definition(path, settings)) is not None]
    blocking = [fault.text for fault in faults if fault.blocks]
    if blocking:
        return Setup(handler=CRIO, fault="; ".join(blocking), blocks=True)
    if _Fault() in faults:
        return Setup(handler=CRIO, fault="")
    missing = f"no {GUARD_HOOK} in {', '.join(map(str, folders))}"
    return Setup(handler=CRIO, fault="; ".join(it.text for it in faults) or missing)


def guard_hook_in(spec: Path) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """Return the entry of the guard (an OCI hook that keeps a container from starting without its devices) in an OCI
    configuration file, None if there is no entry; and the whole configuration.

    Raises WrongError if the file `spec` is unreadable or is not JSON.
    """
    document = _json(spec)
    hooks = _table(document.get("hooks")).get(_STAGE)
    return _ours(hooks if isinstance(hooks, list) else []), document


def _seen_from_here(handler: RuntimeHandler, settings: Settings) -> Setup:
    """Return the state of the guard in a handler of a running containerd. The guard is an OCI hook that keeps a
    container from starting without its devices.

    containerd has read the handler's base_runtime_spec at its start. If that file is missing here, it may exist in
    another mount namespace, so the state is marked as unknown.
    """
    if handler.base_spec and not Path(handler.base_spec).exists():
        fault = f"whether {handler.base_spec} has the hook cannot be seen from here"
        name = f"{_OF_CONTAINERD}{handler.name}"
        return Setup(handler=name, fault=fault, is_known=False, is_default=handler.is_default)
    return containerd_setup(handler, settings)


# containerd: an OCI configuration for each handler


def _fault_of_handler(handler: RuntimeHandler, settings: Settings) -> _Fault:
    if not handler.base_spec:
        return _Fault(text="no base_runtime_spec")
    try:
        hook, _ = guard_hook_in(Path(handler.base_spec))
    except WrongError as error:
        return _Fault(text=str(error))
    if hook is None:
        return _Fault(text=f"{handler.base_spec} has no {GUARD_HOOK} among its {_STAGE} hooks")
    if fault := fault_with_interpreter(Path(os.path.realpath(hook["path"])), GUARD_MODULE):
        return _Fault(text=fault, blocks=True)
    prefix = settings.annotation_prefix
    keys = (prefix, f"{prefix}/pod", f"{prefix}/container.a")
    unseen = [key for key in keys if not any(_lets_through(it, key) for it in handler.annotations)]
    if unseen:
        return _Fault(text=f'pod_annotations hides {unseen[0]} from the hook: it needs ["{prefix}", "{prefix}/*"]')
    return _Fault(text=_fault_of_hook(hook, settings))


def _lets_through(pattern: str, key: str) -> bool:
    """Return whether a pattern of containerd's pod_annotations matches an annotation's key. The rules are those of Go's
    path.Match: `*` matches no slash."""
    parts, names = pattern.split("/"), key.split("/")
    return len(parts) == len(names) and all(map(fnmatchcase, names, parts))


# CRI-O: hook definitions in folders, for all handlers


def _fault_of_definition(path: Path, settings: Settings) -> _Fault | None:
    """Return the fault of one of CRI-O's hook definitions if it defines the guard, an OCI hook that keeps a container
    from starting without its devices. None if the file defines another hook."""
    try:
        document = _json(path)
    except WrongError:
        return None  # CRI-O itself reports such a file, and does not start
    hook = _table(document.get("hook"))
    if _ours([hook]) is None:
        return None
    if _STAGE not in _texts(document.get("stages")):
        return _Fault(text=f"{path} lacks the stage {_STAGE}")
    if _table(document.get("when")).get("always") is not True:
        return _Fault(text=f"{path} is not for every container (when: always)")
    if fault := fault_with_interpreter(Path(os.path.realpath(hook["path"])), GUARD_MODULE):
        return _Fault(text=f"{path}: {fault}", blocks=True)
    return _Fault(text=_fault_of_hook(hook, settings))


# Both


def _ours(hooks: Iterable[Any]) -> Mapping[str, Any] | None:
    """Return the entry of the guard (an OCI hook that keeps a container from starting without its devices) among the
    hooks of a configuration. None if it is not there."""
    for hook in hooks:
        if (
            isinstance(hook, dict)
            and Path(str(hook.get("path"))).name == GUARD_HOOK
            and "verify" in _texts(hook.get("args"))
        ):
            return hook
    return None


def _fault_of_hook(hook: Mapping[str, Any], settings: Settings) -> str:
    if foreign := foreign_at(Path(hook["path"])):
        return foreign
    wanted, standard = _values(settings), _values(Settings())
    serves_claims = any(pool.door is PoolDoor.CLAIMS for pool in settings.pools)
    for flag, ours, default in zip(_FLAGS if serves_claims else _FLAGS[:2], wanted, standard, strict=False):
        given = _flag(_texts(hook.get("args")), flag) or default
        if given != ours:
            return f"the hook's {flag} is {given}, and the daemon's is {ours}"
    return ""


def _values(settings: Settings) -> tuple[str, ...]:
    """Return the values that the guard hook's flags must have, in the order of _FLAGS, so that the hook and the daemon
    agree."""
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


def _json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise WrongError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise WrongError(f"{path} is no JSON") from error
    return _table(document)


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(it for it in value if isinstance(it, str)) if isinstance(value, list) else ()
