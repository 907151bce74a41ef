"""The lab's pure parts: they need neither root nor the machine."""

import io
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.lab import outcomes
from tests.lab.emulator import major_version
from tests.lab.errors import LabError
from tests.lab.guest.become_systemd import mask
from tests.lab.initrd import load_order
from tests.lab.machine import EIGHT, MODELS, SMALL, SRIOV, Disk, Machine, Model, qemu_command
from tests.lab.recipe import CHECKOUT, KERNELS, Recipe, guest_requirements
from tests.lab.vm import find_summary
from tests.lab.workshop import can_move
from tests.rig.node import load
from tests.rig.oci import Layer, oci_archive

PYPROJECT = """
[project]
dependencies = ["click>=8.1,<9", "grpcio>=1.74,<2", "protobuf>=6"]
[dependency-groups]
test = ["pytest>=8.3", "pytest-timeout>=2.3"]
dev = [{ include-group = "test" }, "grpcio-tools==1.74.0", "mypy"]
"""
MODULES_DEP = """kernel/fs/ext4/ext4.ko.xz: kernel/fs/jbd2/jbd2.ko.xz kernel/fs/mbcache.ko.xz kernel/lib/crc16.ko.xz
kernel/fs/jbd2/jbd2.ko.xz: kernel/lib/crc16.ko.xz
kernel/fs/mbcache.ko.xz:
kernel/lib/crc16.ko.xz:
kernel/drivers/block/virtio_blk.ko.xz:
"""


QEMU = ("qemu-system-x86_64",)


def test_the_guest_gets_the_products_dependencies_with_the_tests_own() -> None:
    assert guest_requirements(PYPROJECT) == (
        *("click>=8.1,<9", "grpcio>=1.74,<2", "protobuf>=6", "pytest-timeout>=2.3", "pytest>=8.3"),
    )


def test_an_image_is_cached_under_what_goes_into_it() -> None:
    recipe = Recipe(kernel="7.2", kernel_suite="forky", suite="forky", requirements=("click",))
    other = replace(recipe, requirements=("click>=9",))
    assert recipe.digest() == recipe.digest()
    assert recipe.digest() != other.digest()


def test_a_module_is_loaded_after_everything_that_it_needs() -> None:
    order = [Path(path).name for path in load_order(MODULES_DEP, ("virtio_blk", "ext4"))]
    assert order == ["virtio_blk.ko.xz", "crc16.ko.xz", "mbcache.ko.xz", "jbd2.ko.xz", "ext4.ko.xz"]


def test_a_module_that_only_some_kernels_have_comes_first_where_there_is_one() -> None:
    order = load_order(MODULES_DEP, ("virtio_blk",), if_present=("crc16", "crc32c_generic"))
    assert [Path(path).name for path in order] == ["crc16.ko.xz", "virtio_blk.ko.xz"]


def test_a_module_that_the_kernel_lacks_is_named() -> None:
    with pytest.raises(LabError, match="no module erofs"):
        load_order(MODULES_DEP, ("erofs",))


def test_the_cached_disk_is_never_written() -> None:
    disk = Disk(serial="root", path=Path("/cache/root.img"), throwaway=True)
    machine = Machine(model=SMALL, emulator=QEMU, kernel=Path("/k"), initrd=Path("/i"), disks=(disk,))
    (drive,) = [word for word in qemu_command(machine, console_log=Path("/log")) if "root.img" in word]
    assert "snapshot=on" in drive


def hardware(model: Model) -> list[str]:
    """What follows -device, -netdev, -object, -numa and -smp in QEMU's command."""
    words = qemu_command(
        Machine(model=model, emulator=QEMU, kernel=Path("/k"), initrd=Path("/i"), disks=()), console_log=None
    )
    return [word for option, word in pairwise(words) if option in {"-device", "-netdev", "-object", "-numa", "-smp"}]


