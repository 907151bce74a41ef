"""The lab's machines as data, with the QEMU command line that each becomes.

A machine is a node of tests/rig/nodes, and QEMU is told to build that node: every function at its address, below its
bridge and root. Nothing of the hardware is said twice; what QEMU cannot know (names, VFs, RDMA devices) the guest's
init makes from the same file.

Emulated (TCG) unless `--accel kvm` says otherwise, also where there is a /dev/kvm: whether a stock kernel lives under
it is seen only by trying. On hosts that are virtual machines themselves QEMU may abort at once ("failed to set MSR"),
or the kernel dies while it unpacks itself ("KVM internal error. Suberror: 1"). A run that sometimes has another speed
and sometimes fails in another way proves less than one that is always the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError
from tests.rig.node import Function, Node, load

ACCELERATORS = {"tcg": "tcg,thread=multi", "kvm": "kvm"}
CPUS = {"tcg": "Nehalem", "kvm": "max"}
"""To emulate newer ones takes longer: with all that QEMU knows (AVX2, five levels of page tables) tests/lab/guest/
test_limits.py took 139 s, with this one 110 s (QEMU 7.2)."""
KERNEL_ARGUMENTS = "console=ttyS0 quiet mitigations=off panic=-1 net.ifnames=0 highres=off"
"""Without high-resolution timers, what sleeps is woken at the kernel's tick, each 4 ms. Go's programs ask to be woken
after 20 us, and a timer costs the emulator more than the guest: without, pods take a tenth less CPU time."""
_FIRST_ROOT = "pci0000:00"
_NIC_CLASS = "0x020000"
_QEMU_DEVICES = {  # by PCI vendor and device
    ("0x8086", "0x10d3"): "e1000e",
    ("0x8086", "0x10c9"): "igb",
    ("0x1234", "0x1111"): "bochs-display",  # stands in for a GPU
    ("0x1b36", "0x000c"): "pcie-root-port",
    ("0x104c", "0x8232"): "x3130-upstream",
    ("0x104c", "0x8233"): "xio3130-downstream",
}
_WITH_SLOT = ("pcie-root-port", "xio3130-downstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A kind of machine. A test of the guest says which one it is for (`pytest.mark.machine`), else it is SMALL's."""

    name: str
    node: Node
    memory_mib: int = 2048
    accelerator: str = "tcg"  # of ACCELERATORS
    systemd: bool = False  # process 1 is systemd, with udev and networkd; else it is the lab's own init

    @property
    def cpus(self) -> int:
        return self.node.sockets * self.node.cpus_per_socket


