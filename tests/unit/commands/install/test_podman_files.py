"""The files that have podman call our hook, for each of its releases."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.commands.common.changes import to_write
from nri_rdma.commands.install.hook import HookSettings
from nri_rdma.commands.install.podman_files import FOLDER, PodmanFiles, definition, parse_version
from nri_rdma.errors import ErrorCode, NriRdmaError

SETTINGS = HookSettings(annotation_prefix="rdma.noderesource.dev")
HOOK = Path(__file__).parents[4] / "hooks/nri-rdma-oci-hook"
DEFAULT = "/usr/share/containers/oci/hooks.d"
OLD, NEW = (4, 3, 1), (5, 4, 2)


@pytest.fixture
def files(tmp_path: Path) -> PodmanFiles:
    return PodmanFiles(settings=SETTINGS, root=tmp_path)


def configure(files: PodmanFiles, name: str, hooks_dir: str) -> Path:
    path = files.root / "etc/containers" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'[containers]\nlog_driver = "x"\n[engine]\nhooks_dir = [{hooks_dir}]\n')
    return path


def folders(files: PodmanFiles, version: tuple[int, ...]) -> Any:
    return tomllib.loads(files.drop_in(version).data.decode())["engine"]["hooks_dir"]


@pytest.mark.parametrize(
    ("text", "version"),
    [("podman version 4.3.1\n", (4, 3, 1)), ("podman version 5.8.6", (5, 8, 6)), ("podman version 6.0-dev", (6, 0, 0))],
)
def test_the_version_is_read(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(NriRdmaError) as caught:
        parse_version("podman: not found")
    assert caught.value.code is ErrorCode.INSTALL


def test_a_podman_that_can_add_to_a_list_is_told_to(files: PodmanFiles) -> None:
    configure(files, "containers.conf", '"/their/hooks.d"')
    assert folders(files, NEW) == [str(FOLDER), {"append": True}]


def test_one_that_cannot_gets_the_whole_list(files: PodmanFiles) -> None:
    assert folders(files, OLD) == [DEFAULT, str(FOLDER)]
    configure(files, "containers.conf", '"/a"')
    configure(files, "containers.conf.d/10-b.conf", '"/b", "/c"')
    assert folders(files, OLD) == ["/b", "/c", str(FOLDER)]


def test_the_whole_list_does_not_grow_when_it_is_written_again(files: PodmanFiles) -> None:
    first = files.drop_in(OLD)
    (change,) = to_write([first])
    change.carry_out()
    assert to_write([files.drop_in(OLD)]) == ()


@pytest.mark.parametrize(("version", "folders"), [(OLD, '"/z"'), (NEW, '"/z", {append=false}')])
def test_a_later_file_that_hides_ours_is_named(files: PodmanFiles, version: tuple[int, ...], folders: str) -> None:
    later = configure(files, "containers.conf.d/99-z.conf", folders)
    with pytest.raises(NriRdmaError) as caught:
        files.drop_in(version)
    assert caught.value.code is ErrorCode.INSTALL
    assert str(later) in str(caught.value)


def test_a_later_file_that_adds_or_names_ours_does_not_hide_it(files: PodmanFiles) -> None:
    configure(files, "containers.conf.d/98-y.conf", '"/z", {append=true}')
    configure(files, "containers.conf.d/99-z.conf", f'"/z", "{FOLDER}", {{append=false}}')
    assert str(FOLDER) in folders(files, NEW)


def test_that_appending_stays_in_force_is_known(files: PodmanFiles) -> None:
    """podman goes on adding after a file with {append=true}."""
    configure(files, "containers.conf.d/99-z.conf", '"/z"')
    assert folders(files, NEW) == [str(FOLDER), {"append": True}]
    with pytest.raises(NriRdmaError):
        files.drop_in(OLD)


def test_a_file_that_podman_cannot_read_is_named(files: PodmanFiles) -> None:
    path = files.root / "etc/containers/containers.conf"
    path.parent.mkdir(parents=True)
    path.write_text("[engine\n")
    with pytest.raises(NriRdmaError) as caught:
        files.drop_in(NEW)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "asks"),
    [
        ("rdma.noderesource.dev", True),
        ("rdma.noderesource.dev/pod", True),
        ("rdma.noderesource.dev/container.a", True),
        ("rdma.noderesource.dev.x", False),
        ("rdma-noderesource.dev/pod", False),
        ("x.rdma.noderesource.dev/pod", False),
    ],
)
def test_the_hooks_are_for_containers_with_our_annotations(key: str, asks: bool) -> None:
    ((pattern, value),) = json.loads(definition("precreate", "prepare", SETTINGS))["when"]["annotations"].items()
    assert bool(re.search(pattern, key)) is asks
    assert re.search(value, "") is not None


def test_a_hook_fails_where_the_program_is_not_there_and_tells_what_to_do(tmp_path: Path) -> None:
    hook = json.loads(definition("precreate", "prepare", SETTINGS))["hook"]
    missing = [it.replace("/usr/local/lib/nri-rdma", str(tmp_path)) for it in hook["args"]]
    done = subprocess.run(missing, executable=hook["path"], input=b"{}", capture_output=True, check=False)
    assert done.returncode == 127
    assert "nri-rdma install podman" in missing[-1]


def test_the_program_gets_its_flags_whatever_is_in_them(tmp_path: Path) -> None:
    settings = HookSettings(annotation_prefix="rdma.example", socket=Path("/run/a b'c/oci.sock"))
    told = tmp_path / "nri-rdma-oci-hook"
    told.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    told.chmod(0o755)
    seen = {}
    for stage, verb in (("precreate", "prepare"), ("createRuntime", "attach-prepared"), ("poststop", "return")):
        hook = json.loads(definition(stage, verb, settings))["hook"]
        path, *args = [it.replace("/usr/local/lib/nri-rdma", str(tmp_path)) for it in (hook["path"], *hook["args"])]
        done = subprocess.run(args, executable=path, capture_output=True, check=True, text=True)
        seen[verb] = done.stdout.splitlines()
    socket = ["--socket", "/run/a b'c/oci.sock"]
    assert seen == {
        "prepare": ["prepare", "--annotation-prefix", "rdma.example", *socket],
        "attach-prepared": ["attach-prepared", "--annotation-prefix", "rdma.example", *socket],
        "return": ["return", *socket],
    }


def test_all_files_are_known_as_ours_again(files: PodmanFiles) -> None:
    for version in (OLD, NEW):
        ours = (*files.of_hooks(HOOK), files.drop_in(version))
        assert len(ours) == 6
        for file in ours:
            assert file.is_ours(file.data), file.path
            assert not file.is_ours(b"[engine]\n"), file.path