def test_qemu_gets_every_described_function_at_its_address_below_its_bridge() -> None:
    assert hardware(SRIOV) == [
        "2,sockets=2",
        "memory-backend-ram,id=memory0,size=1024M",
        "node,nodeid=0,memdev=memory0,cpus=0-0",
        "memory-backend-ram,id=memory1,size=1024M",
        "node,nodeid=1,memdev=memory1,cpus=1-1",
        "pxb-pcie,id=at.pci0000.10,bus=pcie.0,bus_nr=16,numa_node=0",
        "pxb-pcie,id=at.pci0000.40,bus=pcie.0,bus_nr=64,numa_node=1",
        "pcie-root-port,id=at.0000.10.00.0,bus=at.pci0000.10,addr=00.0,chassis=1,slot=1",
        "bochs-display,id=at.0000.11.00.0,bus=at.0000.10.00.0,addr=00.0",
        "pcie-root-port,id=at.0000.40.00.0,bus=at.pci0000.40,addr=00.0,chassis=3,slot=3",
        "hubport,id=net4,hubid=4",
        "igb,id=at.0000.41.00.0,bus=at.0000.40.00.0,addr=00.0,netdev=net4,mac=52:54:00:00:41:00,romfile=",
    ]


def test_a_machine_of_one_socket_has_no_numa_nodes() -> None:
    assert hardware(SMALL) == [
        "2,sockets=1",
        "pcie-root-port,id=at.0000.00.08.0,bus=pcie.0,addr=08.0,chassis=1,slot=1",
        "hubport,id=net2,hubid=2",
        "e1000e,id=at.0000.01.00.0,bus=at.0000.00.08.0,addr=00.0,netdev=net2,mac=52:54:00:00:10:00,romfile=",
    ]


def test_eight_has_eight_of_everything_on_two_numa_nodes() -> None:
    kinds = Counter(word.partition(",")[0] for word in hardware(EIGHT))
    wanted = ("pxb-pcie", "pcie-root-port", "bochs-display", "e1000e")
    assert {kind: kinds[kind] for kind in wanted} == dict.fromkeys(wanted, 8)
    roots = [word for word in hardware(EIGHT) if word.startswith("pxb-pcie")]
    assert [word[-1] for word in roots] == ["0"] * 4 + ["1"] * 4


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_everything_that_qemu_is_given_names_its_bus(model: Model) -> None:
    disk = Disk(serial="root", path=Path("/root.img"))
    machine = Machine(model=model, emulator=QEMU, kernel=Path("/k"), initrd=Path("/i"), disks=(disk,))
    devices = [word for option, word in pairwise(qemu_command(machine, Path("/log"))) if option == "-device"]
    # Without one, QEMU puts it on the last root complex, which takes bridges only.
    assert [word for word in devices if ",bus=" not in word and not word.startswith("virtserialport")] == []


def test_a_machine_is_in_the_emulator_that_it_is_given() -> None:
    machine = Machine(model=SMALL, emulator=("env", "A=b", "/q"), kernel=Path("/k"), initrd=Path("/i"), disks=())
    assert qemu_command(machine, console_log=None)[:4] == ("env", "A=b", "/q", "-nodefaults")


def test_qemus_version_is_read_from_what_it_says() -> None:
    assert major_version("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright\n") == 7
    assert major_version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\n") == 10
    with pytest.raises(LabError, match="does not tell its version: 'qemu: no lib'"):
        major_version("qemu: no lib\n")


def test_a_function_that_qemu_cannot_make_is_refused() -> None:
    model = Model(name="eight", node=load("eight"))
    with pytest.raises(LabError, match="QEMU has no 0x8086:0x352a"):
        hardware(model)


def test_a_root_is_on_one_numa_node() -> None:
    functions = (SRIOV.node.functions[0], replace(SRIOV.node.functions[0], address="0000:10:01.0", numa_node=1))
    model = Model(name="torn", node=replace(SRIOV.node, functions=functions))
    with pytest.raises(LabError, match="pci0000:10 is on the NUMA nodes"):
        hardware(model)


@pytest.mark.parametrize(("accelerator", "word"), [("tcg", "tcg,thread=multi"), ("kvm", "kvm")])
def test_the_accelerator_is_qemus(accelerator: str, word: str) -> None:
    model = replace(SMALL, accelerator=accelerator)
    words = qemu_command(
        Machine(model=model, emulator=QEMU, kernel=Path("/k"), initrd=Path("/i"), disks=()), console_log=None
    )
    assert words[words.index("-accel") + 1] == word


