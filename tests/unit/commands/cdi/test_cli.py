"""What `nri-rdma cdi` tells and writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nri_rdma.host.cdi.folder import read_registry
from tests.unit.commands.cli.program import PROJECT, assert_one_error, nri_rdma

GOOD = """
cdiVersion: 0.6.0
kind: vendor.example/nic
annotations: {a: b}
containerEdits: {deviceNodes: [{path: /dev/infiniband/rdma_cm}]}
devices:
- {name: "0", containerEdits: {deviceNodes: [{path: /dev/infiniband/uverbs0, type: c, major: 231, minor: 192}]}}
"""
OTHER = "cdiVersion: 0.3.0\nkind: vendor.example/gpu\ndevices: [{name: all, containerEdits: {env: [A=1]}}]\n"
BAD = "cdiVersion: 0.3.0\nkind: ve/cl\ndevices:\n- name: a\n  containerEdits:\n    env: [A]\n    netdevices: []\n"


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """A directory with two sound files and a broken one."""
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "other.yaml").write_text(OTHER)
    (tmp_path / "bad.yaml").write_text(BAD)
    return tmp_path


# list


def test_list_shows_devices_by_file_and_what_is_wrong_below(specs: Path) -> None:
    done = nri_rdma("cdi", "list", "--cdi-dirs", specs, columns=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:9] == [
        f"{specs}/good.yaml",
        "DEVICE                RDMA  NODES",
        "vendor.example/nic=0  yes   infiniband/rdma_cm, infiniband/uverbs0 231:192",
        "",
        f"{specs}/other.yaml",
        "DEVICE                  RDMA  NODES",
        "vendor.example/gpu=all  no    none",
        "",
        "2 problems",
    ]
    told = " ".join(done.stdout.split())
    assert f"{specs}/bad.yaml line 6 devices[0].containerEdits.env[0]. Next: write NAME=value." in told
    assert f"unknown field 'netdevices', {specs}/bad.yaml line 7" in told


def test_list_as_json_has_all_of_it(specs: Path) -> None:
    document = json.loads(nri_rdma("cdi", "list", "--cdi-dirs", specs, "-o", "json").stdout)
    assert document["version"] == 1
    assert document["directories"] == [str(specs)]
    assert document["devices"][1] == {
        "name": "vendor.example/nic=0",
        "file": f"{specs}/good.yaml",
        "rdma": True,
        "nodes": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"],
        "annotations": {},
        "edits": {"deviceNodes": [{"path": "/dev/infiniband/uverbs0", "type": "c", "major": 231, "minor": 192}]},
        "spec_edits": {"deviceNodes": [{"path": "/dev/infiniband/rdma_cm"}]},
    }
    where = f"{specs}/bad.yaml line 6 devices[0].containerEdits.env[0]"
    assert document["problems"][0] == {
        "code": "CDI-VALUE",
        "file": f"{specs}/bad.yaml",
        "line": 6,
        "path": "devices[0].containerEdits.env[0]",
        "what": "'A' is not allowed",
        "hint": "write NAME=value",
        "text": f"nri-rdma: CDI-VALUE: 'A' is not allowed, {where}. Next: write NAME=value.",
    }


def test_directories_rise_in_priority_as_they_are_given(specs: Path, tmp_path: Path) -> None:
    higher = tmp_path / "higher"
    higher.mkdir()
    (higher / "gpu.yaml").write_text(OTHER)
    assert nri_rdma("cdi", "list", environment={"NRI_RDMA_CDI_DIRS": str(specs)}).returncode == 0
    arguments = ("cdi", "list", "--cdi-dirs", f"{specs},{higher}", "-o", "json")
    devices = json.loads(nri_rdma(*arguments).stdout)["devices"]
    assert {it["name"]: it["file"] for it in devices}["vendor.example/gpu=all"] == f"{higher}/gpu.yaml"


def test_without_devices_list_says_where_it_looked(tmp_path: Path) -> None:
    done = nri_rdma("cdi", "list", "--cdi-dirs", tmp_path / "none", columns=200)
    assert (done.returncode, done.stdout) == (0, f"There is no CDI device in {tmp_path}/none.\n")


# check


def test_check_of_sound_files_ends_with_zero(specs: Path) -> None:
    done = nri_rdma("cdi", "check", specs / "good.yaml", specs / "other.yaml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 files checked, 0 problems.\n", "")


def test_check_tells_each_problem_on_a_line_and_ends_with_one(specs: Path) -> None:
    done = nri_rdma("cdi", "check", specs)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line.split(": ")[1] for line in lines[:-1]] == ["CDI-VALUE", "CDI-UNKNOWN-FIELD"]
    assert f"{specs}/bad.yaml line 7 devices[0].containerEdits.netdevices. Next: write netDevices;" in lines[1]
    assert lines[-1] == "3 files checked, 2 problems."


def test_check_finds_a_device_in_two_files_of_a_directory(specs: Path) -> None:
    (specs / "bad.yaml").write_text(OTHER)
    done = nri_rdma("cdi", "check", specs)
    assert done.returncode == 1
    assert "no container can have vendor.example/gpu=all" in done.stdout
    assert f"{specs}/bad.yaml" in done.stdout
    assert f"{specs}/other.yaml" in done.stdout


def test_check_as_json_is_for_programs(specs: Path) -> None:
    done = nri_rdma("cdi", "check", specs / "bad.yaml", specs, "-o", "json")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert document["files"] == [f"{specs}/{name}.yaml" for name in ("bad", "bad", "good", "other")]
    assert [(it["code"], it["line"]) for it in document["problems"][:2]] == [("CDI-VALUE", 6), ("CDI-UNKNOWN-FIELD", 7)]


def test_check_of_what_is_no_file_is_a_problem_of_it_and_of_nothing_a_typing_error(tmp_path: Path) -> None:
    done = nri_rdma("cdi", "check", "/dev/null")
    assert (done.returncode, "CDI-FILE: it is a character device" in done.stdout) == (1, True)
    assert_one_error(nri_rdma("cdi", "check", tmp_path / "none"), "SETTING", 2)
    assert_one_error(nri_rdma("cdi", "check"), "SETTING", 2)


def test_a_files_name_and_text_cannot_command_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J.json").write_text('{"\x7f": 1}')
    done = nri_rdma("cdi", "check", tmp_path)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout + done.stderr


def test_neither_protobuf_nor_the_kernels_adapters_are_needed(specs: Path) -> None:
    program = (
        "import sys\n"
        "heavy = ['google', 'google.protobuf', 'pyroute2', 'opentelemetry']\n"
        "for name in (*heavy, 'nri_rdma.host.netlink', 'nri_rdma.pb'):\n"
        "    sys.modules[name] = None\n"
        "from nri_rdma.commands.cli.main import main\n"
        f"for words in (['list', '--cdi-dirs', {str(specs)!r}], ['check', {str(specs)!r}]):\n"
        "    sys.argv[1:] = ['cdi', *words]\n"
        "    try:\n        main()\n"
        "    except SystemExit:\n        pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert " ".join(done.stdout.split()).count("unknown field 'netdevices'") == 2


# generate


def test_generate_writes_a_file_that_list_reads_and_check_finds_sound(eight: Path, tmp_path: Path) -> None:
    done = nri_rdma("cdi", "generate", "--sysfs-root", eight, "--output", tmp_path / "cdi", columns=200)
    path = tmp_path / "cdi/rdma.noderesource.dev-nic.json"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == [
        f"{path} has 8 of this node's devices:",
        "  rdma.noderesource.dev/nic=mlx5_0",
    ]
    assert nri_rdma("cdi", "check", tmp_path / "cdi").returncode == 0
    assert len(read_registry([tmp_path / "cdi"]).devices) == 8


def test_generate_from_a_snapshot_is_the_same_as_on_the_node(eight: Path, tmp_path: Path) -> None:
    assert nri_rdma("snapshot", "--sysfs-root", eight, "-o", tmp_path / "node.json").returncode == 0
    saved = nri_rdma("cdi", "generate", "--snapshot", tmp_path / "node.json")
    assert saved.stdout == nri_rdma("cdi", "generate", "--sysfs-root", eight).stdout


def test_generate_can_be_told_which_devices(eight: Path) -> None:
    done = nri_rdma("cdi", "generate", "--sysfs-root", eight, "--device", "mlx5_1", "--device", "mlx5_5")
    assert [device["name"] for device in json.loads(done.stdout)["devices"]] == ["mlx5_1", "mlx5_5"]
    wrong = nri_rdma("cdi", "generate", "--sysfs-root", eight, "--device", "mlx5_99")
    assert "has no RDMA device mlx5_99" in assert_one_error(wrong, "DEVICE-UNKNOWN", 1)


def test_generate_says_what_it_leaves_out(own_eight: Path) -> None:
    bond = own_eight / "class/net/bond0"
    bond.mkdir()
    (bond / "ifindex").write_text("500\n")
    (own_eight / "class/net/rail1/master").symlink_to(bond)
    done = nri_rdma("cdi", "generate", "--sysfs-root", own_eight)
    assert done.stderr == "mlx5_1 is left out: in use by the host: rail1 is enslaved to ifindex 500.\n"
    assert "mlx5_1" not in {device["name"] for device in json.loads(done.stdout)["devices"]}


def test_generate_writes_a_file_of_its_own_for_a_pool_with_what_its_devices_ask(eight: Path, tmp_path: Path) -> None:
    config, specs = tmp_path / "config.toml", tmp_path / "cdi"
    config.write_text('[pools.rails]\nselect = { numaNode = 1 }\nmodes = ["exclusive"]\n')
    asked = ("--mode", "exclusive", "--memlock", "1Gi", "--hca-handles", "4")
    given = ("--config", config, "--sysfs-root", eight, "--output", specs)
    done = nri_rdma("cdi", "generate", *given, "--pool", "rails", *asked, columns=200)
    assert done.stdout.splitlines()[0] == f"{specs}/rdma.noderesource.dev-nic-rails.json has 4 of this node's devices:"
    assert nri_rdma("cdi", "generate", *given).returncode == 0
    assert nri_rdma("cdi", "check", specs).returncode == 0
    devices = read_registry([specs]).devices
    assert len(devices) == 12
    assert dict(devices["rdma.noderesource.dev/nic-rails=mlx5_5"].device.annotations) == {
        "rdma.noderesource.dev": '{"mode": "exclusive", "memlock": 1073741824, "limits": {"hcaHandles": 4}}'
    }
    assert not devices["rdma.noderesource.dev/nic=mlx5_5"].device.annotations


def test_generate_with_hooks_writes_what_podman_reads(eight: Path, tmp_path: Path) -> None:
    flags = ("--allow-default-pool", "--mode", "exclusive", "--memlock", "unlimited")
    nri_rdma("cdi", "generate", "--hooks", "--sysfs-root", eight, *flags, "--output", tmp_path)
    (path,) = tmp_path.iterdir()
    spec = json.loads(path.read_text())
    assert spec["cdiVersion"] in {"0.3.0", "0.4.0", "0.5.0"}
    (attach,) = [it for it in spec["devices"][2]["containerEdits"]["hooks"] if it["hookName"] == "createRuntime"]
    assert attach["args"][:6] == ["nri-rdma-oci-hook", "attach", "--device", "mlx5_2", "--mode", "exclusive"]
    assert attach["args"][-2:] == ["--memlock", "unlimited"]
    assert nri_rdma("cdi", "check", tmp_path).returncode == 0


def test_generate_names_the_socket_of_a_daemon_elsewhere(eight: Path, tmp_path: Path) -> None:
    where = ("--state-dir", tmp_path / "elsewhere", "--hook", "/opt/hook")
    done = nri_rdma("cdi", "generate", "--hooks", "--sysfs-root", eight, *where)
    hook = json.loads(done.stdout)["devices"][0]["containerEdits"]["hooks"][1]
    assert hook["path"] == "/opt/hook"
    assert hook["args"] == ["nri-rdma-oci-hook", "return", "--socket", str(tmp_path / "elsewhere/oci.sock")]


def test_generate_has_hooks_ask_for_limits(eight: Path) -> None:
    limits = ("--hca-handles", "8", "--hca-objects", "1000")
    done = nri_rdma("cdi", "generate", "--hooks", "--sysfs-root", eight, *limits)
    attach, back = json.loads(done.stdout)["devices"][0]["containerEdits"]["hooks"]
    assert tuple(attach["args"][-4:]) == limits
    assert back["args"] == ["nri-rdma-oci-hook", "return"]


def test_generate_refuses_a_hook_without_hooks(eight: Path) -> None:
    done = nri_rdma("cdi", "generate", "--sysfs-root", eight, "--hook", "/opt/hook")
    assert_one_error(done, "SETTING", 2)


def test_generate_refuses_a_pool_that_there_is_not_and_a_mode_that_it_does_not_serve(eight: Path) -> None:
    given = ("cdi", "generate", "--sysfs-root", eight)
    assert "the pools are default" in assert_one_error(nri_rdma(*given, "--pool", "gold"), "POOL-UNKNOWN", 1)
    alone = nri_rdma(*given, "--pool", "default", "--mode", "exclusive")
    assert "pool default serves shared, not exclusive" in assert_one_error(alone, "POOL-MODE", 1)
    assert nri_rdma(*given, "--pool", "default", "--mode", "exclusive", "--allow-default-pool").returncode == 0
    assert nri_rdma(*given, "--memlock", "0x10").returncode == 2


def test_without_a_command_cdi_tells_what_there_is() -> None:
    done = nri_rdma("cdi")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.partition("Commands:\n")[2].splitlines()] == [
        "check",
        "generate",
        "guard",
        "list",
    ]


# guard

FOREIGN = """# theirs
cdiVersion: 0.6.0
kind: dra.example.com/nic
devices:
- name: five
  annotations: {rdma.noderesource.dev: "{mode: exclusive}"}
  containerEdits: {deviceNodes: [{path: /dev/infiniband/uverbs5}]}
