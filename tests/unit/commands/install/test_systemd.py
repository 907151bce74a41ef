"""The unit that `install systemd` writes is the project's, with the place of the program."""

from __future__ import annotations

from pathlib import Path

from nri_rdma.commands.install.systemd import FOLDER, unit_file
from tests.rig.unit_file import UNIT


def test_only_the_place_of_the_program_is_another() -> None:
    packaged = UNIT.read_text()
    made = unit_file(packaged, Path("/srv/venv/bin/nri-rdma"))
    assert made.data.decode() == packaged.replace("/opt/nri-rdma/bin/nri-rdma run", "/srv/venv/bin/nri-rdma run")
    assert made.path == FOLDER / "nri-rdma.service"
    assert unit_file(packaged, Path("/opt/nri-rdma/bin/nri-rdma")).data == UNIT.read_bytes()


def test_a_unit_of_somebody_else_is_not_ours() -> None:
    made = unit_file(UNIT.read_text(), Path("/x"))
    assert made.is_ours(made.data)
    assert not made.is_ours(b"[Unit]\nDescription=Theirs\n[Service]\nExecStart=/opt/nri-rdma/bin/nri-rdma run\n")


def test_a_path_that_systemd_would_take_apart_is_quoted() -> None:
    made = unit_file(UNIT.read_text(), Path('/srv/my venv/100%h "x"/nri-rdma')).data.decode()
    assert 'ExecStart="/srv/my venv/100%%h \\"x\\"/nri-rdma" run' in made.splitlines()
