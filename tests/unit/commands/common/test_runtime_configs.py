"""Configurations of others are read as far as they can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from nri_rdma.commands.common.runtime_configs import crio_files, read_toml, table_at, texts


def test_a_file_is_read_as_toml(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('version = 3\n[plugins.nri]\ndisable = false\nlist = ["a", 1]\n')
    document = read_toml(tmp_path / "config.toml")
    assert table_at(document, "plugins", "nri") == {"disable": False, "list": ["a", 1]}


@pytest.mark.parametrize("data", [None, b"", b"= no TOML", b"\xff\xfe"])
def test_what_is_not_there_or_no_toml_says_nothing(data: bytes | None, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "config.toml").write_bytes(data)
    assert read_toml(tmp_path / "config.toml") == {}


def test_a_folder_in_the_place_of_a_file_says_nothing(tmp_path: Path) -> None:
    assert read_toml(tmp_path) == {}


@pytest.mark.parametrize("document", [None, 7, [], {}, {"a": 1}, {"a": {"b": []}}])
def test_where_there_is_no_table_it_is_empty(document: object) -> None:
    assert table_at(document, "a", "b") == {}


@pytest.mark.parametrize(
    ("value", "found"), [(["a", 1, "b", None], ("a", "b")), ("ab", ()), (None, ()), ({"a": 1}, ())]
)
def test_only_texts_of_a_list_are_texts(value: object, found: tuple[str, ...]) -> None:
    assert texts(value) == found


def test_the_last_of_cri_os_files_is_the_one_that_counts(tmp_path: Path) -> None:
    folder = tmp_path / "crio/crio.conf.d"
    folder.mkdir(parents=True)
    for name in ("20-b.conf", "10-a.conf", "99-z.conf"):
        (folder / name).touch()
    names = [path.name for path in crio_files(tmp_path)]
    assert names == ["crio.conf", "10-a.conf", "20-b.conf", "99-z.conf"]
