"""Engines are asked for the names of containers; one that is not here, or fails, has none."""

import time
from pathlib import Path

import pytest

from nri_rdma.host.container_names import ENGINES, container_names

TELLS = '#!/bin/sh\n[ "$*" = "ps --all --no-trunc --format {{.ID}} {{.Names}}" ] || exit 9\n'


def engine(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(TELLS + script)
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_both_are_asked(folder: Path) -> None:
    engine(folder, "podman", "echo a1 keep; echo b2 two")
    engine(folder, "docker", "echo c3 three")
    assert container_names() == {"a1": "keep", "b2": "two", "c3": "three"}


def test_one_that_fails_has_none(folder: Path) -> None:
    engine(folder, "podman", "echo no >&2; exit 125")
    engine(folder, "docker", "echo c3 three")
    assert container_names() == {"c3": "three"}


def test_where_there_is_no_engine_there_is_none(folder: Path) -> None:
    assert container_names() == {}


def test_engines_that_hang_take_a_second_each(folder: Path) -> None:
    for name in ENGINES:
        engine(folder, name, "exec sleep 20")
    began = time.monotonic()
    assert container_names() == {}
    assert 2 <= time.monotonic() - began < 15
