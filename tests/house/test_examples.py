"""Everything that people can write has an example in docs/, and every example is right."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from nri_rdma.config.settings import Settings
from nri_rdma.text.annotations import PREFIX
from nri_rdma.text.forms import StandsIn, names_of
from nri_rdma.text.network import NEIGHBOUR_KEYS, ROUTE_KEYS, VRF_KEYS
from nri_rdma.text.network import RULE_KEYS as RULE_KEYS_OF_REQUESTS
from nri_rdma.text.placed_yaml import Placed, Value, read_documents
from nri_rdma.text.pools import POOL_KEYS, RULE_KEYS
from nri_rdma.text.requests import ALIGN_KEYS, INTERFACE_KEYS, LIMITS_KEYS, MATCH_KEYS, REQUEST_KEYS
from nri_rdma.text.selectors import SELECTOR_KEYS
from tests.rig.expect import described_root
from tests.rig.node import load
from tests.rig.systree import build_proc, build_tree
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.golden import assert_in_file

PROJECT = Path(__file__).resolve().parents[2]
NODE = PROJECT / "docs/examples/node.json"
PAGES = ("README.md", "docs/requests.md", "docs/configuration.md", "docs/check.md", "docs/coming-from.md")

PLACE = f"a file in docs/examples, or a block of {', '.join(PAGES)}"
"""Where an example belongs."""
OTHERS_CLASSES = {"gpu.nvidia.com"}
"""Device classes that come with other projects' drivers."""


def blocks(page: str, language: str) -> list[str]:
    """The examples of a page in a language; annotations alone become a pod's."""
    text = (PROJECT / page).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block if language == "toml" or "kind:" in block else _pod(block) for block in found]


def _pod(annotations: str) -> str:
    lines = "".join(f"    {line}\n" for line in annotations.splitlines())
    names = "{name: trainer}, {name: storage}"
    return f"kind: Pod\nmetadata:\n  annotations:\n{lines}spec: {{containers: [{names}]}}\n"


def files(suffix: str) -> dict[str, str]:
    """The example files, but for Prometheus' rules (test_metrics_page.py)."""
    found = sorted((PROJECT / "docs/examples").glob(f"*{suffix}"))
    return {path.name: path.read_text() for path in found if path.name != "alerts.yaml"}


def examples(language: str) -> dict[str, str]:
    """Every example in a language, by its place."""
    found = {f"{page}, {language} {at}": it for page in PAGES for at, it in enumerate(blocks(page, language), 1)}
    return found | {f"docs/examples/{name}": text for name, text in files(f".{language}").items()}


NAMED = examples("yaml") | examples("toml")
MANIFESTS, CONFIGURATIONS = examples("yaml").values(), examples("toml").values()


@pytest.mark.parametrize("where", NAMED)
def test_the_example_is_right(where: str) -> None:
    example = NAMED[where]
    done = nri_rdma("validate", "-", text=example)
    assert done.returncode == 0, f"mend the example of {where}:\n{done.stdout}{example}"
    told = [line for line in done.stdout.splitlines() if ": no parameters for the driver " not in line]
    warned = re.search("^(.*: skipped|warning): ", "\n".join(told), re.MULTILINE)
    assert not warned, f"mend the example of {where}:\n{done.stdout}{example}"


@pytest.mark.parametrize("example", files(".yaml").values(), ids=files(".yaml"))
def test_a_device_class_of_an_example_file_is_in_it_or_another_drivers_own(example: str) -> None:
    asked = set(re.findall(r"deviceClassName: ([^\s,}]+)", example))
    made = set(re.findall(r"^kind: DeviceClass\nmetadata:\n  name: (\S+)$", example, re.MULTILINE))
    assert asked - made <= OTHERS_CLASSES, "put the DeviceClass into the file, or into OTHERS_CLASSES"


def test_every_key_of_a_request_has_an_example() -> None:
    used = {path for example in MANIFESTS for text in _requests(example) for path in _paths(text, "")}
    parts = {
        "match": MATCH_KEYS,
        "align": ALIGN_KEYS,
        "interface": INTERFACE_KEYS,
        "interface.vrf": VRF_KEYS,
        "routes": ROUTE_KEYS,
        "rules": RULE_KEYS_OF_REQUESTS,
        "neighbors": NEIGHBOUR_KEYS,
        "limits": LIMITS_KEYS,
    }
    known = {
        *(key.name for key in REQUEST_KEYS if StandsIn.POD not in key.refused_in),
        *(f"{part}.{key}" for part, keys in parts.items() for key in names_of(keys)),
    }
    assert known - used == set(), f"write a manifest that uses these: {PLACE}"


