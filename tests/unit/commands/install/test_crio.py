"""CRI-O's definition of the guard's hook: its content, its folder, and who may still call it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from nri_rdma.commands.install.crio import DEFINITION, chosen_folder, definition, started_before
from tests.rig.cache import PROJECT

HOOK = Path("/usr/local/lib/nri-rdma/nri-rdma-hook")


def test_the_definition_is_the_one_that_comes_with_the_wheel() -> None:
    packaged = (PROJECT / "hooks/nri-rdma-guard.json").read_bytes()
    made = definition(Path("/x"), HOOK, ())
    assert json.loads(made.data) == json.loads(packaged)
    assert made.is_ours(packaged)
    assert not made.is_ours(b'{"version": "1.0.0", "hook": {"path": "/usr/bin/theirs"}}')


def test_the_hooks_flags_are_in_it() -> None:
    made = json.loads(definition(Path("/x"), HOOK, ("--control-socket", "/y")).data)
    assert made["hook"]["args"] == ["nri-rdma-hook", "verify", "--control-socket", "/y"]


def test_it_goes_where_it_is_or_where_a_reboot_leaves_it(tmp_path: Path) -> None:
    usr, volatile = tmp_path / "usr", Path("/run/containers/oci/hooks.d")
    usr.mkdir()
    assert chosen_folder([usr, volatile]) == usr
    assert chosen_folder([volatile]) == volatile
    (usr / DEFINITION).touch()
    assert chosen_folder([usr, tmp_path / "etc"]) == usr


def test_a_process_is_older_than_what_changed_since_its_start(tmp_path: Path) -> None:
    assert started_before(os.getpid(), tmp_path)
    os.utime(tmp_path, (1, 1))
    assert not started_before(os.getpid(), tmp_path)
    assert not started_before(os.getpid(), tmp_path / "gone")
