"""A wheel out of a checkout says which commit it was made of (nri_rdma/observe/revision.py reads it)."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any  # Any: hatchling's own

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RevisionHook(BuildHookInterface[Any]):
    """Adds the file to a wheel. Where git says nothing there is none."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add it, unless the package stays where it is: an editable install would say an old commit."""
        commit = _commit(self.root)
        if commit and version != "editable":
            self._folder = tempfile.TemporaryDirectory()
            file = Path(self._folder.name) / "REVISION"
            file.write_text(f"{commit}\n")
            build_data["force_include"][str(file)] = "nri_rdma/REVISION"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the file: the wheel has it."""
        if self._folder is not None:
            self._folder.cleanup()


def _commit(folder: str) -> str:
    """Return the commit, with a mark if files differ from it; "" where this is no checkout."""
    if not (Path(folder) / ".git").exists():
        return ""
    command = ["git", "-C", folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=-changed"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
