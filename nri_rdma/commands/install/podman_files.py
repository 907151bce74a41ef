"""The files that let podman containers ask for devices by annotations: three hook definitions in a folder of their own,
and a drop-in for containers.conf that names this folder.

podman silently ignores a hook folder that does not exist, and would start such containers without their devices.
Therefore the folder and the hook program are where no package upgrade removes them, and the drop-in is written last and
removed first.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: TOML and JSON documents

from nri_rdma.commands.cdi.hooked_devices import HOOK, HOOK_TIMEOUT_S, MODULE, PROGRAM
from nri_rdma.commands.common.changes import OwnFile
from nri_rdma.commands.install.hook import HookSettings, at, hook_files
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.engine_setups import PODMAN_DROP_IN

FOLDER = HOOK.parent / "podman-hooks.d"
ETC = Path("/etc/containers")
DROP_IN = PODMAN_DROP_IN
SHARED = Path("/usr/share/containers/containers.conf")
STAGES = (("precreate", "prepare"), ("createRuntime", "attach-prepared"), ("poststop", "return"))
"""The stages at which podman runs our hook, each with the hook's command for that stage."""
DEFAULT_FOLDERS = ("/usr/share/containers/oci/hooks.d",)
"""The hook folders that podman reads if no file sets `hooks_dir`."""
APPENDS_SINCE = (5, 0)
"""The first podman release whose containers.conf is written with {append=true}. 4.3 cannot read such a file, 5.4 can;
the releases between were not tested."""
_MARK = "# Made by `nri-rdma install podman`; `nri-rdma uninstall podman` removes it."
_CONF_MODE = 0o644
_SHELL = "/bin/sh"
_IF_MISSING = f"if that or {MODULE} beside it is not there, run `nri-rdma install podman`"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanFiles:
    """The files for podman. `root` is the folder that stands for `/`; the default is this machine's `/`."""

    settings: HookSettings
    root: Path = Path("/")

    def of_hooks(self, source: Path) -> tuple[OwnFile, ...]:
        """Return the hook's module and program, copied from `source`, and the hook definitions, in the order of
        writing. Raises OSError if `source` cannot be read."""
        return (*hook_files(self.root, source), *self.definitions)

    @property
    def program(self) -> Path:
        """The path of the hook program."""
        return self._at(HOOK)

    @property
    def folder(self) -> Path:
        """The folder of the hook definitions."""
        return self._at(FOLDER)

    @property
    def definitions(self) -> tuple[OwnFile, ...]:
        """The files with the hook definitions, one for each stage."""
        return tuple(
            OwnFile(
                path=self.folder / f"nri-rdma-{stage}.json",
                data=definition(stage, verb, self.settings).encode(),
                is_ours=_is_our_definition,
                mode=_CONF_MODE,
                about=f"for containers with {self.settings.annotation_prefix}: {stage} runs"
                f" `{shlex.join((PROGRAM, *self.settings.words(verb)))}`",
            )
            for stage, verb in STAGES
        )

    def drop_in(self, version: tuple[int, ...]) -> OwnFile:
        """Return the drop-in of containers.conf for this version of podman. Raises NriRdmaError if another file would
        override it."""
        path = self._at(DROP_IN)
        text = drop_in(version, _folders(self._documents(before=DROP_IN)))
        self.refuse_hidden(text)
        return OwnFile(path=path, data=text.encode(), is_ours=_is_our_drop_in, mode=_CONF_MODE)

    @property
    def any_drop_in(self) -> OwnFile:
        """The drop-in with an empty text, since its text depends on podman's version. It serves only to find and remove
        the file."""
        return OwnFile(path=self._at(DROP_IN), data=b"", is_ours=_is_our_drop_in, mode=_CONF_MODE)

    def refuse_hidden(self, text: str) -> None:
        """Raise NriRdmaError if podman would not read our hook folder, because a later file overrides the drop-in.
        `text` is the drop-in's text."""
        later = [
            it for it in self._documents() if it.path.parent == self._at(DROP_IN.parent) and it.path.name > DROP_IN.name
        ]
        own = ConfFile(path=self._at(DROP_IN), hooks_dir=_hooks_dir(tomllib.loads(text)))
        if str(FOLDER) not in _folders((own, *later)):
            hiding = next(it.path for it in later if it.hooks_dir is not None)
            raise NriRdmaError(
                ErrorCode.INSTALL,
                f"podman would not read {FOLDER}: a later file sets hooks_dir, too",
                where=str(hiding),
                hint=f'add "{FOLDER}" to its hooks_dir, or give it a name before {DROP_IN.name}',
            )

    def _documents(self, before: Path | None = None) -> tuple[ConfFile, ...]:
        """Return podman's configuration files without our drop-in, in the order in which podman reads them. With
        `before`, only the files that podman reads before that one."""
        drop_ins = sorted(self._at(DROP_IN.parent).glob("*.conf"))
        paths = [self._at(SHARED), self._at(ETC / "containers.conf"), *drop_ins]
        wanted = [it for it in paths if it.name != DROP_IN.name and it.is_file()]
        if before is not None:
            wanted = [it for it in wanted if it.parent != self._at(before.parent) or it.name < before.name]
        return tuple(map(_document, wanted))

    def _at(self, path: Path) -> Path:
        return at(self.root, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfFile:
    """A configuration file of podman. `hooks_dir` is None if the file does not set it."""

    path: Path
    hooks_dir: list[Any] | None


def definition(stage: str, verb: str, settings: HookSettings) -> str:
    """Return the definition of the hook for one stage, in the format of oci-hooks(5). `verb` is the hook program's
    command for that stage.

    podman ignores a definition whose program does not exist, and starts the container without its devices. So the
    definition for precreate names a shell, which fails if our program is missing; podman's error shows the shell's
    arguments, which say what to do. The other definitions name our program directly, because crun's error shows the
    path of a failed hook.
    """
    words = settings.words(verb)
    shell = [_SHELL, "-c", f"exec {shlex.join((str(HOOK), *words))} # {_IF_MISSING}"]
    is_first = stage == STAGES[0][0]
    document = {
        "version": "1.0.0",
        "hook": {
            "path": _SHELL if is_first else str(HOOK),
            "args": shell if is_first else [PROGRAM, *words],
            "timeout": HOOK_TIMEOUT_S,
        },
        "when": {"annotations": {f"^{re.escape(settings.annotation_prefix)}(/.*)?$": ".*"}},
        "stages": [stage],
    }
    return json.dumps(document, indent=2) + "\n"


def drop_in(version: tuple[int, ...], others: Iterable[str]) -> str:
    """Return the text of the drop-in for this version of podman. With it, podman reads our folder, and still reads
    `others`, the folders of its other configuration files."""
    if version >= APPENDS_SINCE:
        folders, note = f'"{FOLDER}", {{append=true}}', "Added to what other files say."
    else:
        listed = [*dict.fromkeys((*others, str(FOLDER)))]
        folders, note = ", ".join(map(json.dumps, listed)), "This podman cannot add to a list: this is the whole one."
    return f"{_MARK}\n# {note}\n[engine]\nhooks_dir = [{folders}]\n"


def parse_version(text: str) -> tuple[int, ...]:
    """Return podman's version from `text`, the output of `podman --version`. Raises NriRdmaError if the text has no
    version."""
    found = re.search(r"\b(\d+)\.(\d+)(?:\.(\d+))?", text)
    if found is None:
        what = f"this is no version of podman: {text.strip()!r}"
        raise NriRdmaError(ErrorCode.INSTALL, what, where="podman --version", hint="install podman 4.3 or newer")
    return tuple(int(number) for number in found.groups(default="0"))


def _document(path: Path) -> ConfFile:
    """Read a configuration file of podman. Raises NriRdmaError if the file is not valid TOML; podman cannot read such a
    file either."""
    try:
        return ConfFile(path=path, hooks_dir=_hooks_dir(tomllib.loads(path.read_text())))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        what, hint = f"this file cannot be read: {error}", "mend it; `podman info` says what is wrong"
        raise NriRdmaError(ErrorCode.INSTALL, what, where=str(path), hint=hint) from error


def _hooks_dir(document: dict[str, Any]) -> list[Any] | None:
    engine = document.get("engine")
    found = engine.get("hooks_dir") if isinstance(engine, dict) else None
    return found if isinstance(found, list) else None


def _folders(documents: Iterable[ConfFile]) -> tuple[str, ...]:
    """Return the hook folders that podman reads. After a file with {append=true}, later files add folders too, until a
    file has {append=false}."""
    folders, appends = list(DEFAULT_FOLDERS), False
    for it in documents:
        if it.hooks_dir is None:
            continue
        for entry in it.hooks_dir:
            appends = entry.get("append", appends) if isinstance(entry, dict) else appends
        named = [entry for entry in it.hooks_dir if isinstance(entry, str)]
        folders = [*folders, *named] if appends else named
    return tuple(dict.fromkeys(folders))


def _is_our_definition(data: bytes) -> bool:
    try:
        args = json.loads(data)["hook"]["args"]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(args, list) and PROGRAM in " ".join(map(str, args))


def _is_our_drop_in(data: bytes) -> bool:
    return data.startswith(_MARK.encode())
