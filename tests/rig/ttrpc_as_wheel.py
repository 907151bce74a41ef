"""A plugin of pytest: tests that import nri_rdma.ttrpc get the wheel's pyttrpc, and no other nri_rdma is there."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "nri_rdma"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Import all of pyttrpc, and enter each module under the name that the tests have for it."""
    assert "nri_rdma" not in sys.modules
    sys.modules["nri_rdma"] = empty = ModuleType("nri_rdma")
    empty.__path__ = []  # before the import: the wheel must not find the working tree's either
    wheel = importlib.import_module("pyttrpc")
    vars(empty)["ttrpc"] = wheel
    for name in ("pyttrpc", *(found.name for found in pkgutil.walk_packages(wheel.__path__, "pyttrpc."))):
        sys.modules[f"nri_rdma.ttrpc{name.removeprefix('pyttrpc')}"] = importlib.import_module(name)


def pytest_sessionfinish() -> None:
    """Fail the run when any file of the working tree's package was imported."""
    files = [Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
    if found := [str(file) for file in files if file.is_relative_to(SOURCES)]:
        pytest.exit(f"not the wheel was tested: {', '.join(found)}", returncode=1)
