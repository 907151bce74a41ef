"""The files that give containerd's containers the guard, an OCI hook that keeps a container from starting without its
devices: the hook program, an OCI configuration (base_runtime_spec) with the hook for the runtime handlers, and a
drop-in file that names these configurations.

containerd 2.0 and later merges a drop-in with the main file key by key. Before 2.0, a plugin's table in a drop-in
replaces the whole table of the main file, and would hide the CRI settings in it. In that case, and if the main file
imports no folder of drop-ins, our lines go into the main file itself, but only if the user allows it.

Law: the drop-in, or our lines in the main file, are written last and removed first. containerd starts no container of a
handler whose OCI configuration or hook is missing.
"""

from __future__ import annotations

import glob
import json
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any  # Any: containerd's configuration, and OCI's

from nri_rdma.commands.common.changes import OwnFile
from nri_rdma.commands.common.runtime_configs import table_at, texts
from nri_rdma.commands.install.toml_lines import MARK, CannotEditError, header, toml_value, with_keys, without_ours
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.text.share_annotations import GUARD_HOOK

DROP_IN = "90-nri-rdma.toml"
HOOK_TIMEOUT_S = 10
MERGES_SINCE = (2, 0)
"""The first containerd release that merges the tables of a drop-in with the tables of the main file."""
_STAGE = "createRuntime"
_MADE = "# Made by `nri-rdma install containerd`; `nri-rdma uninstall containerd` removes it.\n"
_CRI_TABLES = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
_CONF_MODE = 0o644
_OURS: Mapping[str, Any] = {"base_runtime_spec": "", "pod_annotations": []}
"""The keys that we set for a runtime handler, with the values that the keys have if nobody sets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedHandler:
    """A runtime handler of containerd (such as runc) that gets the guard, an OCI hook that keeps a container from
    starting without its devices.

    `spec` is the OCI configuration with the hook. `base` is the base_runtime_spec that the handler has without the
    guard; None: it has none.
    """

    name: str
    spec: Path
    base: Path | None
    annotations: tuple[str, ...]
    others: Mapping[str, Any]
    """Other keys that must be written together with ours: the handler's default values. They are needed if no file
    defines the handler and containerd takes our table for the whole handler."""

    @property
    def ours(self) -> Mapping[str, Any]:
        """The configuration keys and values that give this runtime handler the guard, an OCI hook that keeps a
        container from starting without its devices."""
        return {"base_runtime_spec": str(self.spec), "pod_annotations": list(self.annotations)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerdFiles:
    """The configuration files of containerd. `config` is the main file, and `release` is containerd's version."""

    config: Path
    release: tuple[int, int]

    @property
    def text(self) -> str:
        """The text of the main file; "" if the file does not exist. Raises OSError if it cannot be read, and
        NriRdmaError if it is not UTF-8."""
        try:
            return self.config.read_bytes().decode()  # not read_text, which would change line ends
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            raise _unreadable(self.config, error) from error

    def handlers(
        self, configuration: Mapping[str, Any], chosen: Sequence[str], prefix: str
    ) -> tuple[GuardedHandler, ...]:
        """Return what to configure so that containerd's runtime handlers add the guard, an OCI hook that keeps a
        container from starting without its devices.

        `configuration` is the whole configuration, as containerd prints it. `chosen` are the names of the handlers;
        empty: all. `prefix` begins our annotations, which containerd must pass on. Raises NriRdmaError if containerd
        does not know a name in `chosen`.
        """
        known = handlers_in(configuration)
        if unknown := [name for name in chosen if name not in known]:
            what, hint = f"containerd has no runtime handler {unknown[0]}", f"it has {', '.join(known)}"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=str(self.config), hint=hint)
        theirs = self.theirs()
        return tuple(self._guarded(name, theirs.get(name), known[name], prefix) for name in chosen or sorted(known))

    def theirs(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the settings of each runtime handler in containerd's files, without our lines and drop-ins. Raises
        OSError if a file cannot be read, and NriRdmaError if it is not valid TOML."""
        found: dict[str, Mapping[str, Any]] = {}
        for _, document in self._documents():
            for table in _CRI_TABLES.values():
                cri = table_at(document, "plugins", table)
                kept = {} if cri and self.release < MERGES_SINCE else found
                said = table_at(cri, "containerd", "runtimes")
                found = kept | {name: {**kept.get(name, {}), **table_at(said, name)} for name in said}
        return found

    def last_files(self, handlers: Sequence[GuardedHandler], may_edit: bool) -> tuple[OwnFile, ...]:
        """Return the files that name our OCI configurations, and so switch on the guard, an OCI hook that keeps a
        container from starting without its devices. They must be written last, in this order.

        Raises NriRdmaError if the main file must be edited, but `may_edit` is false or the file is written in a way
        that cannot be edited.
        """
        text = self.text
        if not text or text.startswith(_MADE):
            version = 3 if self.release >= MERGES_SINCE else 2
            return (self._own(self.config, _text(version, handlers)),)
        plain = without_ours(text)
        document = _document(self.config, plain)
        version = self._version(document)
        if self.release >= MERGES_SINCE and (folder := self._imported_folder(document)):
            return (self._own(folder / DROP_IN, _text(version, handlers)),)
        if not may_edit and MARK not in text:
            raise self._needs_edit()
        if self.release >= MERGES_SINCE:
            path = self.config.parent / "conf.d" / DROP_IN
            imports = [*texts(document.get("imports")), str(path)]
            return (self._own(path, _text(version, handlers)), self._edited(plain, {(): {"imports": imports}}))
        return (self._edited(plain, dict(_tables(version, handlers))),)

    def first_to_remove(self) -> tuple[tuple[OwnFile, ...], tuple[OwnFile, ...]]:
        """Return the changes that switch off the guard, an OCI hook that keeps a container from starting without its
        devices: files to write (the main file without our lines), then files to remove (our drop-ins).

        Raises OSError if a file cannot be read, and NriRdmaError if the main file is not valid TOML.
        """
        text = self.text
        if text.startswith(_MADE):
            return (), (self._own(self.config, ""),)
        imports = texts(_document(self.config, text).get("imports"))
        folders = {Path(it).parent for it in resolved(self.config, imports) if it.name == DROP_IN}
        drop_ins = tuple(self._own(it / DROP_IN, "") for it in sorted({*folders, self.config.parent / "conf.d"}))
        return ((self._whole(without_ours(text)),) if MARK in text else ()), drop_ins

    def specs(self) -> tuple[OwnFile, ...]:
        """Return the existing OCI configurations that nri-rdma made."""
        found = sorted(self.config.parent.glob("nri-rdma-base*.json"))
        return tuple(OwnFile(path=path, data=b"", is_ours=is_guarded) for path in found)

    def refuse_other_effects(
        self, before: Mapping[str, Any], after: Mapping[str, Any], handlers: Sequence[GuardedHandler]
    ) -> None:
        """Raise NriRdmaError if the new configuration does not give these runtime handlers the guard, an OCI hook that
        keeps a container from starting without its devices, or if any other setting changes.

        `before` and `after` are the old and the new configuration, as containerd prints them.
        """
        found = handlers_in(after)
        for it in handlers:
            if any(found.get(it.name, {}).get(key) != value for key, value in it.ours.items()):
                what = f"containerd would not give {it.name} the guard: another file sets base_runtime_spec after ours"
                hint = f"see `containerd --config {self.config} config dump`"
                raise NriRdmaError(ErrorCode.INSTALL, what, where=str(self.config), hint=hint)
        names = [it.name for it in handlers]
        if _without_guard(before, names) != _without_guard(after, names):
            what = "other settings of containerd would change, too"
            hint = "nothing was changed; set the guard up by hand (docs/guard.md)"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=str(self.config), hint=hint)

    def _guarded(
        self, name: str, theirs: Mapping[str, Any] | None, now: Mapping[str, Any], prefix: str
    ) -> GuardedHandler:
        plain, own = self.config.parent / "nri-rdma-base.json", self.config.parent / f"nri-rdma-base.{name}.json"
        base = (theirs or {}).get("base_runtime_spec") or None
        base = None if base is None or Path(base) in {plain, own} else Path(base)
        wanted = dict.fromkeys((*texts((theirs or {}).get("pod_annotations")), prefix, f"{prefix}/*"))
        return GuardedHandler(
            name=name,
            spec=plain if base is None else own,
            base=base,
            annotations=tuple(wanted),
            others=_said({**now, **_OURS}) if theirs is None and self.release < MERGES_SINCE else {},
        )

    def _documents(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """Yield the configuration files with their content, in the order in which containerd reads them, without our
        lines and drop-ins."""
        seen, pending = set[Path](), [self.config]
        while pending:
            path = pending.pop(0)
            if path in seen or path.name == DROP_IN or not path.is_file():
                continue
            seen.add(path)
            text = path.read_text()
            document = _document(path, "" if text.startswith(_MADE) else without_ours(text))
            yield path, document
            pending += resolved(path, texts(document.get("imports")))

    def _version(self, document: Mapping[str, Any]) -> int:
        """Return the `version` that a drop-in must have. Raises NriRdmaError if the main file is of version 1, in which
        tables have other names."""
        version = document.get("version", 1)
        if self.release < MERGES_SINCE and version != 2:
            what = "containerd reads this file as one of version 1, which has other names"
            hint = "convert it: containerd config migrate"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=str(self.config), hint=hint)
        return 2 if version == 2 else 3

    def _imported_folder(self, document: Mapping[str, Any]) -> Path | None:
        """Return the first folder that the main file imports, and in which containerd would read our drop-in; None if
        there is no such folder."""
        for pattern in texts(document.get("imports")):
            path = self.config.parent / pattern
            if not glob.has_magic(str(path.parent)) and fnmatchcase(str(path.parent / DROP_IN), str(path)):
                return path.parent
        return None

    def _needs_edit(self) -> NriRdmaError:
        if self.release < MERGES_SINCE:
            what = "before 2.0, containerd reads a drop-in as the whole configuration of pods"
        else:
            what = "no folder of drop-ins is imported"
        hint = (
            "write --edit-config, which adds lines to this file that `nri-rdma uninstall containerd` takes out again;"
            " with --dry-run it shows them"
        )
        what = f"{what}, so containerd's main file has to be edited"
        return NriRdmaError(ErrorCode.INSTALL, what, where=str(self.config), hint=hint)

    def _edited(self, text: str, changes: Mapping[tuple[str, ...], Mapping[str, Any]]) -> OwnFile:
        try:
            for path, values in changes.items():
                text = with_keys(text, path, values)
        except CannotEditError as error:
            lines = "; ".join(f"{header(path) if path else ''} {_lines(values)}" for path, values in changes.items())
            what, hint = f"it cannot be edited: {error}", f"add this by hand: {lines}"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=str(self.config), hint=hint) from error
        return self._whole(text)

    def _whole(self, text: str) -> OwnFile:
        """Return the main file with the content `text`, ready to be written. It may be overwritten although nri-rdma
        did not make it, because its owner has allowed our lines in it."""
        mode = stat.S_IMODE(self.config.stat().st_mode)
        return OwnFile(path=self.config, data=text.encode(), is_ours=lambda _: True, mode=mode)

    @staticmethod
    def _own(path: Path, text: str) -> OwnFile:
        return OwnFile(path=path, data=text.encode(), is_ours=_is_our_text, mode=_CONF_MODE)


def handlers_in(configuration: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the runtime handlers of a complete containerd configuration, by name."""
    tables = [table_at(configuration, "plugins", it, "containerd", "runtimes") for it in _CRI_TABLES.values()]
    return {name: table_at(table, name) for table in tables for name in table}


def resolved(config: Path, imports: Sequence[str]) -> list[Path]:
    """Return the files that `imports` names, found as containerd finds them: relative to the main file's folder, with
    `*` as a wildcard."""
    paths = [str(config.parent / it) for it in imports]
    return [Path(it) for path in paths for it in (sorted(glob.glob(path)) if "*" in path else [path])]  # noqa: PTH207


def guarded_spec(text: str, hook: Path, flags: Sequence[str], *, keeps_limits: bool) -> str:
    """Return the OCI configuration `text` with the guard added, an OCI hook that keeps a container from starting
    without its devices. A guard that is already there is replaced.

    `hook` is the hook's program, and `flags` its arguments. Without `keeps_limits`, rlimits are removed. Raises
    ValueError or TypeError if the text is not a JSON object.
    """
    spec = json.loads(text)
    if not isinstance(spec, dict):
        raise TypeError("it is no object")
    hooks = spec["hooks"] = {} if spec.get("hooks") is None else spec["hooks"]
    others = [it for it in hooks.get(_STAGE) or [] if Path(it.get("path", "")).name != GUARD_HOOK]
    ours = {"path": str(hook), "args": [GUARD_HOOK, "verify", *flags], "timeout": HOOK_TIMEOUT_S}
    hooks[_STAGE] = [*others, ours]
    if not keeps_limits:  # ctr prints RLIMIT_NOFILE 1024, which containers would not have without a base spec
        (spec.get("process") or {}).pop("rlimits", None)
    return json.dumps(spec, indent=2) + "\n"


def is_guarded(data: bytes) -> bool:
    """Return whether an OCI configuration or hook definition contains the guard, an OCI hook that keeps a container
    from starting without its devices."""
    return f'/{GUARD_HOOK}"'.encode() in data


def _text(version: int, handlers: Sequence[GuardedHandler]) -> str:
    tables = [f"{header(path)}\n{_lines(values)}" for path, values in _tables(version, handlers)]
    return "\n".join((f"{_MADE}version = {version}\n", *tables))


def _tables(version: int, handlers: Sequence[GuardedHandler]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Yield the path and the content of each table of our configuration file. `version` is the file's format
    version."""
    for it in handlers:
        path = ("plugins", _CRI_TABLES[version], "containerd", "runtimes", it.name)
        yield path, {**{key: value for key, value in it.others.items() if not isinstance(value, dict)}, **it.ours}
        yield from (((*path, key), value) for key, value in it.others.items() if isinstance(value, dict) and value)


def _lines(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())


def _without_guard(configuration: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return the configuration without the settings that our files may change. The results of before and after must be
    equal."""
    rest = deepcopy(dict(configuration))
    rest.pop("imports", None)
    for table in _CRI_TABLES.values():
        runtimes = table_at(rest, "plugins", table, "containerd", "runtimes")
        if isinstance(runtimes, dict):
            runtimes.update({name: _said({**runtimes[name], **_OURS}) for name in names if name in runtimes})
    return rest


def _said(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the table without keys whose value is empty, since containerd treats an empty value as not set."""
    said = {key: _said(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in said.items() if value}


def _document(path: Path, text: str) -> Mapping[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> NriRdmaError:
    what, hint = f"this file cannot be read: {error}", "mend it; `containerd config dump` says what is wrong"
    return NriRdmaError(ErrorCode.INSTALL, what, where=str(path), hint=hint)


def _is_our_text(data: bytes) -> bool:
    return data.startswith(_MADE.encode())
