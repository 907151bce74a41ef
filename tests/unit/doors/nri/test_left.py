"""Which refused sandboxes are handed on to be cleaned up after the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.errors import NriRdmaError
from nri_rdma.text.manifest import PodManifest
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.nri_calls import Handlers


def pod(name: str, **annotations: str) -> PodManifest:
    mine = {f"rdma.noderesource.dev/{key}": text for key, text in annotations.items()}
    return PodManifest(kind="Pod", namespace="default", name=name, annotations=mine, containers=())


@pytest.mark.parametrize(("version", "left"), [("v2.1.9", ["default/refused"]), ("v2.2.6", []), ("v1.7.24", [])])
def test_only_refused_sandboxes_of_a_runtime_that_leaves_something(
    tmp_path: Path, eight: Path, version: str, left: list[str]
) -> None:
    with InsideDaemon(tmp_path, eight) as inside:
        handlers = Handlers(inside, version)
        handlers.run_pod(pod("plain"))
        handlers.run_pod(pod("served", pod="[{match: {device: mlx5_0}}]"))
        with pytest.raises(NriRdmaError):
            handlers.run_pod(pod("refused", pod="[{match: {device: mlx5_0}}]"))
        assert [str(it) for it in handlers.refusals.left] == left
        assert [it.sandbox_id for it in handlers.refusals.left] == [f"sandbox-{it.partition('/')[2]}" for it in left]


def test_a_bug_of_ours_is_a_refusal_too(tmp_path: Path, eight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session answers it with an error."""
    with InsideDaemon(tmp_path, eight) as inside:
        handlers = Handlers(inside)

        def fail(*_arguments: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(inside.engine, "run_pod", fail)
        with pytest.raises(ZeroDivisionError):
            handlers.run_pod(pod("refused", pod="1"))
        assert [str(it) for it in handlers.refusals.left] == ["default/refused"]


def test_the_sandboxes_that_the_runtime_tells_of_are_handed_on(tmp_path: Path, eight: Path) -> None:
    """In several parts, as it does where there are many."""
    with InsideDaemon(tmp_path, eight) as inside:
        handlers = Handlers(inside)
        handlers.synchronize("a", "b", more=True)
        assert handlers.refusals.known == set()
        handlers.synchronize("c")
        assert handlers.refusals.known == {"a", "b", "c"}
