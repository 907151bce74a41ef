"""Check of GPUDirect RDMA: whether NICs can read and write the memory of GPUs directly."""

from __future__ import annotations

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.decide.gpudirect import fix, sentence
from nri_rdma.decide.gpudirect import gpudirect as decided
from nri_rdma.errors import InventoryError
from nri_rdma.host.gpudirect import read_gpudirect
from nri_rdma.model.gpudirect import Verdict


def gpudirect(machine: Machine) -> Finding:
    """Report whether GPUDirect RDMA is possible, by which kernel mechanism, and where on PCI the GPUs and NICs meet."""
    if isinstance(machine.node, InventoryError):
        return not_applicable("GPUDirect", machine.node.what)
    node, _ = machine.node
    facts = read_gpudirect(
        node.gpus,
        node.devices,
        sysfs_root=machine.settings.sysfs_root,
        proc_root=machine.proc,
        dev_root=machine.settings.dev_root,
        boot=machine.boot,
    )
    found = decided(node.gpus, node.devices, facts)
    if not found:
        return not_applicable("GPUDirect", "there is no GPU of NVIDIA or AMD with an RDMA device on PCI")
    words = "; ".join(sentence(it) for it in found)
    if all(it.verdict is Verdict.POSSIBLE and not it.redirecting for it in found):
        return ok("GPUDirect", words)
    return warning("GPUDirect", words, "; ".join(filter(None, map(fix, found))))
