"""nri_rdma/pb is what api/ generates: nobody edits it, and nobody forgets to run the generator."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
CHECKED_IN = REPOSITORY / "nri_rdma" / "pb"


def test_checked_in_code_equals_what_the_contracts_generate(tmp_path: Path) -> None:
    written = _generator().generate(tmp_path)
    assert {path.name for path in written} == {path.name for path in CHECKED_IN.glob("*.py*")}
    for path in written:
        expected, found = path.read_bytes(), (CHECKED_IN / path.name).read_bytes()
        assert found == expected, f"nri_rdma/pb/{path.name} differs: run `python api/generate.py`"


def test_only_messages_are_generated() -> None:
    assert not [path.name for path in CHECKED_IN.glob("*_grpc*")]


def _generator() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="grpcio-tools (group dev) generates the code")
    spec = importlib.util.spec_from_file_location("api_generate", REPOSITORY / "api" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
