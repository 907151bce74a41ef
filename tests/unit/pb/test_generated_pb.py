"""nri_rdma/pb and nri_rdma/ttrpc/pb are what api/ generates: nobody edits them, nobody forgets the generator."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
CHECKED_IN = (REPOSITORY / "nri_rdma/pb", REPOSITORY / "nri_rdma/ttrpc/pb")


def test_checked_in_code_equals_what_the_contracts_generate(tmp_path: Path) -> None:
    written = _generator().generate(tmp_path)
    names = {path.relative_to(tmp_path) for path in written}
    there = {path.relative_to(REPOSITORY) for folder in CHECKED_IN for path in folder.glob("*.py*")}
    assert names == there, "run `make generate`, and remove what it does not write"
    for name in names:
        expected, found = (tmp_path / name).read_bytes(), (REPOSITORY / name).read_bytes()
        assert found == expected, f"{name} is not what api/*.proto gives: run `make generate`"


def test_only_messages_are_generated() -> None:
    assert not [path.name for folder in CHECKED_IN for path in folder.glob("*_grpc*")]


def test_code_of_ttrpc_that_cannot_have_a_pool_of_its_own_is_refused() -> None:
    with pytest.raises(RuntimeError, match="other code than this script knows"):
        _generator()._with_its_own_pool("DESCRIPTOR = _descriptor_pool.Default().Add(b'')\n")


def _generator() -> ModuleType:
    pytest.importorskip("grpc_tools", reason="grpcio-tools (group dev) generates the code")
    spec = importlib.util.spec_from_file_location("api_generate", REPOSITORY / "api" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
