"""docs/ttrpc.md shows what is so: its blocks run, its frames and tables are those of the library."""

from __future__ import annotations

import importlib.util
import re
import shlex
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire import ClientConnection, Rejected, Request, ServerConnection

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "ttrpc.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAMS = [block for block in BLOCKS if re.match(r"# \w+\.py\n", block)]
"""Blocks that are files: tests/wheel runs them as processes."""
SNIPPETS = [block for block in BLOCKS if block not in PROGRAMS]
TITLES = [re.findall(r"^## (.*)$", PAGE[: PAGE.index(block)], re.MULTILINE)[-1] for block in SNIPPETS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's .proto file, and what the page's command makes of it."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools (group dev) has the page's protoc")
    folder = tmp_path_factory.mktemp("made")
    ((name, contract),) = re.findall(r"^```proto\n// (\w+\.proto)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^```sh\npython (.*)\n```$", PAGE, re.MULTILINE)
    (folder / name).write_text(contract)
    subprocess.run([sys.executable, *shlex.split(command)], cwd=folder, check=True)
    return folder


def test_the_pages_command_makes_what_the_page_says(made: Path) -> None:
    assert sorted(path.name for path in made.iterdir()) == ["words.proto", "words_pb2.py", "words_pb2.pyi"]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=TITLES)
def test_the_block_runs(snippet: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(made)
    exec(compile(snippet, "docs/ttrpc.md", "exec"), {"__name__": "__main__"})  # each is a program of its own


def test_no_block_is_empty_of_claims() -> None:
    assert len(PROGRAMS) == 2
    assert [title for title, snippet in zip(TITLES, SNIPPETS, strict=True) if "assert" not in snippet] == []


def test_the_frames_of_the_page_are_those_of_a_call() -> None:
    (listing,) = re.findall(r"^```hex\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    frames = {who: bytes.fromhex(rest) for who, rest in (line.split(maxsplit=1) for line in listing.splitlines())}
    client, server = ClientConnection(), ServerConnection()
    _stream_id, request = client.request("demo.Echo", "Say", b"hello")
    assert frames["caller"] == request
    server.receive_data(request)
    event = server.next_event()
    assert isinstance(event, Request)
    assert frames["server"] == server.respond(event.stream_id, b"you said " + event.payload)


@pytest.mark.parametrize(
    "frames",
    [
        [(0, 2, 1, b"")],
        [(0, 1, 1, b""), (0, 1, 1, b"")],
        [(0, 1, 3, b"x")],
        [(2, 1, 1, b""), (1, 1, 3, b""), (0, 1, 3, b"x")],
        [(2, 1, 1, b""), (1, 1, 3, b"x")],
    ],
    ids=["even id", "id used twice", "data on no stream", "data after the end", "data with the end"],
)
def test_the_pages_errors_are_those_of_the_library(frames: list[tuple[int, int, int, bytes]]) -> None:
    server = ServerConnection()
    for flags, stream_id, kind, data in frames:
        server.receive_data(struct.pack(">IIBB", len(data), stream_id, kind, flags) + data)
    events = list(iter(server.next_event, None))
    rejected = events[-1]
    assert isinstance(rejected, Rejected)
    status = pb.Response.FromString(rejected.reply[10:]).status
    assert f"| {status.code} | `{status.message}` |" in PAGE


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_without_the_markers_is_refused(generator: ModuleType) -> None:
    with pytest.raises(ValueError, match="lacks a line"):
        generator.page_with_tables("# ttrpc\n")
