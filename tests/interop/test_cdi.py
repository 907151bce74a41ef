"""Our CDI, held against the library that runtimes read specs with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any  # Any: JSON values

import pytest

from nri_rdma.cdi.encoding import encode, spec_document
from nri_rdma.cdi.names import file_name
from nri_rdma.cdi.reading import inspect, parse
from nri_rdma.cdi.version import minimum_version
from nri_rdma.commands.cdi.generate import spec_of
from nri_rdma.host.cdi.folder import read_registry
from nri_rdma.host.cdi.write import write_spec
from tests.interop import cdicorpus, cdijudge
from tests.interop.missing import leave_out
from tests.unit.model.hardware import eight

pytestmark = pytest.mark.timeout(cdijudge.BUILD_TIMEOUT_S + 60)

STRICTER = {
    r"has a vendor or class of one letter": "older libraries crash at it, and containerd 2.1.9 with them",
    r"there is nothing in this entry": "a null among device nodes crashes the library; among texts it vanishes",
    r"'(-[^']+|[1-9][0-9]{3,}|[0-9]e[0-9])' is not allowed.*\.(major|minor)\. Next: write a whole": "makedev() cuts it",
    r"'[-+]?[0-9]*(\.[0-9]+|e-[0-9]+)' is not allowed.* Next: write a whole": "a fraction is cut off without a word",
    r"'08(\.0)?' is not allowed": "eight to one reader, an error to another",
    r"'5' in quotes is not allowed": "with the tag ! it is a text to YAML, and a number to the library",
    r"'' is not allowed": "the same",
    r"there is a NUL in the text": "no path, variable or argument can hold it",
    r"the tag .* is not allowed": "readers know different tags",
    r"a key is no text": "null keys vanish; keys with line breaks, aliases or 318 characters are nobody's",
    r"something follows the first document": "the library passes over it, whatever its author wanted of it",
    r"found unexpected ':'": "libyaml reads no word that ends with a colon within braces",
}
"""Of what is refused here alone: the words of the refusal, and why it stays."""


@pytest.fixture(scope="module", autouse=True)
def judge() -> None:
    try:
        cdijudge.program()
    except cdijudge.MissingError as missing:
        leave_out(str(missing))


def put(folder: Path, texts: Iterator[tuple[str, bytes]]) -> dict[str, tuple[str, bytes]]:
    """Each text as a file of the folder; by file name what it is called and says."""
    files = {f"{number}.yaml": item for number, item in enumerate(texts)}
    for name, (_, data) in files.items():
        (folder / name).write_bytes(data)
    return files


def as_told_by_go(document: dict[str, Any]) -> dict[str, Any]:
    """Our document as the library would write it: without zeros, and with edits of the spec even where it has none."""
    told: dict[str, Any] = json.loads(json.dumps(document))
    for edits in [told.setdefault("containerEdits", {}), *(device["containerEdits"] for device in told["devices"])]:
        for node in edits.get("deviceNodes", ()):
            for key in ("major", "minor"):
                if node.get(key) == 0:
                    del node[key]
        if edits.get("intelRdt", {}).get("schemata") == []:
            del edits["intelRdt"]["schemata"]
    return told


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(cdicorpus.changed, id="whole specs with one change"),
        pytest.param(cdicorpus.versions, id="every part in every version"),
        pytest.param(cdicorpus.scalars, id="every spelling of a word"),
        pytest.param(lambda: cdicorpus.scrambled(1, 3000), id="scrambled YAML"),
    ],
)
def test_what_is_accepted_here_is_what_runtimes_accept_but_for_what_is_listed(texts: Any, tmp_path: Path) -> None:
    files = put(tmp_path, texts())
    told = cdijudge.verdicts(tmp_path)
    looser, other, unlisted = [], [], []
    for file, (name, data) in files.items():
        ours, theirs = inspect(data, file), told[file]
        if ours.spec is None:
            words = [str(problem) for problem in ours.problems]
            if not theirs.error and not any(re.search(pattern, word) for pattern in STRICTER for word in words):
                unlisted.append((name, words))
        elif theirs.error:
            looser.append((name, theirs.error))
        else:
            spec = {**(theirs.spec or {})}
            version = spec.pop("cdiVersion").removeprefix("v")
            document = as_told_by_go(spec_document(ours.spec))
            if {**spec, "cdiVersion": version} != document or theirs.minimum != minimum_version(ours.spec):
                other.append((name, theirs, document))
    assert (looser, other, unlisted) == ([], [], [])
    accepted = [file for file in files if not told[file].error]
    assert len(accepted) > 20, "the corpus tests refusals only"


def test_the_reasons_for_being_stricter_are_all_needed(tmp_path: Path) -> None:
    files = put(
        tmp_path,
        chain(cdicorpus.changed(), cdicorpus.scalars(), cdicorpus.scrambled(1, 3000), [("colon", COLON)]),
    )
    told = cdijudge.verdicts(tmp_path)
    words = " ".join(
        str(problem)
        for file, (_, data) in files.items()
        if not told[file].error
        for problem in inspect(data, file).problems
    )
    assert [pattern for pattern in STRICTER if not re.search(pattern, words)] == []


COLON = b"cdiVersion: 0.3.0\nkind: ve/cl\ndevices: [{name: a, containerEdits: {deviceNodes: [{path: /a:, type: c}]}}]"


def test_a_null_among_device_nodes_crashes_the_library_which_is_why_it_is_refused(tmp_path: Path) -> None:
    """When this fails, the library has learnt it: take the sentence out of docs/cdi.md."""
    devices = [{"name": "a", "containerEdits": {"deviceNodes": [None]}}]
    text = json.dumps({"cdiVersion": "0.3.0", "kind": "ve/cl", "devices": devices}).encode()
    (tmp_path / "a.json").write_bytes(text)
    assert cdijudge.verdicts(tmp_path)["a.json"].error.startswith("panic: ")


def test_what_we_write_runtimes_read_alike(tmp_path: Path) -> None:
    files = put(tmp_path, chain(cdicorpus.changed(), cdicorpus.versions(), cdicorpus.scalars()))
    specs = {file: spec for file, (_, data) in files.items() if (spec := inspect(data, file).spec) is not None}
    (tmp_path / "written").mkdir()
    for file, spec in specs.items():
        (tmp_path / "written" / file).write_bytes(encode(spec))
    told = cdijudge.verdicts(tmp_path / "written")
    assert {file: verdict.error for file, verdict in told.items() if verdict.error} == {}
    assert {file: told[file].spec for file in specs} == {
        file: as_told_by_go(spec_document(specs[file])) for file in specs
    }
    assert len(specs) > 1000


def test_the_same_files_give_the_same_devices(tmp_path: Path) -> None:
    def spec(*devices: str, version: str = "0.3.0", mark: str = "") -> bytes:
        made = [{"name": name, "containerEdits": {"env": [f"FROM={mark}"]}} for name in devices]
        return json.dumps({"cdiVersion": version, "kind": "ve/cl", "devices": made}).encode()

    low, middle, high = (tmp_path / name for name in ("low", "middle", "high"))
    for folder in (low, middle, high):
        folder.mkdir()
    (low / "a.json").write_bytes(spec("hidden", "alone", "twice", "healed", mark="low/a"))
    (low / "b.json").write_bytes(spec("healed", mark="low/b"))
    (low / "broken.yaml").write_bytes(b"cdiVersion: [")
    (middle / "a.yaml").write_bytes(spec("hidden", "three", mark="middle/a"))
    (middle / "b.yaml").write_bytes(spec("twice", "three", mark="middle/b"))
    (high / "a.json").write_bytes(spec("three", mark="high/a"))
    (high / "b.json").write_bytes(spec("healed", "twice", mark="high/b"))
    (high / "c.json").write_bytes(spec("twice", mark="high/c"))
    (high / "d.yml").write_bytes(spec("ignored"))
    (high / "e.json.tmp").write_bytes(spec("ignored"))
    (high / "new.json").write_bytes(spec("1", mark="new"))  # a leading digit needs 0.5.0
    (high / "folder.json").mkdir()
    ours, theirs = read_registry([low, middle, high, tmp_path / "none"]), cdijudge.load(low, middle, high)
    assert {name: it.file for name, it in ours.devices.items()} == {
        name: it["path"] for name, it in theirs["devices"].items()
    }
    assert sorted(ours.devices) == ["ve/cl=alone", "ve/cl=hidden"]
    assert {problem.file for problem in ours.problems} <= set(theirs["errors"])
    assert {str(low / "broken.yaml"), str(high / "new.json")} <= set(theirs["errors"])


def test_a_generated_spec_is_read_in_its_version_by_runtimes(tmp_path: Path) -> None:
    spec = spec_of(eight()).spec
    write_spec(spec, tmp_path, file_name(spec.kind))
    verdict = cdijudge.verdicts(tmp_path)["rdma.noderesource.dev-nic.json"]
    assert (verdict.error, verdict.minimum, spec.version) == ("", "0.3.0", "0.3.0")
    assert len(cdijudge.load(tmp_path)["devices"]) == 8


def test_two_devices_of_a_generated_spec_go_into_one_container(tmp_path: Path) -> None:
    """On the files of any machine: those of the spec are replaced by /dev/null and the like, which every host has."""
    text = encode(spec_of(eight()).spec).decode()
    for number, path in enumerate(("uverbs0", "uverbs1", "rdma_cm")):
        text = text.replace(f"/dev/infiniband/{path}", ("/dev/null", "/dev/zero", "/dev/full")[number])
    (tmp_path / "nic.json").write_text(text)
    parse(text.encode(), "nic.json")
    made = cdijudge.inject(tmp_path, "rdma.noderesource.dev/nic=mlx5_0", "rdma.noderesource.dev/nic=mlx5_1")
    devices = [(it["path"], it["type"], it["major"], it["minor"]) for it in made["linux"]["devices"]]
    assert sorted(devices) == [("/dev/full", "c", 1, 7), ("/dev/null", "c", 1, 3), ("/dev/zero", "c", 1, 5)]
    rules = [(it["major"], it["minor"], it["access"]) for it in made["linux"]["resources"]["devices"]]
    assert sorted(rules) == [(1, 3, "rw"), (1, 5, "rw"), (1, 7, "rw")]