SMALL = Model(name="small", node=load("lab-small"))
EIGHT = Model(name="eight", node=load("lab-eight"))
SRIOV = Model(name="sriov", node=load("lab-sriov"))
SYSTEMD = Model(name="systemd", node=load("lab-systemd"), systemd=True)
MODELS = {model.name: model for model in (SMALL, SYSTEMD, EIGHT, SRIOV)}
"""By name; those that take longest first, which is the order in which they are run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A raw virtio disk; the guest finds it by its serial."""

    serial: str
    path: Path
    throwaway: bool = False  # the guest's writes go nowhere
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A model with the QEMU that it is in, the kernel that it boots and the disks that are in it."""

    model: Model
    emulator: tuple[str, ...]
    kernel: Path
    initrd: Path
    disks: tuple[Disk, ...]


def qemu_command(machine: Machine, console_log: Path | None) -> tuple[str, ...]:
    """The whole command.

    With a console log, the kernel's console goes there, and stdout is a port of its own over which init and pytest
    speak: no kernel message falls into their lines, and it is fast. Without one, stdin and stdout are the console.
    """
    return (
        *(*machine.emulator, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *(
            "-machine",
            "q35",
            "-accel",
            ACCELERATORS[machine.model.accelerator],
            "-cpu",
            CPUS[machine.model.accelerator],
        ),
        *_sockets(machine.model),
        *("-kernel", str(machine.kernel), "-initrd", str(machine.initrd), "-append", KERNEL_ARGUMENTS),
        *_hardware(machine.model.node),  # first, so that what has no address of its own gets out of its way
        *(word for disk in machine.disks for word in _disk(disk)),
        *_outputs(console_log),
    )


def _sockets(model: Model) -> Iterator[str]:
    """CPUs and memory; a NUMA node for each socket where there are several."""
    node = model.node
    yield from ("-m", str(model.memory_mib), "-smp", f"{model.cpus},sockets={node.sockets}")
    if node.sockets == 1:
        return
    for number in range(node.sockets):
        first = number * node.cpus_per_socket
        size = model.memory_mib // node.sockets
        yield from ("-object", f"memory-backend-ram,id=memory{number},size={size}M")
        yield from ("-numa", f"node,nodeid={number},memdev=memory{number},cpus={_range(first, node.cpus_per_socket)}")


def _hardware(node: Node) -> Iterator[str]:
    """Roots and functions, parents first: QEMU puts a device only on a bus that it knows."""
    for root in dict.fromkeys(function.under for function in node.functions if function.under.startswith("pci")):
        if root != _FIRST_ROOT:
            yield from ("-device", _root(root, node))
    for number, function in enumerate(node.functions, start=1):
        if not function.physfn:  # the guest's kernel makes the virtual ones
            yield from _function(function, node, number)


def _root(root: str, node: Node) -> str:
    """A root complex of its own. `bus=pcie.0` here and on all that has no other: QEMU's default is the last root."""
    numa_nodes = {function.numa_node for function in node.functions if function.under == root}
    if len(numa_nodes) != 1:
        raise LabError(f"{node.name}: {root} is on the NUMA nodes {numa_nodes}. Next: one root, one NUMA node.")
    return f"pxb-pcie,id={_bus(root)},bus=pcie.0,bus_nr={int(root[-2:], 16)},numa_node={numa_nodes.pop()}"


def _function(function: Function, node: Node, number: int) -> Iterator[str]:
    kind = _QEMU_DEVICES.get((function.vendor, function.device))
    if kind is None:
        raise LabError(f"{node.name}: QEMU has no {function.vendor}:{function.device} that the lab knows of.")
    words = [kind, f"id={_bus(function.address)}", f"bus={_bus(function.under)}", f"addr={function.address[-4:]}"]
    if kind in _WITH_SLOT:
        words += [f"chassis={number}", f"slot={number}"]
    if function.pci_class == _NIC_CLASS:
        # On a hub of its own: a carrier and nobody at the other end. No option ROM: it would only make the boot longer.
        yield from ("-netdev", f"hubport,id=net{number},hubid={number}")
        mac = next(netdev.mac for netdev in node.netdevs if netdev.function == function.address)
        words += [f"netdev=net{number}", f"mac={mac}", "romfile="]
    yield from ("-device", ",".join(words))


def _bus(name: str) -> str:
    """QEMU's name for the bus of a root or a bridge; its ids hold no colons."""
    return "pcie.0" if name == _FIRST_ROOT else "at." + name.replace(":", ".")


def _range(first: int, count: int) -> str:
    return f"{first}-{first + count - 1}"


def _disk(disk: Disk) -> tuple[str, ...]:
    drive = f"file={disk.path},if=none,id={disk.serial},format=raw,cache=unsafe"
    drive += f",snapshot={_switch(disk.throwaway)},readonly={_switch(disk.read_only)}"
    return "-drive", drive, "-device", f"virtio-blk-pci,bus=pcie.0,drive={disk.serial},serial={disk.serial}"


def _outputs(console_log: Path | None) -> tuple[str, ...]:
    if console_log is None:
        return "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"
    return (
        *("-serial", f"file:{console_log}"),
        *("-chardev", "file,id=port,path=/dev/stdout", "-device", "virtio-serial-pci,bus=pcie.0"),
        *("-device", "virtserialport,chardev=port,name=lab"),
    )


def _switch(on: bool) -> str:
    return "on" if on else "off"