def test_every_form_of_an_annotation_has_an_example() -> None:
    texts = [text for example in MANIFESTS for text in _requests(example)]
    assert {type(text) for text in texts} >= {list, dict, int}  # a list of requests, one request, a count
    keys = {key for example in MANIFESTS for key in re.findall(rf"{PREFIX}[/\w.]*", example)}
    assert {PREFIX, f"{PREFIX}/pod"} <= keys
    assert any(key.startswith(f"{PREFIX}/container.") for key in keys)


def test_every_setting_and_every_key_of_the_configuration_has_an_example() -> None:
    used = {path for example in CONFIGURATIONS for path in _paths(tomllib.loads(example), "")}
    of_pools = {path.partition(".")[2].partition(".")[2] for path in used if path.startswith("pools.")}
    of_all = {
        *(item.name for item in fields(Settings)),
        *(f"rules.{key.name}" for key in RULE_KEYS),
    }
    of_each_pool = {
        *(key.name for key in POOL_KEYS),
        *(f"select.{key.name}" for key in SELECTOR_KEYS),
        *(f"{limits}.{key.name}" for key in LIMITS_KEYS for limits in ("limits", "maxLimits")),
    }
    lacking = (of_all - used) | {f"pools.NAME.{path}" for path in of_each_pool - of_pools}
    assert lacking == set(), f"write a configuration that uses these: {PLACE}"


def _requests(example: str) -> Iterator[Value]:
    """What the annotations of ours say, and the parameters of claims."""
    for document in read_documents(example.encode()):
        assert isinstance(document, Placed), document
        for path in document.places:
            value: Value = document.value
            for step in path:
                value = value[step]  # type: ignore[index]  # the path is the document's
            if str(path[-1:]).startswith(f"('{PREFIX}") and isinstance(value, str):
                (inner,) = read_documents(value.encode())
                assert isinstance(inner, Placed)
                yield inner.value
            elif path[-2:] == ("opaque", "parameters"):
                yield value


def _paths(value: object, where: str) -> Iterator[str]:
    """The keys with those that they are in; lists do not count."""
    if isinstance(value, dict):
        for key, item in value.items():
            path = f"{where}.{key}" if where else key
            yield path
            yield from _paths(item, path)
    elif isinstance(value, list):
        for item in value:
            yield from _paths(item, where)


# The node


def test_the_example_s_node_is_as_a_snapshot_of_it_is_saved(tmp_path: Path) -> None:
    build_tree(load("eight"), tmp_path / "sys")
    build_proc(load("eight"), tmp_path / "proc")
    saved = nri_rdma("snapshot", "--sysfs-root", tmp_path / "sys", "--proc-root", tmp_path / "proc")
    assert saved.returncode == 0, saved.stderr
    kernel = {"rdma_netns": "shared", "rdma_cgroup": True, "notes": []}  # these are of the machine of the tests
    node = {**json.loads(saved.stdout), **kernel}
    assert_in_file(NODE, json.dumps(node, indent=2) + "\n")


def test_an_example_can_be_explained_on_the_example_s_node() -> None:
    done = nri_rdma("explain", PROJECT / "docs/examples/aligned-pod.yaml", "--snapshot", NODE, "--gpu", "trainer=6")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gets 1 device" in done.stdout


def test_the_first_pod_of_the_readme_gets_the_devices_next_to_its_gpus_without_naming_them() -> None:
    pod = blocks("README.md", "yaml")[0]
    assert "nvidia.com/gpu: 2" in pod
    assert "0000:" not in pod
    done = nri_rdma("explain", "-", "--snapshot", NODE, "--gpu", "trainer=6,7", "-o", "json", text=pod)
    assert done.returncode == 0, done.stderr
    (explained,) = json.loads(done.stdout)["pods"]
    assert [item["devices"] for item in explained["requests"]] == [["mlx5_6", "mlx5_7"]]


