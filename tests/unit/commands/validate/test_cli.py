"""What `nri-rdma validate` tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.commands.cli.manifests import GOOD
from tests.unit.commands.cli.program import assert_one_error, nri_rdma

BAD = """\
kind: Pod
metadata:
  annotations:
    rdma.noderesource.dev: |
      cuont: 2
    rdma.noderesource.dev/container.mian: "1"
spec: {containers: [{name: main}]}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a file of each kind."""
    (tmp_path / "good.yaml").write_text(f"{GOOD}---\nkind: Service\n")
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "config.txt").write_text('log_level = "loud"\n')
    (tmp_path / "spec").write_text('{"cdiVersion": "9", "kind": "ve/cl", "devices": []}')
    return tmp_path


def test_what_is_right_ends_with_zero_and_one_line(files: Path) -> None:
    done = nri_rdma("validate", files / "good.yaml", columns=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{files}/good.yaml:5: skipped: kind Service: no pod template in it, not read.",
        "1 file: 1 document checked, 1 skipped, 0 problems.",
    ]


def test_every_problem_of_every_file_is_a_line_with_its_place_and_next_step(files: Path) -> None:
    names = ("bad.yaml", "config.txt", "spec", "good.yaml")
    done = nri_rdma("validate", *(files / name for name in names), columns=200)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    for line, begin, end in zip(
        lines,
        (
            f"nri-rdma: ANNOTATION-UNKNOWN-KEY: unknown key 'cuont', {files}/bad.yaml:5:7 rdma.noderesource.dev. Next",
            f"nri-rdma: ANNOTATION-VALUE: the pod has no container 'mian', {files}/bad.yaml:6:5 rdma.noderesource.dev/",
            f"nri-rdma: SETTING: log_level = 'loud' cannot be used, {files}/config.txt:1 log_level. Next: ",
            f"nri-rdma: CDI-VERSION: '9' is no version of CDI, {files}/spec:1 cdiVersion. Next: ",
            f"nri-rdma: CDI-VALUE: there is no device, {files}/spec:1 devices. Next: ",
        ),
        ("limits.", "write main; the containers are main.", "error.", "1.1.0.", "list at least one."),
        strict=False,
    ):
        assert line.startswith(begin)
        assert line.endswith(end)
    assert lines[5:] == [
        f"{files}/good.yaml:5: skipped: kind Service: no pod template in it, not read.",
        "4 files: 4 documents checked, 1 skipped, 5 problems.",
    ]


def test_json_has_every_fact_of_a_problem(files: Path) -> None:
    done = nri_rdma("validate", files / "bad.yaml", files / "good.yaml", "-o", "json")
    assert done.returncode == 1
    bad, good = json.loads(done.stdout)["files"]
    assert bad["problems"][0] == {
        "code": "ANNOTATION-UNKNOWN-KEY",
        "file": f"{files}/bad.yaml",
        "line": 5,
        "column": 7,
        "path": "rdma.noderesource.dev",
        "what": "unknown key 'cuont'",
        "hint": bad["problems"][0]["hint"],
        "text": f"nri-rdma: ANNOTATION-UNKNOWN-KEY: unknown key 'cuont', {files}/bad.yaml:5:7 rdma.noderesource.dev."
        f" Next: {bad['problems'][0]['hint']}.",
    }
    assert bad["problems"][0]["hint"].startswith("write count; the keys are name, pool, ")
    assert (good["file"], good["problems"]) == (f"{files}/good.yaml", [])
    assert good["documents"] == [
        {"kind": "Pod", "name": "a", "line": 1, "skipped": ""},
        {"kind": "Service", "name": "", "line": 5, "skipped": "kind Service: no pod template in it, not read"},
    ]


def test_stdin_is_a_file_too() -> None:
    done = nri_rdma("validate", "-", text=BAD)
    assert done.returncode == 1
    assert ", stdin:5:7 rdma.noderesource.dev. Next: " in done.stdout


def test_a_directory_is_refused_with_what_to_do(files: Path) -> None:
    told = assert_one_error(nri_rdma("validate", files / "good.yaml", files), "SETTING", 2)
    assert f"this is a directory, {files}. Next: name its files, such as {files}/*.yaml" in told


def test_a_file_without_end_is_refused() -> None:
    done = nri_rdma("validate", "/dev/zero")
    assert done.returncode == 1
    assert done.stdout.startswith("nri-rdma: MANIFEST-SIZE: the file is larger than 4194304 bytes, /dev/zero. Next: ")


def test_names_from_files_do_not_move_the_cursor() -> None:
    done = nri_rdma("validate", "-", text='kind: "\\e[2J\\e[31m"\n')
    assert "\x1b" not in done.stdout


def test_a_warning_is_shown_and_counted_and_does_not_fail() -> None:
    text = (
        "apiVersion: apps/v1\nkind: DaemonSet\nspec:\n  template:\n    metadata:\n      annotations:\n"
        "        rdma.noderesource.dev: '{mode: exclusive, interface: {addresses: [10.0.0.2/24]}}'\n"
        "    spec: {containers: [{name: main}]}\n"
    )
    done = nri_rdma("validate", "-", text=text, columns=400)
    assert (done.returncode, done.stderr) == (0, "")
    warning, counts = done.stdout.splitlines()
    assert warning.startswith("warning: every pod of this DaemonSet would have the same addresses, stdin:7:")
    assert counts == "1 file: 1 document checked, 0 skipped, 0 problems, 1 warning."
    (file,) = json.loads(nri_rdma("validate", "-", "-o", "json", text=text).stdout)["files"]
    assert file["problems"] == []
    assert [(it["line"], it["path"], it["text"]) for it in file["warnings"]] == [
        (7, "rdma.noderesource.dev.interface.addresses", warning)
    ]
