"""The hook program, as podman and Docker need it: one copy for both, where no package is upgraded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from nri_rdma.commands.hooked_cdi import HOOK, PROGRAM
from nri_rdma.commands.install.changes import OwnFile
from nri_rdma.config.settings import Settings

PROGRAM_MODE = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """The settings that all hooks of a node need; `socket` None: the hook's default."""

    annotation_prefix: str
    socket: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return what a daemon with these settings needs."""
        socket = settings.hook_socket if settings.state_dir != Settings().state_dir else None
        return cls(annotation_prefix=settings.annotation_prefix, socket=socket)

    def words(self, verb: str) -> tuple[str, ...]:
        """Return the arguments of the hook that does this."""
        prefix = ("--annotation-prefix", self.annotation_prefix) if verb != "return" else ()
        socket = ("--socket", str(self.socket)) if self.socket is not None else ()
        return (verb, *prefix, *socket)


def at(root: Path, path: Path) -> Path:
    """Return where a file of this machine is below a root folder."""
    return root / path.relative_to("/")


def program_file(root: Path, source: Path) -> OwnFile:
    """Return the hook, a copy of `source`. Raises OSError."""
    return OwnFile(
        path=at(root, HOOK),
        data=source.read_bytes(),
        is_ours=_is_our_program,
        mode=PROGRAM_MODE,
        copy_of=source,
    )


def _is_our_program(data: bytes) -> bool:
    return f'PROGRAM = "{PROGRAM}"'.encode() in data
