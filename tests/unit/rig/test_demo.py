"""The demo says beforehand what would make each of its pods fail."""

from pathlib import Path

import pytest

from tests.rig import demo


def test_a_machine_without_the_file_that_each_pod_gets_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("tests.rig.cache.missing", list)
    monkeypatch.setattr(demo, "_HOSTS", tmp_path / "hosts")
    assert demo.main([]) == 1
    assert f"this machine has no {tmp_path}/hosts" in capsys.readouterr().err
