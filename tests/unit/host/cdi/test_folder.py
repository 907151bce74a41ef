"""CDI directories: what is sound is served, what is not is told, and nothing there can block or mislead."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from nri_rdma.cdi.document import MAX_BYTES
from nri_rdma.cdi.registry import Registry
from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.host.cdi import folder as folder_module
from nri_rdma.host.cdi.folder import read_file, read_registry


def spec(*devices: str, kind: str = "ve/cl", mark: str = "x") -> str:
    made = [{"name": name, "containerEdits": {"env": [f"FROM={mark}"]}} for name in devices]
    return json.dumps({"cdiVersion": "0.3.0", "kind": kind, "devices": made})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with one sound spec; the device ve/cl=good."""
    made = tmp_path / "cdi"
    made.mkdir()
    (made / "good.json").write_text(spec("good"))
    return made


def only_good(registry: Registry) -> list[tuple[ErrorCode, str]]:
    """The problems of a registry that serves ve/cl=good and nothing else: codes and names of files."""
    assert list(registry.devices) == ["ve/cl=good"]
    return [(problem.code, Path(problem.file).name) for problem in registry.problems]


def in_time(directory: Path) -> Registry:
    """The registry, or an error when reading blocks."""
    found: list[Registry] = []
    reader = threading.Thread(target=lambda: found.append(read_registry([directory])), daemon=True)
    reader.start()
    reader.join(10)
    assert found, "reading the directory blocks"
    return found[0]


def test_a_directory_that_does_not_exist_has_no_devices(tmp_path: Path) -> None:
    assert read_registry([tmp_path / "none"]) == Registry(devices={})


def test_a_device_comes_with_its_own_edits_and_those_of_its_spec(tmp_path: Path) -> None:
    text = """
cdiVersion: 0.3.0
kind: ve/cl
containerEdits: {deviceNodes: [{path: /dev/infiniband/rdma_cm}, {path: /dev/other}]}
devices: [{name: a, containerEdits: {deviceNodes: [{path: /dev/infiniband/uverbs0}]}}]
"""
    (tmp_path / "a.yaml").write_text(text)
    device = read_registry([tmp_path]).devices["ve/cl=a"]
    assert [node.path for node in device.nodes] == ["/dev/infiniband/rdma_cm", "/dev/other", "/dev/infiniband/uverbs0"]
    assert [node.path for node in device.rdma_nodes] == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
    assert device.file == str(tmp_path / "a.yaml")


def test_a_node_is_rdmas_by_where_it_is_on_the_host(tmp_path: Path) -> None:
    text = """
cdiVersion: 0.5.0
kind: ve/cl
devices:
- {name: renamed, containerEdits: {deviceNodes: [{path: /dev/a, hostPath: /dev/infiniband/uverbs0}]}}
- {name: other, containerEdits: {deviceNodes: [{path: /dev/infiniband/uverbs0, hostPath: /dev/null}]}}
"""
    (tmp_path / "a.yaml").write_text(text)
    devices = read_registry([tmp_path]).devices
    assert {name: len(device.rdma_nodes) for name, device in devices.items()} == {"ve/cl=renamed": 1, "ve/cl=other": 0}


@pytest.mark.parametrize("name", ["a.yml", "a.json.tmp", ".a.json.1.tmp", "a", "a.JSON"])
def test_other_files_are_not_looked_at(folder: Path, name: str) -> None:
    (folder / name).write_text(spec("other"))
    assert only_good(read_registry([folder])) == []


def test_a_directory_within_is_not_looked_into(folder: Path) -> None:
    (folder / "inner.json").mkdir()
    (folder / "inner.json/a.json").write_text(spec("other"))
    assert only_good(read_registry([folder])) == []


