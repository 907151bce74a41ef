"""The CDI spec of the shares is one that runtimes take, and its devices bring the guard and nothing else."""

import json
from pathlib import Path

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.index import Index
from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.registry import SpecFile, resolve
from nri_rdma.cdi.spec import HookName
from nri_rdma.doors.deviceplugin.guarded import cdi_device, guarded
from tests.unit.doors.deviceplugin.pools import pool
from tests.unit.model.hardware import eight

HOOK = Path("/usr/local/lib/nri-rdma/nri-rdma-hook")


def test_each_pool_is_a_device_with_the_hook_as_its_only_edit() -> None:
    pools = (pool(name="hcas-a"), pool(name="hcas-b"))
    spec = json.loads(encode(guarded(pools, HOOK, ("--control-socket", "/x.sock"))))
    assert (spec["kind"], [it["name"] for it in spec["devices"]]) == (
        "shares.rdma.noderesource.dev/pool",
        ["hcas-a", "hcas-b"],
    )
    assert spec["devices"][1]["containerEdits"] == {
        "hooks": [
            {
                "hookName": "createRuntime",
                "path": "/usr/local/lib/nri-rdma/nri-rdma-hook",
                "args": ["nri-rdma-hook", "verify", "--control-socket", "/x.sock", "--pool", "hcas-b"],
                "timeout": 10,
            }
        ]
    }


def test_it_is_read_again_as_it_was_written() -> None:
    spec = guarded((pool(),), HOOK)
    read = parse(encode(spec), "shares.json")
    assert read == spec
    assert read.devices[0].edits.hooks[0].hook_name is HookName.CREATE_RUNTIME


def test_the_kubelet_names_the_device_of_the_pool() -> None:
    assert cdi_device(pool()) == "shares.rdma.noderesource.dev/pool=hcas"


def test_the_daemon_itself_has_nothing_to_read_in_it() -> None:
    """Else the kubelet would be asked about every pod of the node."""
    spec = guarded((pool(),), HOOK)
    found = resolve([SpecFile(file="shares.json", priority=0, spec=spec)])
    assert cdi_device(pool()) in found.devices
    assert not Index(found, eight(), "rdma.noderesource.dev").is_for_any