def test_where_systemd_is_process_1_nothing_is_started_that_the_tests_do_not_need(tmp_path: Path) -> None:
    wanted = ("apt-daily.timer", "dbus.socket", "getty.target", "systemd-networkd.service", "systemd-udevd.service")
    mask(wanted, tmp_path)
    mask(wanted, tmp_path)  # a unit may be wanted by several targets
    assert sorted(path.name for path in tmp_path.iterdir()) == ["apt-daily.timer", "getty.target"]
    assert {str(path.readlink()) for path in tmp_path.iterdir()} == {"/dev/null"}


@pytest.mark.parametrize(
    ("line", "summary"),
    [
        ("======= 8 passed in 25.92s =======", "8 passed in 25.92s"),
        (
            "=== 1 failed, 7 passed, 2 warnings in 66.79s (0:01:06) ===",
            "1 failed, 7 passed, 2 warnings in 66.79s (0:01:06)",
        ),
        ("3 passed in 41.20s", "3 passed in 41.20s"),
        ("no tests ran in 0.00s", "no tests ran in 0.00s"),
        ("test_main_job.py::test_x PASSED [ 12%]", ""),
    ],
)
def test_pytests_summary_is_known_in_each_of_its_forms(line: str, summary: str) -> None:
    assert find_summary(line) == summary


def test_an_image_is_addressed_by_its_content() -> None:
    archive = oci_archive("localhost/x:1", Layer(files={"bin/x": b"x"}), {"Env": []})
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        names = tar.getnames()
    assert names[:2] == ["oci-layout", "index.json"]
    assert len([name for name in names if name.startswith("blobs/sha256/")]) == 3


def test_the_guests_tests_are_not_collected_on_the_host() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RDMA_LAB_RESULTS"}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/lab"]
    shown = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)
    assert "test_lab.py" in shown.stdout
    assert "tests/lab/guest" not in shown.stdout


def test_the_labs_rxe_differs_in_one_operation() -> None:
    source = "int before;\nstatic const struct ib_device_ops rxe_dev_ops = {\n\t.alloc_mr = rxe_alloc_mr,\n};\n"
    changed = can_move(source).splitlines()
    assert [line for line in changed if line and line not in source.splitlines()] == [
        "static void rxe_disassociate_ucontext(struct ib_ucontext *ibcontext) { }",
        "\t.disassociate_ucontext = rxe_disassociate_ucontext,",
    ]


def test_a_source_that_the_labs_change_does_not_fit_is_refused() -> None:
    with pytest.raises(LabError, match="does not look as the lab knows it"):
        can_move("static const struct ib_device_ops other_dev_ops = {\n};\n")


def test_each_row_of_outcomes_has_a_test_in_the_guest_and_no_test_another_row() -> None:
    guest = (CHECKOUT / "tests/lab/guest").glob("test_*.py")
    named = {name for path in guest for name in re.findall(r"mark\.outcome\(\"([^\"]+)\"\)", path.read_text())}
    assert named == set(outcomes.load())


def test_each_row_of_outcomes_says_what_each_kernel_does() -> None:
    assert {name for name, row in outcomes.load().items() if set(row.outcomes) != set(KERNELS)} == set()


def test_the_support_document_shows_the_outcomes() -> None:
    document = outcomes.DOCUMENT.read_text()
    assert outcomes.with_table(document, outcomes.load()) == document, "Next: python -m tests.lab.outcomes"


def test_an_outcome_better_than_expected_is_a_complaint_too() -> None:
    row = outcomes.Row(what="moves", driver="rxe", outcomes={"7.2": "EOPNOTSUPP", "6.12": "works"})
    assert outcomes.complaint(row, "7.2", "EOPNOTSUPP") == ""
    assert "expects 'EOPNOTSUPP' of rxe on 7.2, seen is 'works'" in outcomes.complaint(row, "7.2", "works")
    assert "seen is 'EBUSY'" in outcomes.complaint(row, "6.12", "EBUSY")


def test_a_kernels_release_is_known_by_its_two_numbers() -> None:
    assert outcomes.kernel_of("6.12.48+deb13-amd64") == "6.12"
