"""A host with two rails, and what keeps each from being given away."""

from nri_rdma.decide.inventory import in_use_reasons, socket_reasons
from tests.contract.machines import LinuxMachine


def add_rails(linux: LinuxMachine) -> LinuxMachine:
    """A host with two rails that have addresses, one of them with routes."""
    for number in (0, 1):
        linux.add_link(f"rail{number}", f"02:11:00:00:00:0{number}")
        linux.set(f"rail{number}", up=True)
        linux.add_address(f"rail{number}", f"10.0.{number}.1/24")
        linux.add_address(f"rail{number}", f"fd00:{number}::1/64")
    return linux


def reasons(machine: LinuxMachine, name: str = "rail0") -> tuple[str, ...]:
    use = machine.kernel.host_use()
    link = next(link for link in use.links if link.name == name)
    return (*in_use_reasons(link, use), *socket_reasons(link, use))
