"""Images of older commits, made by today's recipe: their code, with the programs that an image needs since then."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.rig.cache import CACHE, PROJECT

COMMITS = {"first": "fd34d808", "before": "e0c336a6"}
"""By the tags of their images: the last commit before there was an image, which has no guard resource either, and the
last one before there was a chart."""
ARCHIVES = {tag: PROJECT / f"build/nri-rdma-{tag}.tar" for tag in COMMITS}
_OF_TODAY = {
    "deploy": "deploy",
    "nri_rdma/commands/install/cli.py": "nri_rdma/commands/cli/install.py",
    "nri_rdma/commands/install/own_files.py": "nri_rdma/commands/install/own_files.py",
    "nri_rdma/commands/common/changes.py": "nri_rdma/commands/cli/changes.py",
    "nri_rdma/commands/install/host.py": "nri_rdma/commands/install/host.py",
    "nri_rdma/commands/install/image_folder.py": "nri_rdma/commands/install/image_folder.py",
    "nri_rdma/host/foreign.py": "nri_rdma/host/foreign.py",
}
"""The recipe, and what the chart's init container runs: today's path, and the path in the older commits."""
_SHARED_NOW, _SHARED_THEN = "nri_rdma.commands.common.", "nri_rdma.commands.cli."
_MODULE_OF_THE_HOOK = '"nri_rdma_hook.py", '
"""In the recipe's list of hooks; the hook was one file once."""


def make_old_images() -> None:
    """Make the archives. Raises ClusterError."""
    for tag, commit in COMMITS.items():
        tree = CACHE / f"old-{commit}"
        shutil.rmtree(tree, ignore_errors=True)
        try:
            _check_out(tree, commit)
            archive = ("--out", str(ARCHIVES[tag]), "--name", f"localhost/nri-rdma:{tag}")
            _run(sys.executable, "-m", "deploy.image", *archive, where=tree)
        finally:
            shutil.rmtree(tree, ignore_errors=True)


def _check_out(tree: Path, commit: str) -> None:
    _run("git", "clone", "-q", "--shared", "--no-checkout", str(PROJECT), str(tree))
    _run("git", "-C", str(tree), "checkout", "-q", commit)
    shutil.rmtree(tree / "deploy", ignore_errors=True)
    for today, then in _OF_TODAY.items():
        source, target = PROJECT / today, tree / then
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.write_text(source.read_text().replace(_SHARED_NOW, _SHARED_THEN))
    if not (tree / "hooks/nri_rdma_hook.py").exists():
        recipe = tree / "deploy/image/tree.py"
        text = recipe.read_text()
        assert _MODULE_OF_THE_HOOK in text, "the recipe's list of hooks is another one"
        recipe.write_text(text.replace(_MODULE_OF_THE_HOOK, ""))


def _run(*command: str, where: Path = PROJECT) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command[:4])}: {done.stderr.strip()[-400:]}")
