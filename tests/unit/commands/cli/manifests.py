"""Manifests of pods for `explain`."""

import json
from pathlib import Path

GOOD = """\
kind: Pod
metadata: {name: a, annotations: {rdma.noderesource.dev: rails}}
spec: {containers: [{name: main}]}
"""


def pod(annotation: str, name: str = "one") -> str:
    """A manifest whose pod asks in one word or in flow style."""
    value = json.dumps(annotation)
    metadata = f"{{name: {name}, annotations: {{rdma.noderesource.dev: {value}}}}}"
    return f"kind: Pod\nmetadata: {metadata}\nspec: {{containers: [{{name: a}}]}}\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
