"""Files that are no specs, one for each thing that can be wrong, and what is told of them.

refusals.txt has what is told; tests/unit/golden says how it is written anew.
"""

from __future__ import annotations

from pathlib import Path

from nri_rdma.cdi.reading import inspect

GOLDEN = Path(__file__).with_suffix(".txt")
_ONE = "devices: [{name: a, containerEdits: {env: [A=1]}}]\n"
_HEAD = "cdiVersion: 1.1.0\nkind: vendor.example/class\n"


def _edits(text: str) -> str:
    return f"{_HEAD}devices:\n- name: a\n  containerEdits:\n    {text}\n"


def _node(text: str) -> str:
    return _edits(f"deviceNodes:\n    - path: /dev/a\n    - path: /dev/b\n      {text}")


CASES: dict[str, str | bytes] = {
    "nothing": "",
    "null": "# only this\nnull\n",
    "a list": "- a\n- b\n",
    "a word": "spec\n",
    "not UTF-8": b"cdiVersion: 1.1.0\nkind: \xff\n",
    "too large": "#" * ((1 << 20) + 1),
    "too deep": "a: " + "[" * 20,
    "too many values": f"{_HEAD}devices: [{'a,' * 50_001}]",
    "too long a text": f'{_HEAD}devices: "{"a" * 131_073}"',
    "too long a key": f'{_HEAD}? "{"a" * 318}"\n: 1',
    "a multiplying alias": "\n".join(
        f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10 if number else ['x'])}]" for number in range(9)
    ),
    "an alias of nothing": f"{_HEAD}devices: *none\n",
    "an alias of itself": f"{_HEAD}devices: &a [*a]\n",
    "an anchored key": f"{_HEAD}&a devices: []\n",
    "a tag": f"{_HEAD}devices: !!python/name:os.system\n",
    "a broken bracket": '{"cdiVersion": "1.1.0",\n "kind": "ve/cl"\n',
    "a word with a question mark in brackets": f"{_HEAD}devices: [{{name: a, containerEdits: {{env: [A=b?]}}}}]\n",
    "a NUL": _edits('env: ["A=\\0"]'),
    "a second document": f"{_edits('env: [A=1]')}---\nkind: x\n",
    "a list as a key": f"{_HEAD}[a]: b\n",
    "a merge of a text": f"{_HEAD}<<: text\n",
    "a key twice": f"{_HEAD}devices: []\nkind: ve/cl\n",
    "everything missing": "{}\n",
    "unknown fields": f"{_HEAD}device:\n- name: a\ncontaineredits: {{}}\nx: 1\n",
    "an unknown field far below": _node("majr: 1"),
    "an unknown version": "cdiVersion: 1.2\nkind: ve/cl\ndevices: [{name: a, containerEdits: {env: [A=1]}}]\n",
    "an old version": "cdiVersion: v0.2.0\nkind: ve/cl\ndevices: [{name: a, containerEdits: {env: [A=1]}}]\n",
    "a kind without a class": "cdiVersion: 0.3.0\nkind: vendor\ndevices: [{name: a, containerEdits: {env: [A=1]}}]\n",
    "a class of one letter": f"cdiVersion: 0.3.0\nkind: example.com/c\n{_ONE}",
    "a vendor of one letter": f"cdiVersion: 0.3.0\nkind: v/nic\n{_ONE}",
    "a kind that ends with a dot": "cdiVersion: 0.3.0\nkind: ve/cl.\ndevices: []\n",
    "no device": f"{_HEAD}devices: []\n",
    "devices as a mapping": f"{_HEAD}devices: {{a: {{}}}}\n",
    "a device that is a name": f"{_HEAD}devices: [a]\n",
    "a device without a name": f"{_HEAD}devices:\n- containerEdits: {{env: [A=1]}}\n",
    "a device name with a slash": f"{_HEAD}devices:\n- name: a/b\n  containerEdits: {{env: [A=1]}}\n",
    "a device that changes nothing": f"{_HEAD}devices:\n- name: a\n  containerEdits: {{env: [], intelRdt: null}}\n",
    "a device without edits": f"{_HEAD}devices:\n- name: a\n",
    "two devices of one name": (
        f"{_HEAD}devices:\n- name: a\n  containerEdits: {{env: [A=1]}}\n- containerEdits: {{env: [A=1]}}\n  name: a\n"
    ),
    "a variable without a value": _edits("env: [A=1, B]"),
    "a variable without a name": _edits('env: ["=1"]'),
    "a list as a variable": _edits("env: [[A=1]]"),
    "an empty entry": _edits("env: [A=1, ~]"),
    "a node without a path": _edits("deviceNodes: [{type: c}]"),
    "a node with an empty path": _edits('deviceNodes: [{path: ""}]'),
    "a node that is null": _edits("deviceNodes: [null]"),
    "an unknown type": _node("type: char"),
    "unknown permissions": _node("permissions: rwx"),
    "a major beyond Linux": _node("major: 4096"),
    "a negative minor": _node("minor: -1"),
    "a fraction": _node("fileMode: 438.5"),
    "a number in quotes": _node('fileMode: "0666"'),
    "an octal with an eight": _node("fileMode: 0668"),
    "a list as a number": _node("uid: [1]"),
    "a group beyond 32 bits": _edits("additionalGids: [4294967296]"),
    "a netdev without a name": _edits("netDevices: [{hostInterfaceName: eth0}]"),
    "a netdev twice": _edits(
        "netDevices:\n    - {hostInterfaceName: eth0, name: a}\n    - {hostInterfaceName: eth0, name: b}"
    ),
    "two netdevs of one name": _edits(
        "netDevices:\n    - {hostInterfaceName: eth0, name: a}\n    - {hostInterfaceName: eth1, name: a}"
    ),
    "an unknown hook": _edits("hooks: [{hookName: preStart, path: /bin/true}]"),
    "a hook without a program": _edits("hooks: [{hookName: prestart, env: [A]}]"),
    "a mount of nothing": _edits("mounts: [{containerPath: /a, options: ro}]"),
    "a class of service that leads elsewhere": _edits("intelRdt: {closID: a/b}"),
    "a truth in quotes": _edits('intelRdt: {enableMonitoring: "true"}'),
    "annotations that are a list": f"{_edits('env: [A=1]')}annotations: [a]\n",
    "an annotation that is a list": f"{_edits('env: [A=1]')}annotations: {{a.b/c: [1]}}\n",
    "features newer than the version": (
        'cdiVersion: "0.3.0"\nkind: ve/cl.d\nannotations: {a: b}\ndevices:\n- name: 0a\n  containerEdits:\n'
        "    deviceNodes:\n    - path: /a\n      hostPath: /b\n    netDevices: [{hostInterfaceName: a, name: b}]\n"
        "    mounts: [{hostPath: a, containerPath: b, type: bind}]\n"
        "    intelRdt: {schemata: [], enableMonitoring: true}\n    additionalGids: [1]\n"
    ),
    "many things at once": (
        "cdiVersion: 9\nkind: 7\ndevices:\n- name: '-'\n  containerEdits: {env: [1], hooks: [x]}\n- nam: b\nextra: 1\n"
    ),
    "terminal commands": f'{_HEAD}devices: [{{name: "\\e[2J", containerEdits: {{env: [A=1]}}}}]\n',
}


def told() -> str:
    """Every case with every problem, as the golden file has it."""
    parts: list[str] = []
    for name, text in CASES.items():
        data = text if isinstance(text, bytes) else text.encode()
        problems = "\n".join(str(problem) for problem in inspect(data, "FILE").problems)
        parts.append(f"# {name}\n{problems}\n")
    return "\n".join(parts)
