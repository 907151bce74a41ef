"""The engines that ask by our hooks are known by the files that set them up, on a host where nobody else can ask."""

from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.host.engine_setups import DOCKER_SHIM, OCI_HOOK, PODMAN_DROP_IN, engines_without_runtime
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A host with neither a runtime with NRI nor a kubelet."""
    return Settings(nri_socket=tmp_path / "run/nri.sock", kubelet_socket=tmp_path / "run/kubelet.sock")


def put(root: Path, *paths: Path) -> None:
    for path in paths:
        file = root / path.relative_to("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


@pytest.mark.parametrize(
    ("files", "engines"),
    [
        ((), ()),
        ((OCI_HOOK,), ("podman or Docker",)),
        ((OCI_HOOK, PODMAN_DROP_IN), ("podman",)),
        ((OCI_HOOK, DOCKER_SHIM), ("Docker",)),
        ((OCI_HOOK, PODMAN_DROP_IN, DOCKER_SHIM), ("podman", "Docker")),
        ((PODMAN_DROP_IN,), ()),
    ],
)
def test_they_are_named_by_what_is_there(
    tmp_path: Path, settings: Settings, files: tuple[Path, ...], engines: tuple[str, ...]
) -> None:
    put(tmp_path, *files)
    assert engines_without_runtime(settings, tmp_path) == engines


@pytest.mark.parametrize("path", ["run/nri.sock", "run/kubelet.sock"])
def test_where_a_runtime_or_a_kubelet_is_there_none_is_named(tmp_path: Path, settings: Settings, path: str) -> None:
    put(tmp_path, OCI_HOOK, PODMAN_DROP_IN, Path("/") / path)
    assert engines_without_runtime(settings, tmp_path) == ()


def test_where_kubernetes_asks_for_a_pool_none_is_named(tmp_path: Path, settings: Settings) -> None:
    put(tmp_path, OCI_HOOK, PODMAN_DROP_IN)
    pool = Pool(name="rails", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="rdma/rails", shares=4)
    assert engines_without_runtime(replace(settings, pools=(pool,)), tmp_path) == ()


def test_a_socket_that_this_user_may_not_see_counts_as_there(tmp_path: Path, settings: Settings) -> None:
    put(tmp_path, OCI_HOOK, PODMAN_DROP_IN)
    too_long = replace(
        settings, nri_socket=tmp_path / ("x" * 300)
    )  # root may see everything: another error than "none"
    assert engines_without_runtime(too_long, tmp_path) == ()
