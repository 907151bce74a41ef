"""Bad input is refused with its code, in the text of the CRI error, and changes nothing on the host."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.rig.cri import Cri, CriError
from tests.rig.daemon import Daemon
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

POD = "rdma.noderesource.dev/pod"

ALIAS_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

CASES = {
    "malformed YAML": ("- {match: [", "ANNOTATION-SYNTAX"),
    "1 MiB of annotation": ("# " + "x" * (1 << 20), "ANNOTATION-SIZE"),
    "alias bomb": (ALIAS_BOMB, "ANNOTATION-ALIAS"),
    "duplicate key": ("- {count: 1, count: 2}", "ANNOTATION-DUPLICATE-KEY"),
    "unknown key": ("- {cuont: 2}", "ANNOTATION-UNKNOWN-KEY"),
    "unknown pool": ("- {pool: gold}", "POOL-UNKNOWN"),
    "more devices than there are": ("9", "DEVICES-EXHAUSTED"),
    "unknown device": ("- {match: {device: mlx5_77}}", "DEVICE-UNKNOWN"),
    "a 16-character name": ("- {interface: {name: abcdefghijklmnop}}", "ANNOTATION-VALUE"),
    "MTU 0": ("- {interface: {mtu: 0}}", "ANNOTATION-VALUE"),
    "bad CIDR": ("- {interface: {addresses: [10.0.0.300/24]}}", "ANNOTATION-VALUE"),
    "CIDR without length": ("- {interface: {addresses: [10.0.0.3]}}", "ANNOTATION-VALUE"),
    "two requests for one device": ("[{match: {device: mlx5_1}}, {match: {device: mlx5_1}}]", "DEVICE-CONFLICT"),
    "an interface name that the pod has": ("- {interface: {name: eth0}}", "NAME-CONFLICT"),
    "limits without an rdma controller": ("- {limits: {hcaHandles: 2}}", "LIMITS-UNSUPPORTED"),
    "more locked memory than the runtime may give": ("- {memlock: unlimited}", "MEMLOCK-LIMIT"),
    "devices that policy keeps back": ("- {devices: [umad]}", "POLICY-DEVICES"),
    "an unknown GPU": ('- {gpus: ["0000:ff:1f.0"]}', "DEVICE-UNKNOWN"),
}


@pytest.fixture(scope="module")
def serving(runtime: Runtime, node: Fabric) -> Iterator[Daemon]:
    with Daemon(runtime, node) as running:
        yield running


@pytest.mark.usefixtures("serving")
@pytest.mark.parametrize(("text", "code"), CASES.values(), ids=CASES.keys())
def test_bad_input_is_refused_with_its_code(host_equal: None, cri: Cri, text: str, code: str) -> None:
    with pytest.raises(CriError) as refused:
        cri.run_pod("bad", annotations={POD: text})
    assert f"nri-rdma: {code}: " in refused.value.text
    assert "Next: " in refused.value.text
    assert not [
        pod for pod in cri.pods() if cri.pod_status(pod).ready
    ]  # containerd 2.2 and 2.3 may list it as not ready


@pytest.mark.usefixtures("serving")
def test_a_device_that_the_host_uses_is_refused(host_equal: None, cri: Cri) -> None:
    subprocess.run(["ip", "link", "add", "link", "rail6", "name", "rail6v", "type", "macvlan"], check=True)
    try:
        with pytest.raises(CriError, match=r"nri-rdma: DEVICE-IN-USE: .*rail6 has the child interface rail6v"):
            cri.run_pod("bad", annotations={POD: "- {match: {device: mlx5_6}}"})
    finally:
        subprocess.run(["ip", "link", "del", "rail6v"], check=True)


@pytest.mark.every_runtime
@pytest.mark.usefixtures("serving")
def test_a_pod_on_the_hosts_network_cannot_have_a_device_alone(host_equal: None, cri: Cri) -> None:
    with pytest.raises(CriError, match="nri-rdma: HOST-NETWORK: "):
        cri.run_pod("bad", annotations={POD: "1"}, host_network=True)


@pytest.mark.every_runtime
@pytest.mark.usefixtures("serving")
def test_a_pod_on_the_hosts_network_can_share_a_device(host_equal: None, cri: Cri) -> None:
    pod = cri.run_pod("host", annotations={POD: "- {mode: shared, match: {device: mlx5_1}}"}, host_network=True)
    result = cri.exec(cri.run_container(pod, "main"), ["ls", "/dev/infiniband"])
    assert result.stdout.split() == ["rdma_cm", "uverbs1"]
    cri.delete_pod(pod)
