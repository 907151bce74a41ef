"""The lab's machines as data, with the QEMU command line that each becomes.

Emulated (TCG) unless `--accel kvm` says otherwise, also where there is a /dev/kvm: whether a stock kernel lives under
it is seen only by trying. On hosts that are virtual machines themselves QEMU may abort at once ("failed to set MSR"),
or the kernel dies while it unpacks itself ("KVM internal error. Suberror: 1"). A run that sometimes has another speed
and sometimes fails in another way proves less than one that is always the same.
"""

from dataclasses import dataclass
from pathlib import Path

ACCELERATORS = {"tcg": "tcg,thread=multi", "kvm": "kvm"}
KERNEL_ARGUMENTS = "console=ttyS0 quiet mitigations=off panic=-1 net.ifnames=0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A kind of machine. A test of the guest says which one it is for (`pytest.mark.machine`), else it is SMALL's."""

    name: str
    nics: tuple[str, ...] = ("e1000e",)  # one PCIe root port each
    cpus: int = 2
    memory_mib: int = 2048
    accelerator: str = "tcg"  # of ACCELERATORS


SMALL = Model(name="small")
MODELS = {model.name: model for model in (SMALL,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A raw virtio disk; the guest finds it by its serial."""

    serial: str
    path: Path
    throwaway: bool = False  # the guest's writes go nowhere
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A model with the kernel that it boots and the disks that are in it."""

    model: Model
    kernel: Path
    initrd: Path
    disks: tuple[Disk, ...]


def qemu_command(machine: Machine, console_log: Path | None) -> tuple[str, ...]:
    """The whole command.

    With a console log, the kernel's console goes there, and stdout is a port of its own over which init and pytest
    speak: no kernel message falls into their lines, and it is fast. Without one, stdin and stdout are the console.
    """
    return (
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-machine", "q35", "-accel", ACCELERATORS[machine.model.accelerator], "-cpu", "max"),
        *("-smp", str(machine.model.cpus), "-m", str(machine.model.memory_mib)),
        *("-kernel", str(machine.kernel), "-initrd", str(machine.initrd), "-append", KERNEL_ARGUMENTS),
        *(word for disk in machine.disks for word in _disk(disk)),
        *(word for number, model in enumerate(machine.model.nics) for word in _nic(number, model)),
        *_outputs(console_log),
    )


def _disk(disk: Disk) -> tuple[str, ...]:
    drive = f"file={disk.path},if=none,id={disk.serial},format=raw,cache=unsafe"
    drive += f",snapshot={_switch(disk.throwaway)},readonly={_switch(disk.read_only)}"
    return "-drive", drive, "-device", f"virtio-blk-pci,bus=pcie.0,drive={disk.serial},serial={disk.serial}"


def _nic(number: int, model: str) -> tuple[str, ...]:
    """On a hub of its own: a carrier and nobody at the other end."""
    return (
        *("-device", f"pcie-root-port,id=port{number},bus=pcie.0,chassis={number + 1},slot={number + 1}"),
        *("-netdev", f"hubport,id=net{number},hubid={number + 1}"),
        *("-device", f"{model},bus=port{number},netdev=net{number}"),
    )


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
