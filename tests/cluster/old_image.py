"""The image of an older release, made by today's recipe: its code, with the programs that an image needs since then."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.rig.cache import CACHE, PROJECT

COMMIT = "fd34d808"
"""The last commit before there was an image."""
NAME = "localhost/nri-rdma:old"
ARCHIVE = PROJECT / "build/nri-rdma-old.tar"
_OF_TODAY = (
    "deploy",
    "nri_rdma/commands/cli/install.py",
    "nri_rdma/commands/install/changes.py",
    "nri_rdma/commands/install/host.py",
    "nri_rdma/commands/install/release.py",
    "nri_rdma/host/foreign.py",
)
"""The recipe, and what the chart's init container runs."""
_HOOK_OF_TODAY = '"nri_rdma_hook.py", '
"""In the recipe's list of hooks: then the hook was one file."""


def ensure_old_image() -> None:
    """Make the archive, if it is not there. Raises ClusterError."""
    if ARCHIVE.exists():
        return
    tree = CACHE / f"old-{COMMIT}"
    shutil.rmtree(tree, ignore_errors=True)
    try:
        _run("git", "clone", "-q", "--shared", "--no-checkout", str(PROJECT), str(tree))
        _run("git", "-C", str(tree), "checkout", "-q", COMMIT)
        for name in _OF_TODAY:
            source, target = PROJECT / name, tree / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)
        recipe = tree / "deploy/image/tree.py"
        text = recipe.read_text()
        assert _HOOK_OF_TODAY in text, "the recipe's list of hooks is another one"
        recipe.write_text(text.replace(_HOOK_OF_TODAY, ""))
        _run(sys.executable, "-m", "deploy.image", "--out", str(ARCHIVE), "--name", NAME, where=tree)
    finally:
        shutil.rmtree(tree, ignore_errors=True)


def _run(*command: str, where: Path = PROJECT) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command[:4])}: {done.stderr.strip()[-400:]}")