def test_a_broken_file_beside_a_good_one_is_told_and_the_good_one_served(folder: Path) -> None:
    (folder / "foreign.yaml").write_text("cdiVersion: 0.3.0\nkind: ab/cd\ndevices: [{name: a, containeredits: {}}]\n")
    assert only_good(read_registry([folder])) == [
        (ErrorCode.CDI_UNKNOWN_FIELD, "foreign.yaml"),
        (ErrorCode.CDI_VALUE, "foreign.yaml"),
    ]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.CDI_SYNTAX),
        (b"\0" * 4096, ErrorCode.CDI_SYNTAX),
        (b"\x7fELF\x02\x01\x01\0" + bytes(range(256)), ErrorCode.CDI_SYNTAX),
        (b"[" * 100_000, ErrorCode.CDI_SIZE),
        (b"{" * 900, ErrorCode.CDI_SYNTAX),
        (b"a: &a [*a, *a]", ErrorCode.CDI_SYNTAX),
        (b"kind: Pod\nmetadata: {name: a}\n", ErrorCode.CDI_VALUE),
    ],
    ids=["empty", "zeroes", "a program", "brackets", "braces", "an alias of itself", "a pod"],
)
def test_whatever_lies_beside_a_good_spec_is_told_and_the_good_one_served(
    folder: Path, data: bytes, code: ErrorCode
) -> None:
    (folder / "foreign.json").write_bytes(data)
    problems = only_good(in_time(folder))
    assert {name for _, name in problems} == {"foreign.json"}
    assert code in {problem for problem, _ in problems}


