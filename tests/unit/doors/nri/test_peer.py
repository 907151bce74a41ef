"""How much memory the runtime itself may lock, from what the kernel tells of its process."""

import pytest

from nri_rdma.doors.nri.peer import parse_memlock_ceiling
from nri_rdma.model.request import UNLIMITED

HEADER = "Limit                     Soft Limit           Hard Limit           Units\n"
LOCKED = "Max locked memory         65536                {hard} bytes\n"


@pytest.mark.parametrize(
    ("capabilities", "limits", "ceiling"),
    [
        pytest.param("0000000000000000", HEADER + LOCKED.format(hard=8388608), 8388608, id="its hard limit"),
        pytest.param("0000000001000000", HEADER + LOCKED.format(hard=8388608), UNLIMITED, id="CAP_SYS_RESOURCE"),
        pytest.param("0000000000800000", HEADER + LOCKED.format(hard=8388608), 8388608, id="another capability"),
        pytest.param("0000000000000000", HEADER + LOCKED.format(hard="unlimited"), UNLIMITED, id="no limit"),
        pytest.param("0000000000000000", HEADER, UNLIMITED, id="a kernel that does not tell"),
    ],
)
def test_the_ceiling_is_the_hard_limit_unless_the_runtime_may_raise_it(
    capabilities: str, limits: str, ceiling: int
) -> None:
    assert parse_memlock_ceiling(f"Name:\tcontainerd\nCapEff:\t{capabilities}\n", limits) == ceiling
