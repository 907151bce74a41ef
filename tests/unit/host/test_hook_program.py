"""What keeps a hook from being run, and who else than root could replace it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nri_rdma.commands.common.changes import carry_out_all, to_write
from nri_rdma.commands.install.hook import hook_files, refuse_broken
from nri_rdma.errors import NriRdmaError
from nri_rdma.host.hook_program import fault_of, fault_with_interpreter, foreign_at

HOOK = Path(__file__).parents[3] / "hooks/nri-rdma-oci-hook"
PLACE = "usr/local/lib/nri-rdma"
PROGRAM, MODULE = f"{PLACE}/nri-rdma-oci-hook", f"{PLACE}/nri_rdma_oci_hook.py"


def test_what_keeps_a_hook_from_being_run_is_named(tmp_path: Path) -> None:
    program, module = tmp_path / PROGRAM, tmp_path / MODULE
    assert fault_of(program) == f"{program} does not exist or is not executable"
    program.mkdir(parents=True)
    assert fault_of(program) == f"{program} does not exist or is not executable"
    program.rmdir()
    carry_out_all(to_write(hook_files(tmp_path, HOOK)))
    assert fault_of(program) == ""
    module.unlink()
    assert fault_of(program) == f"{module} is not there"
    program.chmod(0o644)
    assert fault_of(program) == f"{program} does not exist or is not executable"


def test_a_hook_without_its_interpreter_cannot_be_run(tmp_path: Path) -> None:
    carry_out_all(to_write(hook_files(tmp_path, HOOK)))
    program = tmp_path / PROGRAM
    assert fault_with_interpreter(program) == ""
    program.write_text(program.read_text().replace("#!/usr/bin/python3", f"#!{tmp_path}/python3"))
    assert fault_with_interpreter(program).startswith(
        f"{tmp_path}/python3, with which {program} is run, does not exist"
    )
    with pytest.raises(NriRdmaError, match="no container that asks would start"):
        refuse_broken(program)


def test_the_hook_of_an_earlier_release_needs_no_module(tmp_path: Path) -> None:
    program = tmp_path / "nri-rdma-oci-hook"
    program.write_text('#!/usr/bin/python3 -IS\nPROGRAM = "nri-rdma-oci-hook"\n')
    program.chmod(0o755)
    assert fault_of(program) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("folder", [PLACE, f"{PLACE}/__pycache__", "usr/local"])
def test_a_hook_that_others_than_root_could_replace_is_known(tmp_path: Path, folder: str) -> None:
    carry_out_all(to_write(hook_files(tmp_path, HOOK)))
    assert foreign_at(tmp_path / PROGRAM) == ""
    (tmp_path / folder).mkdir(exist_ok=True)
    os.chown(tmp_path / folder, 65534, 65534)
    assert f"others than root may replace files in {tmp_path / folder} (owner 65534" in foreign_at(tmp_path / PROGRAM)
