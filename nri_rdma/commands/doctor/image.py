"""Check of an unpacked container image: whether its RDMA libraries can use this machine's devices."""

from __future__ import annotations

from functools import partial

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.decide.userspace import kernel_device, problems_of, providers_of
from nri_rdma.errors import InventoryError
from nri_rdma.host.images import Images
from nri_rdma.host.root_folder import RootFolder
from nri_rdma.host.userspace import read_userspace


def libraries(machine: Machine) -> Finding:
    """Compare the RDMA libraries in the image's root folder with the kernel drivers of this machine's RDMA devices."""
    check = partial(not_applicable, "image")
    if machine.image_root is None:
        return check("no image was given")
    if isinstance(machine.node, InventoryError) or not machine.node[0].devices:
        return check("there is no RDMA device")
    images = Images(machine.settings.cgroup_root, machine.settings.sysfs_root)
    devices = tuple(kernel_device(it, images.abi) for it in machine.node[0].devices)
    try:
        # Mounts inside the folder are followed: the user who names a folder answers for its mounts.
        root = RootFolder(str(machine.image_root), enters_mounts=True)
    except OSError as error:
        return check(f"{machine.image_root} cannot be opened: {error.strerror}")
    try:
        userspace = read_userspace(root, providers_of(devices))
    finally:
        root.close()
    if userspace.unseen:
        return check(userspace.unseen)
    problems = problems_of(userspace, devices, str(machine.image_root), images.machine)
    if problems:
        return problem("image", "; ".join(f"{it.code}: {it.what}" for it in problems), problems[0].hint)
    known = ", ".join(it.name for it in userspace.providers)
    return ok("image", f"{userspace.path} ({userspace.distribution or 'no distribution'}) with the providers {known}")