def test_the_table_of_variables_has_those_that_a_pod_gets() -> None:
    page = (PROJECT / "docs/requests.md").read_text()
    table = page[page.index("| variable | set when |") :].partition("\n\n")[0].splitlines()[2:]
    rows = [re.split(r"(?<!\\)\|", line)[1:4] for line in table]
    known = {name: (when, value) for row, when, value in rows for name in re.findall(r"`([A-Z_]+)[<`]", row)}
    for mode in ("shared", "exclusive"):
        pod = f"kind: Pod\nmetadata: {{annotations: {{{PREFIX}: '{{name: a, count: 2, mode: {mode}}}'}}}}\n"
        pod += "spec: {containers: [{name: trainer}]}\n"
        done = nri_rdma("explain", "-", "--snapshot", NODE, "--allow-default-pool", "-o", "json", text=pod)
        (container,) = json.loads(done.stdout)["pods"][0]["containers"]
        set_here = {
            name.removesuffix("A") if name.startswith("RDMA_") else name: it for name, it in container["env"].items()
        }
        due = {
            name for name, (when, _) in known.items() if mode == "exclusive" or not re.search("exclusive|moved", when)
        }
        assert set_here.keys() == due, "docs/requests.md: the table of variables"
        for name, value in set_here.items():
            assert f"`{value}`" in known[name][1], f"docs/requests.md: the example of {name}"


def test_a_pod_whose_nics_are_counted_gets_them() -> None:
    done = nri_rdma(
        "explain", PROJECT / "docs/examples/counted-pod.yaml", "--snapshot", NODE, "--gpu", "trainer=0,1", columns=160
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "gets 2 devices" in done.stdout
    assert "rdma.noderesource.dev/nic: 2, which the scheduler counts; no device plugin gives it" in done.stdout


def test_a_container_with_a_share_of_each_pool_has_all_their_nics() -> None:
    shares = PROJECT / "docs/examples/shares-ray-cluster.yaml"
    pools = PROJECT / "docs/examples/shares.toml"
    done = nri_rdma("explain", shares, "--config", pools, "--snapshot", NODE, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    for pod in json.loads(done.stdout)["pods"]:
        (container,) = pod["containers"]
        for resource, numbers in (("A", range(4)), ("B", range(4, 8))):
            names = ",".join(f"mlx5_{number}" for number in numbers)
            assert container["env"][f"RDMA_DEVICES_RDMA_SHARED_DEVICE_{resource}"] == names


def test_each_gpu_of_the_claim_has_a_nic_of_its_own_that_the_node_has_below_its_root() -> None:
    documents = list(yaml.safe_load_all((PROJECT / "docs/examples/aligned-claim.yaml").read_text()))
    (asked,) = (it["spec"]["spec"]["devices"] for it in documents if it["kind"] == "ResourceClaimTemplate")
    classes = {it["name"]: it["exactly"]["deviceClassName"] for it in asked["requests"]}
    pairs = [it["requests"] for it in asked["constraints"]]
    assert {it["matchAttribute"] for it in asked["constraints"]} == {"resource.kubernetes.io/pcieRoot"}
    assert sorted(name for pair in pairs for name in pair) == sorted(classes)  # each request is in one pair
    assert all(sorted(classes[name] for name in pair) == ["gpu.nvidia.com", "rdma-nic"] for pair in pairs)
    node = load("eight")
    gpus = {described_root(node, it.function) for it in node.gpus}
    nics = {described_root(node, it.function) for it in node.rdma if it.function}
    assert len(gpus & nics) >= len(pairs)


def test_the_page_shows_what_becomes_of_the_shared_plugin_s_configuration(tmp_path: Path) -> None:
    page = PROJECT / "docs/coming-from.md"
    (there,) = re.findall(r"^```json\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "config.json").write_text(there)
    done = nri_rdma("config", "import", tmp_path / "config.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout in blocks("docs/coming-from.md", "toml"), "docs/coming-from.md: write what import prints"


def test_the_commands_about_examples_that_pages_show_can_be_run() -> None:
    shown = [
        line.partition(" #")[0].split()[1:]
        for page in PAGES
        for line in (PROJECT / page).read_text().splitlines()
        if re.match(r"nri-rdma (explain|validate) docs/examples/", line)
    ]
    assert shown
    for words in shown:
        done = nri_rdma(*(PROJECT / it if it.startswith("docs/") else it for it in words))
        assert (done.returncode, done.stderr) == (0, ""), words
