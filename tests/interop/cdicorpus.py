"""CDI files to compare two readers by: whole ones, and systematic and random changes of them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any  # Any: JSON values

from nri_rdma.cdi.spec import Version

FULL: dict[str, Any] = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.example/class.x",
    "annotations": {"example.com/note": "of the spec"},
    "devices": [
        {
            "name": "0:a",
            "annotations": {"note": "of the device"},
            "containerEdits": {
                "env": ["A=1", "B="],
                "deviceNodes": [
                    {
                        "path": "/dev/a",
                        "hostPath": "/dev/host-a",
                        "type": "c",
                        "major": 231,
                        "minor": 192,
                        "fileMode": 438,
                        "permissions": "rw",
                        "uid": 1,
                        "gid": 2,
                    }
                ],
                "netDevices": [{"hostInterfaceName": "eth1", "name": "rdma0"}],
                "hooks": [
                    {"hookName": "createRuntime", "path": "/bin/h", "args": ["h", "x"], "env": ["C=2"], "timeout": 3}
                ],
                "mounts": [
                    {"hostPath": "/lib/a", "containerPath": "/lib/b", "options": ["ro", "bind"], "type": "bind"}
                ],
                "intelRdt": {
                    "closID": "c",
                    "l3CacheSchema": "L3:0=f",
                    "memBwSchema": "MB:0=10",
                    "schemata": ["L3:0=f"],
                    "enableMonitoring": True,
                },
                "additionalGids": [4, 5],
            },
        },
        {"name": "b", "containerEdits": {"deviceNodes": [{"path": "/dev/b"}, {"path": "/dev/c", "type": "p"}]}},
    ],
    "containerEdits": {"env": ["D=3"], "netDevices": [{"hostInterfaceName": "eth2", "name": "rdma1"}]},
}
PLAIN: dict[str, Any] = {
    "cdiVersion": "0.3.0",
    "kind": "vendor.example/class",
    "devices": [
        {"name": "a", "containerEdits": {"deviceNodes": [{"path": "/dev/a", "type": "b", "major": 1, "minor": 2}]}},
        {"name": "b", "containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/b"}]}},
    ],
}
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 4095, 4096, 2**20 - 1, 2**20, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64, 10**30),
    *(1.0, 1.5, 1e3, -0.0, "", " ", "a", "0", "a b", "a=b", "=", "=b", "a/b", "/", "//", "a.b/c.d", "é", "a\u2028b"),
    *("rwm", "none", "c", "u", "x", "poststart", "v1.1.0", "1.0.0", "0.2.0", "1.2", "yes", "null", "~", "<<", "😀"),
    *(".", "..", "a\nb", "a\tb", "a\0b", "x" * 5000),
    *([], {}, [None], [""], ["a"], ["a=b", "a=b"], [[]], [{}], [1], [1.5], [-1], {"a": None}, {"a": 1}, {"": ""}),
    *({"name": "x"}, {"path": "/x"}, [{"path": "/x"}], [{"path": "/x"}, None], {"a\0": "b"}, {"a": ["b"]}),
)
_WORDS = """
null Null NULL ~ true True TRUE tRUE false yes Yes YES yEs no on Off y Y n 0 00 01 07 08 0777 0o17 0O17 0x1f 0X1F -0x1
0b101 0B1 -0b1 1_000 _1 1_ +5 -0 1. .5 1.5 1.0 438.0 1e2 1E2 1e-2 1e400 .inf -.Inf .nan 1:30 2001-01-01 12e03 08.0 0o8
0xg 9223372036854775807 9223372036854775808 18446744073709551615 18446744073709551616 "5" '5' "yes" "true" 'null' "" a?b
| > @ ` % & * ! - ? : , # = <<
"""
_TAGGED = ("!!str 5", "!!int 5", '!!int "5"', "!!float 5", "!!null 5", "!!bool yes", "!foo 5", "! 5", "!!binary NQ==")
SCALARS = (*_WORDS.split(), *_TAGGED, "&x 5", "5 # five", "a b")
PLACES = (
    "cdiVersion: 1.1.0\nkind: ve/cl\ndevices: [{name: a, containerEdits: {deviceNodes: [{path: /a, minor: %s}]}}]",
    "cdiVersion: 1.1.0\nkind: ve/cl\ndevices: [{name: a, containerEdits: {deviceNodes: [{path: /a, fileMode: %s}]}}]",
    "cdiVersion: 1.1.0\nkind: ve/cl\ndevices: [{name: a, containerEdits: {intelRdt: {enableMonitoring: %s}}}]",
    "cdiVersion: 1.1.0\nkind: ve/cl\ndevices: [{name: %s, containerEdits: {env: [A=1]}}]",
    "cdiVersion: 1.1.0\nkind: ve/cl\ndevices: [{name: a, annotations: {k: %s}, containerEdits: {env: [A=1]}}]",
    "cdiVersion: 1.1.0\nkind: ve/cl\nannotations: {%s: v}\ndevices: [{name: a, containerEdits: {env: [A=1]}}]",
    "cdiVersion: %s\nkind: ve/cl\ndevices: [{name: a, containerEdits: {env: [A=1]}}]",
    "cdiVersion: 1.1.0\nkind: ve/cl\ndevices: [{name: a, containerEdits: {env: [A=1], additionalGids: [%s]}}]",
    "cdiVersion: 1.1.0\nkind: ve/cl\ndevices: [{name: a, containerEdits: {env: [A=1], mounts: %s}}]",
    "cdiVersion: 1.1.0\nkind: ve/cl\ndevices:\n- name: a\n  containerEdits:\n    env:\n    - A=1\n    - %s\n",
)
YAML = """\
# by hand
---
cdiVersion: "0.6.0"
kind: vendor.example/class
annotations: {a.b/c: "x"}
containerEdits: &common
  env:
  - A=1
  - 'B=it''s'
devices:
- name: a
  containerEdits:
    <<: *common
    deviceNodes:
    - &node {path: /dev/a, type: c, major: 0xe7, minor: 192, fileMode: 0666}
- name: b
  containerEdits:
    deviceNodes:
    - *node
    - path: /dev/b
      permissions: >-
        rw
- name: c
  containerEdits: *common
"""


def changed() -> Iterator[tuple[str, bytes]]:
    """Whole specs with one thing changed: a value left out, replaced, a field added; in each version."""
    for label, base in (("full", FULL), ("plain", PLAIN)):
        for version in ["0.1.0", "0.2.0", *Version, "v1.1.0", "1.2.0"]:
            yield f"{label} as {version}", _json({**base, "cdiVersion": version})
        for path in _paths(base):
            name = f"{label} {'.'.join(map(str, path))}"
            yield f"{name} left out", _json(_with(base, path, None, leave_out=True))
            for value in VALUES:
                yield f"{name} is {json.dumps(value)[:40]}", _json(_with(base, path, value))
            found = _at(base, path)
            if isinstance(found, dict):
                yield f"{name} with another", _json(_with(base, path, {**found, "other": 1}))
                yield f"{name} in other case", _json(_with(base, path, {k.upper(): v for k, v in found.items()}))
            if isinstance(found, list):
                yield f"{name} twice", _json(_with(base, path, [*found, *found]))


def versions() -> Iterator[tuple[str, bytes]]:
    """Each part of the full spec alone, in each version: the gates."""
    edits = FULL["devices"][0]["containerEdits"]
    parts: dict[str, dict[str, Any]] = {key: {key: value} for key, value in edits.items()}
    parts |= {f"intelRdt {key}": {"intelRdt": {key: value}} for key, value in edits["intelRdt"].items()}
    parts |= {"no schemata": {"intelRdt": {"schemata": []}}, "plain mount": {"mounts": PLAIN["devices"][1]}}
    parts |= {"plain node": {"deviceNodes": [{"path": "/a"}]}, "no gids": {"env": ["A=1"], "additionalGids": []}}
    for version in Version:
        for name, part in parts.items():
            own = [{"name": "a", "containerEdits": part}]
            yield f"{name} {version}", _json({**PLAIN, "cdiVersion": version, "devices": own})
            yield f"{name} of the spec {version}", _json({**PLAIN, "cdiVersion": version, "containerEdits": part})
        for kind in ("ve/cl.d", "ve.w/cl", "v/c", "ve/cl"):
            for device in ("1", "a1"):
                own = [{"name": device, "containerEdits": {"env": ["A=1"]}}]
                yield (
                    f"{kind} {device} {version}",
                    _json({**PLAIN, "cdiVersion": version, "kind": kind, "devices": own}),
                )
        for notes in ({}, {"a": "b"}):
            yield f"{notes} {version}", _json({**PLAIN, "cdiVersion": version, "annotations": notes})


def scalars() -> Iterator[tuple[str, bytes]]:
    """YAML's many spellings, in places of every type."""
    for number, place in enumerate(PLACES):
        for scalar in SCALARS:
            yield f"{number} {scalar}", (place % scalar).encode()


def scrambled(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """YAML by hand with some characters or lines changed."""
    chance = random.Random(seed)
    pieces = [
        *"[]{}:,-?!&*#|>%@`'\" \n\tab01.~<=/",
        "\n\n",
        "  ",
        "---\n",
        "...\n",
        "*node",
        "&node ",
        "null",
        "é",
        "\0",
    ]
    for number in range(count):
        text = YAML
        for _ in range(chance.randint(1, 3)):
            at, width = chance.randrange(len(text)), chance.choice([0, 0, 1, 2, 8])
            text = text[:at] + chance.choice(["", *pieces]) + text[at + width :]
        yield f"scrambled {seed} {number}", text.encode()


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))


def _at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def _with(base: Any, path: tuple[str | int, ...], value: Any, *, leave_out: bool = False) -> Any:
    if not path:
        return {} if leave_out else value
    made = copy.deepcopy(base)
    holder = _at(made, path[:-1])
    if leave_out:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return made


def _json(value: Any) -> bytes:
    """In YAML's terms too: characters beyond the first plane as they are."""
    return json.dumps(value, ensure_ascii=False).replace("\u2028", "\\u2028").encode()
