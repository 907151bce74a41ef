"""The doctor tells where a container with annotations could start bare."""

from pathlib import Path

import pytest

from nri_rdma.commands.doctor.podman import podman
from nri_rdma.commands.install.changes import carry_out_all, to_write
from nri_rdma.commands.install.hook import HookSettings
from nri_rdma.commands.install.podman import PodmanFiles
from tests.unit.commands.doctor.bench import NA, OK, PROBLEM, Bench

SOURCE = Path(__file__).parents[4] / "hooks/nri-rdma-oci-hook"
HOOK = "usr/local/lib/nri-rdma/nri-rdma-oci-hook"
FOLDER = "usr/local/lib/nri-rdma/podman-hooks.d"


@pytest.fixture
def root(bench: Bench) -> Path:
    """A machine whose podman is set up."""
    socket = bench.machine.settings.hook_socket
    settings = HookSettings(annotation_prefix="rdma.noderesource.dev", socket=socket)
    files = PodmanFiles(settings=settings, root=bench.machine.etc.parent)
    carry_out_all(to_write((*files.of_hooks(SOURCE), files.drop_in((5, 4, 2)))))
    return files.root


def test_a_podman_that_is_not_set_up_is_none_of_its_business(bench: Bench) -> None:
    assert bench.finds(podman).result is NA


def test_one_that_is_set_up_is_fine(bench: Bench, root: Path) -> None:
    found = bench.finds(podman)
    assert (found.result, found.found) == (OK, f"containers with annotations ask by the hooks in {root / FOLDER}")


@pytest.mark.parametrize("name", ["precreate", "createRuntime", "poststop"])
def test_a_definition_that_is_gone_lets_containers_start_bare(bench: Bench, root: Path, name: str) -> None:
    path = root / FOLDER / f"nri-rdma-{name}.json"
    path.write_text("{}")
    assert (bench.finds(podman).result, "other settings" in bench.finds(podman).found) == (PROBLEM, True)
    path.unlink()
    found = bench.finds(podman)
    assert (found.result, found.fix) == (PROBLEM, "nri-rdma install podman")
    assert found.found == f"{path} is not there: containers with annotations start without devices"


def test_a_hook_that_is_gone_lets_none_start(bench: Bench, root: Path) -> None:
    (root / HOOK).chmod(0o644)
    assert bench.finds(podman).result is PROBLEM
    (root / HOOK).unlink()
    assert (bench.finds(podman).result, str(root / HOOK) in bench.finds(podman).found) == (PROBLEM, True)


def test_a_later_file_that_hides_the_folder_is_named(bench: Bench, root: Path) -> None:
    later = root / "etc/containers/containers.conf.d/99-z.conf"
    later.write_text('[engine]\nhooks_dir = ["/z", {append=false}]\n')
    found = bench.finds(podman)
    assert (found.result, str(later) in found.found) == (PROBLEM, True)
