"""Generates nri_rdma/pb and nri_rdma/ttrpc/pb from the .proto files beside this script.

Messages only: ttrpc needs no gRPC stubs, and the gRPC clients take bytes. Run `python api/generate.py`
after a change of a contract; tests/unit/pb/test_generated_pb.py fails until that has been done.
"""

from __future__ import annotations

import keyword
import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]  # it ships no types

API = Path(__file__).resolve().parent
PACKAGE = "nri_rdma/pb"
TTRPC_PACKAGE = "nri_rdma/ttrpc/pb"
TTRPC = "ttrpc.proto"
INIT = '"""Generated from api/ by api/generate.py; never edited."""\n'
_PRIVATE = (
    (
        "from google.protobuf import descriptor_pool as _descriptor_pool\n",
        "from google.protobuf import descriptor_pool as _descriptor_pool\n"
        "from google.protobuf import message_factory as _message_factory\n",
    ),
    ("from google.protobuf import symbol_database as _symbol_database\n", ""),
    ("_sym_db = _symbol_database.Default()\n", ""),
    ("_descriptor_pool.Default().", "_descriptor_pool.DescriptorPool()."),
    (
        "_builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, 'ttrpc_pb2', _globals)\n",
        "for _name, _kind in DESCRIPTOR.message_types_by_name.items():\n"
        "  _globals[_name] = _message_factory.GetMessageClass(_kind)\n",
    ),
)
"""What protoc writes, and what has to be there for messages that are in no pool but their own."""


def generate(root: Path) -> list[Path]:
    """Write both packages below root and return the files written, sorted; raises RuntimeError when protoc refuses."""
    contracts = sorted(path.name for path in API.glob("*.proto") if path.name != TTRPC)
    # The virtual prefix makes "nri_rdma/pb/nri.proto" the name in protobuf's process-wide pool, where a bare
    # "nri.proto" could meet somebody else's file.
    written = _compiled(root, root / PACKAGE, PACKAGE, contracts)
    # ttrpc is also a distribution of its own: its code must not say where it lies (adr/0021).
    written += _compiled(root / TTRPC_PACKAGE, root / TTRPC_PACKAGE, "", [TTRPC])
    ttrpc = root / TTRPC_PACKAGE / "ttrpc_pb2.py"
    ttrpc.write_text(_with_its_own_pool(ttrpc.read_text(encoding="utf-8")), encoding="utf-8")
    return sorted(written)


def _compiled(out: Path, target: Path, prefix: str, sources: list[str]) -> list[Path]:
    """Write the package `target`; protoc's files go to `out`, under the sources' names with the prefix."""
    target.mkdir(parents=True, exist_ok=True)
    arguments = ["protoc", f"-I{prefix}={API}", f"--python_out={out}", f"--pyi_out={out}"]
    if protoc.main([*arguments, *(f"{prefix}/{name}".lstrip("/") for name in sources)]) != 0:
        raise RuntimeError(f"protoc refused {', '.join(sources)}; its messages are above")
    for stub in target.glob("*_pb2.pyi"):
        stub.write_text(_without_keywords(stub.read_text(encoding="utf-8")), encoding="utf-8")
    (target / "__init__.py").write_text(INIT, encoding="utf-8")
    stems = [name.removesuffix(".proto") for name in sources]
    return [target / "__init__.py", *(target / f"{stem}_pb2{end}" for stem in stems for end in (".py", ".pyi"))]


def _with_its_own_pool(code: str) -> str:
    """Put the messages into a pool of their own, so that no file of the process with the same symbols meets them."""
    for written, wanted in _PRIVATE:
        if code.count(written) != 1:
            raise RuntimeError(f"protoc writes other code than this script knows: {written!r} is not there once")
        code = code.replace(written, wanted)
    return code


def _without_keywords(stub: str) -> str:
    """Leave out names that Python cannot say (NRI's enum Field has a None); protoc writes them, type checkers stop."""
    lines = stub.splitlines(keepends=True)
    return "".join(line for line in lines if not keyword.iskeyword(line.strip().partition(":")[0]))


if __name__ == "__main__":
    for path in generate(API.parent):
        sys.stdout.write(f"{path.relative_to(API.parent)}\n")
