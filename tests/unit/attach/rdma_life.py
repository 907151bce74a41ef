"""What tests of RDMA devices that move begin, end and look at."""

from nri_rdma.attach.attachment import Attachment
from nri_rdma.decide.placement import Placed
from tests.fakes.kernel import Rdma, World
from tests.unit.attach.builders import make_pod
from tests.unit.rigs.attachments import SOON, Rig, placed_on


def begin(rig: Rig, placed: tuple[Placed, ...] | None = None) -> Attachment:
    return rig.sandboxes.begin(make_pod(), placed or placed_on(rig.world, "rail0"), None)


def attach(rig: Rig, placed: tuple[Placed, ...] | None = None) -> Attachment:
    sandbox = begin(rig, placed)
    sandbox.attach_done.result(SOON)
    return sandbox


def device_of(world: World) -> Rdma:
    (device,) = world.rdma
    return device
