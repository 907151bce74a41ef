"""Generates the rig's CRI messages from cri.proto: `python -m tests.rig.generate`."""

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PB = HERE / "pb"
NAMES = ("cri_pb2.py", "cri_pb2.pyi")


def generate(target: Path) -> None:
    """Writes the generated modules into a folder."""
    # protoc asks for a file below its include path; it records the path from there, so "cri.proto" stays relative.
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={HERE}"]
    command += [f"--python_out={target}", f"--pyi_out={target}", "cri.proto"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"protoc refused cri.proto: {done.stderr.strip()}")


def drift() -> list[str]:
    """The checked-in modules that differ from what cri.proto gives now."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        return [name for name in NAMES if (PB / name).read_text() != (Path(folder) / name).read_text()]


if __name__ == "__main__":
    PB.mkdir(exist_ok=True)
    generate(PB)
