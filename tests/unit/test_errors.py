"""The text of an error is what a pod's author reads in an event: code, cause, place, next step."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from nri_rdma import errors
from nri_rdma.errors import AttachError, CdiError, ErrorCode, LimitsError, NriRdmaError, StateError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NriRdmaError(ErrorCode.INTERNAL, "a bug"), "nri-rdma: INTERNAL: a bug."),
        (
            NriRdmaError(ErrorCode.SETTING, "no number", where="config.toml:3", hint="write a number"),
            "nri-rdma: SETTING: no number, config.toml:3. Next: write a number.",
        ),
        (
            NriRdmaError(ErrorCode.NOT_READY, "wait", where="ml/train", hint="nothing to do", detail="a long story"),
            "nri-rdma: NOT-READY: wait, ml/train. Next: nothing to do. Because a long story.",
        ),
        (
            AttachError("move netdev into the pod", device="mlx5_0", where="ml/train", hint="see dmesg"),
            "nri-rdma: ATTACH-FAILED: move netdev into the pod (mlx5_0), ml/train. Next: see dmesg.",
        ),
        (
            LimitsError("rdma.max cannot be written", where="ml/train, container a", hint="turn rdma on"),
            "nri-rdma: LIMITS-NOT-SET: rdma.max cannot be written, ml/train, container a. Next: turn rdma on.",
        ),
        (
            CdiError(ErrorCode.CDI_VALUE, "no", file="a.json", hint="fix it", line=4, path="devices[0].name"),
            "nri-rdma: CDI-VALUE: no, a.json line 4 devices[0].name. Next: fix it.",
        ),
        (
            CdiError(ErrorCode.CDI_SIZE, "large", file="a.json", hint="fix it"),
            "nri-rdma: CDI-SIZE: large, a.json. Next: fix it.",
        ),
    ],
)
def test_an_error_reads_as_code_cause_place_and_next_step(error: NriRdmaError, text: str) -> None:
    assert str(error) == text


def test_every_error_that_the_program_raises_is_given_a_next_step() -> None:
    kinds = {name for name, it in vars(errors).items() if isinstance(it, type) and issubclass(it, NriRdmaError)}
    calls = [
        (path, node)
        for path in Path(errors.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds
    ]
    assert len(calls) > 100
    lacking = [f"{path}:{it.lineno}" for path, it in calls if "hint" not in {keyword.arg for keyword in it.keywords}]
    assert lacking == [], "give these errors a next step: hint=..."


def test_code_and_cause_come_first_because_the_kubelet_cuts_the_rest() -> None:
    error = StateError(ErrorCode.STATE_UNREADABLE, "the checksum is wrong", where="w" * 300, hint="h", detail="d" * 900)
    assert str(error)[:64].startswith("nri-rdma: STATE-UNREADABLE: the checksum is wrong, ")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("mlx5_0 is held by pod ns/a.b-1", "mlx5_0 is held by another pod"),
        ("mlx5_0, mlx5_1 are held by pod a/b, c/d, and 2 more", "mlx5_0, mlx5_1 are held by another pod"),
        ("x is held by pod a/b, mlx5_1 is in use", "x is held by another pod, mlx5_1 is in use"),
        ("x is held by a/b (exclusive), by the same claim", "x is held by another pod, by the same claim"),
        ("x is still held by a/b", "x is still held by another pod"),
        ("x is held by pod a/b (CDI device v.example/c=n), c/d", "x is held by another pod"),
        ("x is in use by the host: eth0", "x is in use by the host: eth0"),
    ],
)
def test_the_author_of_a_pod_reads_no_names_of_others_unless_a_setting_allows_it(what: str, told: str) -> None:
    error = NriRdmaError(ErrorCode.DEVICE_IN_USE, what, where="ns/own", hint="wait", detail=what)
    assert error.for_author == f"nri-rdma: DEVICE-IN-USE: {told}, ns/own. Next: wait. Because {told}."
    error.names_holders = True
    assert error.for_author == str(error)


@pytest.mark.parametrize("how", ["pod ns/own (CDI device v.example/c=n)", "ns/own (exclusive)"])
def test_the_author_of_a_pod_reads_the_name_of_the_own_pod(how: str) -> None:
    error = NriRdmaError(
        ErrorCode.DEVICE_IN_USE, f"mlx5_0 is held by {how}", detail="mlx5_1 is held by pod ns/own, a/b"
    )
    error.pod = "ns/own"
    assert f"mlx5_0 is held by {how}." in error.for_author
    assert "mlx5_1 is held by another pod." in error.for_author
