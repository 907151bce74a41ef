"""Generates nri_rdma/pb from the .proto files beside this script.

Messages only: ttrpc needs no gRPC stubs, and the gRPC clients take bytes. Run `python api/generate.py`
after a change of a contract; tests/unit/test_generated_pb.py fails until that has been done.
"""

from __future__ import annotations

import keyword
import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]  # it ships no types

API = Path(__file__).resolve().parent
PACKAGE = "nri_rdma/pb"
INIT = '"""Generated from api/ by api/generate.py; never edited."""\n'


def generate(root: Path) -> list[Path]:
    """Write root/nri_rdma/pb and return the files written, sorted; raises RuntimeError when protoc refuses."""
    target = root / PACKAGE
    target.mkdir(parents=True, exist_ok=True)
    sources = sorted(path.name for path in API.glob("*.proto"))
    # The virtual prefix makes "nri_rdma/pb/nri.proto" the name in protobuf's process-wide pool, where a bare
    # "nri.proto" or "ttrpc.proto" could meet somebody else's file.
    arguments = ["protoc", f"-I{PACKAGE}={API}", f"--python_out={root}", f"--pyi_out={root}"]
    if protoc.main([*arguments, *(f"{PACKAGE}/{name}" for name in sources)]) != 0:
        raise RuntimeError(f"protoc refused {', '.join(sources)}; its messages are above")
    for stub in target.glob("*_pb2.pyi"):
        stub.write_text(_without_keywords(stub.read_text(encoding="utf-8")), encoding="utf-8")
    (target / "__init__.py").write_text(INIT, encoding="utf-8")
    stems = [name.removesuffix(".proto") for name in sources]
    return sorted([target / "__init__.py", *(target / f"{stem}_pb2{end}" for stem in stems for end in (".py", ".pyi"))])


def _without_keywords(stub: str) -> str:
    """Leave out names that Python cannot say (NRI's enum Field has a None); protoc writes them, type checkers stop."""
    lines = stub.splitlines(keepends=True)
    return "".join(line for line in lines if not keyword.iskeyword(line.strip().partition(":")[0]))


if __name__ == "__main__":
    for path in generate(API.parent):
        sys.stdout.write(f"{path.relative_to(API.parent)}\n")