def test_a_huge_file_is_not_read(folder: Path) -> None:
    with (folder / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    assert only_good(in_time(folder)) == [(ErrorCode.CDI_SIZE, "huge.json")]


def test_a_file_of_the_largest_size_is_read(folder: Path) -> None:
    text = spec("other")
    (folder / "large.json").write_text(text + " " * (MAX_BYTES - len(text)))
    assert list(read_registry([folder]).devices) == ["ve/cl=good", "ve/cl=other"]


def test_a_fifo_does_not_block(folder: Path) -> None:
    os.mkfifo(folder / "fifo.json")
    assert only_good(in_time(folder)) == [(ErrorCode.CDI_FILE, "fifo.json")]


def test_a_socket_is_no_file(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket.json"))
    problems = read_registry([folder]).problems
    assert [problem.what for problem in problems] == ["it is a socket"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make device nodes")
def test_a_device_is_not_opened(folder: Path) -> None:
    os.mknod(folder / "zero.json", 0o20666, os.makedev(1, 5))
    registry = in_time(folder)
    assert only_good(registry) == [(ErrorCode.CDI_FILE, "zero.json")]
    assert registry.problems[0].what == "it is a character device"


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/self/mem", "../outside.json", "../cdi/../outside.json", "."])
def test_a_link_that_leaves_the_directory_is_not_followed(folder: Path, target: str) -> None:
    (folder.parent / "outside.json").write_text(spec("outside"))
    (folder / "link.json").symlink_to(target)
    assert only_good(in_time(folder)) == [(ErrorCode.CDI_FILE, "link.json")]


def test_a_link_over_a_directory_that_leaves_is_not_followed(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere/a.json").write_text(spec("outside"))
    (folder / "data").symlink_to(folder.parent / "elsewhere")
    (folder / "link.json").symlink_to("data/a.json")
    assert only_good(read_registry([folder])) == [(ErrorCode.CDI_FILE, "link.json")]


@pytest.mark.parametrize("target", ["link.json", "nothing.json"])
def test_a_link_to_nothing_is_told(folder: Path, target: str) -> None:
    (folder / "link.json").symlink_to(target)
    assert only_good(read_registry([folder])) == [(ErrorCode.CDI_FILE, "link.json")]


@pytest.mark.parametrize(
    "links",
    [
        {"a.json": "b", "b": "a.json"},
        {"a.json": "inner/a", "inner": "."},
        {"a.json": "inner/inner/inner/a.json", "inner": "."},
        {"a.json": "up/cdi/a.json", "up": ".."},
    ],
    ids=["of two", "over a directory to nothing", "over a directory to itself", "over the directory above"],
)
def test_a_loop_of_links_is_told_and_does_not_block(folder: Path, links: dict[str, str]) -> None:
    for name, target in links.items():
        (folder / name).symlink_to(target)
    assert only_good(in_time(folder)) == [(ErrorCode.CDI_FILE, "a.json")]


def test_a_link_within_the_directory_to_what_is_no_file_is_told_and_does_not_block(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "inner").mkdir()
    (folder / "fifo.json").symlink_to("pipe")
    (folder / "folder.json").symlink_to("inner")
    assert only_good(in_time(folder)) == [(ErrorCode.CDI_FILE, "fifo.json"), (ErrorCode.CDI_FILE, "folder.json")]


def test_a_huge_file_behind_a_link_is_not_read(folder: Path) -> None:
    with (folder / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (folder / "link.json").symlink_to("huge")
    assert only_good(in_time(folder)) == [(ErrorCode.CDI_SIZE, "link.json")]


def test_links_within_the_directory_are_followed_as_kubernetes_mounts_files(tmp_path: Path) -> None:
    (tmp_path / "..2026_11_21").mkdir()
    (tmp_path / "..2026_11_21/a.json").write_text(spec("mounted"))
    (tmp_path / "..data").symlink_to("..2026_11_21")
    (tmp_path / "a.json").symlink_to("..data/a.json")
    registry = read_registry([tmp_path])
    assert (list(registry.devices), registry.problems) == (["ve/cl=mounted"], ())


def test_the_directory_itself_may_be_a_link_as_var_run_is(folder: Path) -> None:
    (folder.parent / "run").symlink_to(folder)
    (folder / "link.yaml").symlink_to("within.txt")
    (folder / "within.txt").write_text(spec("linked"))
    assert list(read_registry([folder.parent / "run"]).devices) == ["ve/cl=good", "ve/cl=linked"]


def test_a_link_that_comes_while_the_file_is_opened_is_not_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way is looked up, then a step of it becomes a link."""
    (folder / "inner").mkdir()
    (folder / "inner/a.txt").write_text(spec("first"))
    (folder / "link.json").symlink_to("inner/a.txt")
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere/a.txt").write_text(spec("outside"))
    look_up = folder_module._steps

    def and_then_swap(directory: Path, name: str) -> tuple[str, ...]:
        steps = look_up(directory, name)
        if name == "link.json":
            (folder / "inner").rename(folder / "old")
            (folder / "inner").symlink_to(folder.parent / "elsewhere")
        return steps

    monkeypatch.setattr(folder_module, "_steps", and_then_swap)
    assert only_good(read_registry([folder])) == [(ErrorCode.CDI_FILE, "link.json")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_told(folder: Path) -> None:
    (folder / "secret.json").write_text(spec("secret"))
    (folder / "secret.json").chmod(0)
    assert only_good(read_registry([folder])) == [(ErrorCode.CDI_FILE, "secret.json")]


def test_a_file_in_the_place_of_the_directory_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problems = read_registry([tmp_path / "file"]).problems
    assert [(problem.code, problem.file) for problem in problems] == [(ErrorCode.CDI_FILE, str(tmp_path / "file"))]


def test_too_many_files_are_told_and_the_first_served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MAX_FILES", 1)
    (folder / "other.json").write_text(spec("other"))
    assert only_good(read_registry([folder])) == [(ErrorCode.CDI_SIZE, "cdi")]


def test_descriptors_are_given_back(folder: Path) -> None:
    os.mkfifo(folder / "fifo.json")
    (folder / "broken.json").write_text("{")
    (folder / "link.json").symlink_to("good.json")
    (folder / "out.json").symlink_to("/etc/passwd")
    before = open_descriptors()
    read_registry([folder])
    assert open_descriptors() == before


def open_descriptors() -> set[int]:
    found = set()
    for number in range(256):
        with suppress(OSError):  # it is not open
            os.fstat(number)
            found.add(number)
    return found


# Which file counts


def folders(tmp_path: Path, *names: str) -> list[Path]:
    made = [tmp_path / name for name in names]
    for one in made:
        one.mkdir()
    return made


def test_a_later_directory_hides_a_device_of_an_earlier_one(tmp_path: Path) -> None:
    static, dynamic = folders(tmp_path, "etc", "run")
    (static / "a.json").write_text(spec("both", "static", mark="etc"))
    (dynamic / "a.json").write_text(spec("both", mark="run"))
    registry = read_registry([static, dynamic])
    assert {name: it.device.edits.env for name, it in registry.devices.items()} == {
        "ve/cl=both": ("FROM=run",),
        "ve/cl=static": ("FROM=etc",),
    }
    assert registry.problems == ()


def test_a_device_in_two_files_of_a_directory_is_nobodys_and_both_files_are_named(folder: Path) -> None:
    (folder / "a.json").write_text(spec("twice", "once"))
    (folder / "b.yaml").write_text(spec("twice"))
    registry = read_registry([folder])
    assert list(registry.devices) == ["ve/cl=good", "ve/cl=once"]
    (problem,) = registry.problems
    assert (problem.code, problem.file) == (ErrorCode.CDI_CONFLICT, str(folder / "a.json"))
    assert str(folder / "b.yaml") in problem.what
    assert "ve/cl=twice" in problem.what


def test_such_a_conflict_is_not_healed_by_a_later_directory(tmp_path: Path) -> None:
    """Runtimes do not heal it either: tests/interop."""
    static, dynamic = folders(tmp_path, "etc", "run")
    (static / "a.json").write_text(spec("a"))
    (static / "b.json").write_text(spec("a"))
    (dynamic / "c.json").write_text(spec("a"))
    assert read_registry([static, dynamic]).devices == {}


def test_two_files_of_one_kind_give_the_devices_of_both(tmp_path: Path) -> None:
    static, dynamic = folders(tmp_path, "etc", "run")
    (static / "a.json").write_text(spec("a"))
    (static / "b.yaml").write_text(spec("b"))
    (dynamic / "a.json").write_text(spec("c"))
    registry = read_registry([static, dynamic])
    assert {name: Path(it.file).name for name, it in registry.devices.items()} == {
        "ve/cl=a": "a.json",
        "ve/cl=b": "b.yaml",
        "ve/cl=c": "a.json",
    }
    assert registry.problems == ()


def test_a_device_in_three_files_is_one_conflict_that_names_them_all(folder: Path) -> None:
    for name in ("a.json", "b.json", "c.json"):
        (folder / name).write_text(spec("thrice"))
    (problem,) = read_registry([folder]).problems
    assert (problem.code, Path(problem.file).name) == (ErrorCode.CDI_CONFLICT, "a.json")
    assert f"{folder}/b.json and in {folder}/c.json" in problem.what


def test_the_same_name_of_two_kinds_is_no_conflict(folder: Path) -> None:
    (folder / "a.json").write_text(spec("good", kind="ve/other"))
    assert list(read_registry([folder]).devices) == ["ve/cl=good", "ve/other=good"]


# One file


def test_a_named_file_may_be_a_link_and_have_any_name(folder: Path) -> None:
    (folder.parent / "link").symlink_to(folder / "good.json")
    assert read_file(folder.parent / "link") == spec("good").encode()


@pytest.mark.parametrize("path", ["/dev/zero", "/", "/no/such/file"])
def test_a_named_file_that_is_none_is_told(path: str) -> None:
    with pytest.raises(CdiError) as caught:
        read_file(Path(path))
    assert caught.value.code is ErrorCode.CDI_FILE
    assert caught.value.where == path
