"""A Python with a pyverbs of the test's own, where no device is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

_PYVERBS = """
class Attributes:
    max_qp = max_cq = max_mr = max_pd = max_srq = 1000000
    max_mw = 0
    def __init__(self, ahs):
        self.max_ah = ahs

class Context:
    def __init__(self, name):
        if name not in {devices!r}:
            raise OSError(f"Failed to open device {{name}}.\\nErrno: 19")
        self._ahs = {devices!r}[name]
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass
    def query_device(self):
        return Attributes(self._ahs)
"""
WITHOUT_CONTEXTS = """raise ImportError("version `IBVERBS_PRIVATE_59' not found")\n"""
"""As PyPI's pyverbs fails beside the libibverbs of a distribution."""
HANGS = 'import time\nprint(\'{"device": "rxe0", "capacity": {"ah": 32767}}\', flush=True)\ntime.sleep(600)\n'
"""Has answered for one device, and hangs in the next one's driver."""
CRASHES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"


def python_with(folder: Path, devices: Mapping[str, int] | None, *, text: str = "") -> Path:
    """An interpreter whose pyverbs knows these devices, each with its number of address handles; None: it has no
    pyverbs. `text` is another module `pyverbs.device`."""
    packages = folder / "dist-packages"
    packages.mkdir(parents=True)
    if devices is not None:
        (packages / "pyverbs").mkdir()
        (packages / "pyverbs/__init__.py").touch()
        (packages / "pyverbs/device.py").write_text(text or _PYVERBS.format(devices=dict(devices)))
    run = "import runpy, sys; _, folder, *sys.argv = sys.argv; sys.path.insert(0, folder)"
    run += "; runpy.run_path(sys.argv[0], None, '__main__')"
    program = folder / "python3"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -I ] || exit 9\nshift\nexec {sys.executable} -I -c "{run}" {packages} "$@"\n'
    )
    program.chmod(0o755)
    return program