- {name: plain, containerEdits: {env: [A=1]}}
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A spec of another driver."""
    file = tmp_path / "vendor.yaml"
    file.write_text(FOREIGN)
    file.chmod(0o640)
    return file


def test_guard_writes_the_hook_into_the_file_and_a_second_time_nothing(foreign: Path, tmp_path: Path) -> None:
    done = nri_rdma("cdi", "guard", foreign, "--state-dir", tmp_path / "state", columns=200)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"{foreign} has the guard for 1 of its 2 devices:", "  dra.example.com/nic=five"],
    )
    assert "until that is mended, no container with these devices starts" in done.stderr, (
        "the hook is not on this machine"
    )
    five, plain = read_registry([tmp_path]).devices.values()
    (hook,) = five.device.edits.hooks
    wanted = ("--control-socket", str(tmp_path / "state/control.sock"), "--device", five.name)
    assert (hook.path, hook.args) == (
        "/usr/local/lib/nri-rdma/nri-rdma-hook",
        ("nri-rdma-hook", "verify", *wanted),
    )
    assert plain.device.edits.hooks == ()
    assert foreign.stat().st_mode & 0o777 == 0o640
    before = foreign.stat()
    again = nri_rdma("cdi", "guard", foreign, "--state-dir", tmp_path / "state", columns=200)
    assert again.stdout == done.stdout
    assert (foreign.stat().st_ino, foreign.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert nri_rdma("cdi", "check", foreign).returncode == 0


def test_guard_shows_what_it_would_write_and_keeps_a_link_to_the_file(foreign: Path, tmp_path: Path) -> None:
    shown = nri_rdma("cdi", "guard", foreign, "--output", "-").stdout
    assert "nri-rdma-hook" in shown
    assert foreign.read_text() == FOREIGN
    (link := tmp_path / "link.yaml").symlink_to(foreign)
    assert nri_rdma("cdi", "guard", link).returncode == 0
    assert link.is_symlink()
    assert foreign.read_text() == shown
    (loop := tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert nri_rdma("cdi", "guard", foreign, "--output", loop).returncode == 0
    assert loop.read_text() == shown


def test_guard_says_that_no_device_asks(specs: Path) -> None:
    done = nri_rdma("cdi", "guard", specs / "good.yaml", columns=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{specs}/good.yaml has the guard for 0 of its 1 devices.\n"
    assert (specs / "good.yaml").read_text() == GOOD


@pytest.mark.parametrize("text", [BAD, ""])
def test_guard_refuses_what_is_no_spec_and_changes_nothing(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    done = nri_rdma("cdi", "guard", file)
    assert done.returncode == 1
    assert done.stderr.startswith("nri-rdma: CDI-")
    assert str(file) in done.stderr
    assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


def test_guard_refuses_a_file_that_is_not_there_and_a_node_without_the_hook(foreign: Path) -> None:
    assert_one_error(nri_rdma("cdi", "guard", foreign.with_name("nowhere")), "CDI-FILE", 1)
    assert "name the guard's hook" in nri_rdma("cdi", "guard", foreign, "--guard-hook", "").stderr
    assert foreign.read_text() == FOREIGN
