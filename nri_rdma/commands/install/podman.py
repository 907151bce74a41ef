"""What podman needs to have containers with our annotations served: three hooks in a folder of their own, and a drop-in
of containers.conf that names the folder.

podman skips a folder that is not there without a word, and so would start such containers bare. Therefore folder and
hook are where no package is upgraded, the drop-in comes last and goes first.
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

from nri_rdma.commands.hooked_cdi import HOOK, HOOK_TIMEOUT_S, MODULE, PROGRAM
from nri_rdma.commands.install.changes import OwnFile
from nri_rdma.commands.install.hook import HookSettings, at, hook_files
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.engine_setups import PODMAN_DROP_IN

FOLDER = HOOK.parent / "podman-hooks.d"
ETC = Path("/etc/containers")
DROP_IN = PODMAN_DROP_IN
SHARED = Path("/usr/share/containers/containers.conf")
STAGES = (("precreate", "prepare"), ("createRuntime", "attach-prepared"), ("poststop", "return"))
"""The stages of podman's hooks, each with what our hook does in it."""
DEFAULT_FOLDERS = ("/usr/share/containers/oci/hooks.d",)
"""What podman reads as long as nobody sets hooks_dir."""
APPENDS_SINCE = (5, 0)
"""podman 4.3 cannot read a containers.conf with {append=true} at all; 5.4 can. Between them nobody looked."""
_MARK = "# Made by `nri-rdma install podman`; `nri-rdma uninstall podman` removes it."
_CONF_MODE = 0o644
_SHELL = "/bin/sh"
_IF_MISSING = f"if that or {MODULE} beside it is not there, run `nri-rdma install podman`"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanFiles:
    """The files for podman below a root folder; the default is this machine's."""

    settings: HookSettings
    root: Path = Path("/")

    def of_hooks(self, source: Path) -> tuple[OwnFile, ...]:
        """Return the hook (module and program, copies of `source`), and the definitions that name it, in the order of
        writing. Raises OSError."""
        return (*hook_files(self.root, source), *self.definitions)

    @property
    def program(self) -> Path:
        """The hook's place."""
        return self._at(HOOK)

    @property
    def folder(self) -> Path:
        """The place of the hooks' definitions."""
        return self._at(FOLDER)

    @property
    def definitions(self) -> tuple[OwnFile, ...]:
        """The definitions of the hooks."""
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
        """Return the drop-in for this version of podman. Raises NriRdmaError where another file would hide it."""
        path = self._at(DROP_IN)
        text = drop_in(version, _folders(self._documents(before=DROP_IN)))
        self.refuse_hidden(text)
        return OwnFile(path=path, data=text.encode(), is_ours=_is_our_drop_in, mode=_CONF_MODE)

    @property
    def any_drop_in(self) -> OwnFile:
        """The drop-in whatever version it is for: to be removed."""
        return OwnFile(path=self._at(DROP_IN), data=b"", is_ours=_is_our_drop_in, mode=_CONF_MODE)

    def refuse_hidden(self, text: str) -> None:
        """Raise NriRdmaError where podman would not read our folder although the drop-in has this text."""
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
        """Return the files of podman's configuration as it reads them, without ours; `before`: those it reads before
        that drop-in."""
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
    """A file of podman's configuration; `hooks_dir` None: it does not set that."""

    path: Path
    hooks_dir: list[Any] | None


def definition(stage: str, verb: str, settings: HookSettings) -> str:
    """Return the definition of one hook, as oci-hooks(5) describes it.

    podman skips a definition whose program is not there, and starts the container bare. So that of precreate names a
    shell, which fails where our program is not there; what it says then is in podman's error, because podman shows the
    arguments. The others name our program, because crun shows the path of a hook that fails.
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
    """Return the text that has podman read our folder besides `others`, the folders that it reads without."""
    if version >= APPENDS_SINCE:
        folders, note = f'"{FOLDER}", {{append=true}}', "Added to what other files say."
    else:
        listed = [*dict.fromkeys((*others, str(FOLDER)))]
        folders, note = ", ".join(map(json.dumps, listed)), "This podman cannot add to a list: this is the whole one."
    return f"{_MARK}\n# {note}\n[engine]\nhooks_dir = [{folders}]\n"


def parse_version(text: str) -> tuple[int, ...]:
    """Return podman's version out of what `podman --version` prints. Raises NriRdmaError."""
    found = re.search(r"\b(\d+)\.(\d+)(?:\.(\d+))?", text)
    if found is None:
        what = f"this is no version of podman: {text.strip()!r}"
        raise NriRdmaError(ErrorCode.INSTALL, what, where="podman --version", hint="install podman 4.3 or newer")
    return tuple(int(number) for number in found.groups(default="0"))


def _document(path: Path) -> ConfFile:
    """Read a file of podman's configuration. Raises NriRdmaError for one that podman cannot read either."""
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
    """Return the folders that podman reads. {append=true} stays in force until a file says false."""
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
