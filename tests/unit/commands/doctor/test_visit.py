"""The doctor registers with the runtime like a plugin, and gives up in time."""

from nri_rdma.commands.doctor.visit import visit
from tests.fakes.runtime import FakeRuntime
from tests.unit.commands.doctor.bench import Bench


def test_a_runtime_that_takes_no_notice_is_a_problem(bench: Bench) -> None:
    fake = FakeRuntime(bench.settings.nri_socket)
    seen = visit(bench.settings.nri_socket, 0.3)
    assert seen.unheard == "it did not answer in time"
    fake.close()
