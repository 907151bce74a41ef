"""A Python with a pyverbs of the test's own, where no device is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.fakes import pyverbs as fake

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
    modules = {} if devices is None else {"device": text or _PYVERBS.format(devices=dict(devices))}
    return _python(folder, modules)


def python_that_sends(folder: Path, *hcas: str) -> Path:
    """An interpreter whose pyverbs is that of tests/fakes, with these devices: each is an expression, `Hca(...)`."""
    devices = "".join(f"HCAS[{hca}.name] = {hca}\n" for hca in hcas)
    modules = {"everything": Path(fake.__file__).read_text() + devices}
    return _python(folder, modules | dict.fromkeys(fake.MODULES, "from pyverbs.everything import *\n"))


def _python(folder: Path, modules: Mapping[str, str]) -> Path:
    packages = folder / "dist-packages"
    packages.mkdir(parents=True)
    if modules:
        (packages / "pyverbs").mkdir()
        (packages / "pyverbs/__init__.py").touch()
    for name, text in modules.items():
        (packages / f"pyverbs/{name}.py").write_text(text)
    run = "import runpy, sys; _, folder, *sys.argv = sys.argv; sys.path.insert(0, folder)"
    run += "; runpy.run_path(sys.argv[0], None, '__main__')"
    program = folder / "python3"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -I ] || exit 9\nshift\nexec {sys.executable} -I -c "{run}" {packages} "$@"\n'
    )
    program.chmod(0o755)
    return program
