"""ttrpc's own wheel needs protobuf only, and lies beside nri-rdma's; its tests run against it in `make ttrpc`."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.rig.installed import PROJECT, TTRPC, build_wheel, clean_environment, make_environment

ALONE = """
import importlib, importlib.metadata, pkgutil, sys, pyttrpc
for module in pkgutil.walk_packages(pyttrpc.__path__, "pyttrpc."):
    importlib.import_module(module.name)
print(sorted(found.name for found in importlib.metadata.distributions()))
print([name for name in sys.modules if name.partition(".")[0] == "nri_rdma"])
"""

BESIDE = """
import threading
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
foreign = descriptor_pb2.FileDescriptorProto(name="somebodys/request.proto", package="ttrpc")
foreign.message_type.add(name="Request")
descriptor_pool.Default().AddSerializedFile(foreign.SerializeToString())
message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("ttrpc.Request"))
import nri_rdma.ttrpc, pyttrpc
assert nri_rdma.ttrpc.Client is not pyttrpc.Client
answer = lambda call: b"said " + call.payload
for mine, other in ((nri_rdma.ttrpc, pyttrpc), (pyttrpc, nri_rdma.ttrpc)):
    with mine.Server({("demo.Echo", "Say"): answer}) as server:
        server.serve_unix(mine.__name__)
        with other.Client(mine.__name__) as client:
            assert client.call("demo.Echo", "Say", b"hello", timeout_s=5) == b"said hello"
            try:
                client.call("demo.Echo", "Shout", b"hello", timeout_s=5)
            except other.RpcError as error:
                assert error.code == mine.Code.UNIMPLEMENTED
            else:
                raise AssertionError("Shout is nobody's")
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """nri-rdma's wheel, and ttrpc's own."""
    folder = tmp_path_factory.mktemp("wheels")
    return build_wheel(PROJECT, folder / "nri-rdma"), build_wheel(TTRPC, folder / "ttrpc")


@pytest.fixture(scope="module")
def alone(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with ttrpc's wheel."""
    return make_environment(tmp_path_factory.mktemp("alone") / "venv", wheels[1])


@pytest.fixture(scope="module")
def both(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with both wheels."""
    return make_environment(tmp_path_factory.mktemp("both") / "venv", *wheels)


def test_all_of_it_imports_where_nothing_but_protobuf_is(alone: Path, tmp_path: Path) -> None:
    assert _run(alone, ALONE, tmp_path).splitlines() == ["['protobuf', 'pyttrpc']", "[]"]


def test_its_readme_is_true(alone: Path, tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", (TTRPC / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert "assert" in program
    _run(alone, program, tmp_path)


def test_it_holds_what_lies_in_the_repository(wheels: tuple[Path, Path]) -> None:
    sources = PROJECT / "nri_rdma/ttrpc"
    with zipfile.ZipFile(wheels[1]) as wheel:
        held = {name.removeprefix("pyttrpc/"): wheel.read(name) for name in _files(wheels[1])}
    found = {path.relative_to(sources).as_posix(): path.read_bytes() for path in sources.rglob("*.py*")}
    assert held == {name: code for name, code in found.items() if "__pycache__" not in name} | {"py.typed": b""}


def test_the_two_wheels_share_no_file(wheels: tuple[Path, Path]) -> None:
    ours, own = map(_files, wheels)
    assert (ours & own, {name.partition("/")[0] for name in own}) == (set(), {"pyttrpc"})


@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_one_process_has_both_and_somebody_s_message_of_the_same_name(
    both: Path, tmp_path: Path, implementation: str
) -> None:
    _run(both, BESIDE, tmp_path, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=implementation)


def _files(wheel: Path) -> set[str]:
    """The names in the wheel that are not about the wheel."""
    with zipfile.ZipFile(wheel) as held:
        return {name for name in held.namelist() if ".dist-info/" not in name}


def _run(python: Path, program: str, folder: Path, **environment: str) -> str:
    """What the program prints; it must end well."""
    done = subprocess.run(
        [python, "-c", program],
        cwd=folder,
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
