"""Under which name and index the plugin registers."""

import pytest

from nri_rdma.doors.nri.identity import identify


def _identify(
    *, name: str | None = None, index: str | None = None, program: str = "/opt/nri-rdma/bin/nri-rdma", **variables: str
) -> str:
    found = identify(name=name, index=index, environment=variables, program=program)
    return f"{found.index}-{found.name}"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (_identify(), "90-nri-rdma"),
        (_identify(program="/opt/nri/plugins/85-rdma"), "85-rdma"),
        (_identify(program="/opt/nri/plugins/85-"), "90-nri-rdma"),
        (_identify(program="/opt/nri/plugins/855-rdma"), "90-nri-rdma"),
        (_identify(program="/opt/nri/plugins/85-rdma", NRI_PLUGIN_NAME="x", NRI_PLUGIN_IDX="10"), "10-x"),
        (_identify(NRI_PLUGIN_NAME="10-x", NRI_PLUGIN_IDX="10"), "10-x"),
        (_identify(NRI_PLUGIN_NAME="11-x", NRI_PLUGIN_IDX="10"), "10-11-x"),
        (_identify(NRI_PLUGIN_NAME="-x"), "90--x"),
        (_identify(program="/opt/nri/plugins/85-rdma", NRI_PLUGIN_IDX="10"), "10-rdma"),
        (_identify(name="mine", index="33", NRI_PLUGIN_NAME="x", NRI_PLUGIN_IDX="10"), "33-mine"),
        (_identify(name="mine", NRI_PLUGIN_NAME="x", NRI_PLUGIN_IDX="10"), "10-mine"),
    ],
)
def test_a_setting_counts_before_the_environment_and_that_before_the_programs_name(found: str, expected: str) -> None:
    assert found == expected
