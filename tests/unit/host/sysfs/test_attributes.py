"""Where links of sysfs lead, and what is on the way."""

from pathlib import Path

import pytest

from nri_rdma.host.sysfs.attributes import destination, function_of, pci_path, read_of

FUNCTION = "devices/pci0000:00/0000:00:01.0/0000:01:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A function with a scalable function's device below it, and a class folder with links of every kind."""
    device = tmp_path / FUNCTION / "mlx5_core.sf.2/infiniband/mlx5_2"
    device.mkdir(parents=True)
    (device / "device").symlink_to("../..")
    links = tmp_path / "class/infiniband"
    links.mkdir(parents=True)
    (links / "relative").symlink_to(f"../../{device.relative_to(tmp_path)}")
    (links / "absolute").symlink_to(device)
    (links / "nowhere").symlink_to("../../devices/gone")
    (links / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "leads_to"),
    [
        ("relative", f"{FUNCTION}/mlx5_core.sf.2/infiniband/mlx5_2"),
        ("absolute", f"{FUNCTION}/mlx5_core.sf.2/infiniband/mlx5_2"),
        ("folder", "class/infiniband/folder"),
    ],
)
def test_a_link_leads_where_the_kernel_says(tree: Path, name: str, leads_to: str) -> None:
    found = destination(f"{tree}/class/infiniband", name)
    assert found == f"{tree}/{leads_to}" == str((tree / "class/infiniband" / name).resolve())


@pytest.mark.parametrize(("folder", "name"), [("class/infiniband", "nowhere"), ("class/infiniband", "missing")])
def test_what_is_not_there_is_nowhere(tree: Path, folder: str, name: str) -> None:
    assert destination(f"{tree}/{folder}", name) == ""
    assert destination("", name) == read_of("", name) == ""


def test_a_scalable_function_is_a_part_of_its_pci_function(tree: Path) -> None:
    place = destination(destination(f"{tree}/class/infiniband", "relative"), "device")
    assert place == f"{tree}/{FUNCTION}/mlx5_core.sf.2"
    assert function_of(place) == f"{tree}/{FUNCTION}"
    assert pci_path(place) == ("pci0000:00", "0000:00:01.0", "0000:01:00.0")


def test_what_is_not_on_pci_is_its_own_function() -> None:
    assert function_of("/sys/devices/virtual/net/bond0") == "/sys/devices/virtual/net/bond0"
    assert pci_path("/sys/devices/virtual/net/bond0") == pci_path("") == ()
    assert function_of("") == ""
