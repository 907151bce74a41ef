"""Checks a file of any kind that may be for nri-rdma: finds what each document is, and all of its problems.

The kind of a document is found by its content, not by the file's name: a pod or workload, a claim with parameters for
our driver, a daemon's configuration (TOML), or a CDI spec. Law: for any bytes, `check` returns a Checked in bounded
time and raises no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any  # Any: a manifest before it is read

from nri_rdma.cdi.asking import inspect_asking
from nri_rdma.commands.validate.claim_parameters import claim_problems, why_foreign
from nri_rdma.commands.validate.pods import has_annotations, pod_problems
from nri_rdma.commands.validate.problem import NOWHERE, Problem
from nri_rdma.config.problems import problems_of
from nri_rdma.config.settings import Document
from nri_rdma.errors import ErrorCode, NriRdmaError, SettingError
from nri_rdma.text.annotations import PREFIX
from nri_rdma.text.claim_manifest import (
    Reference,
    claims_on_host_network,
    classes_in,
    is_claim,
    request_names_in,
)
from nri_rdma.text.placed_yaml import Place, Placed, read_documents
from nri_rdma.text.templates import is_object, items_of, why_unread

MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDocument:
    """One document of a file. `skipped` says why it was not checked; "" if it was checked."""

    kind: str
    name: str
    line: int
    skipped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The result for one file: its documents, its errors, and warnings about settings that are valid but probably a
    mistake. Errors and warnings are sorted by line."""

    file: str
    documents: tuple[CheckedDocument, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()


def check(data: bytes, file: str, prefix: str = PREFIX) -> Checked:
    """Check the content of a file and return its documents and problems. `file` is the name to report, and `prefix`
    begins our annotations."""
    if _is_toml(data):
        return _configuration(data, file)
    documents = read_documents(data)
    if _is_cdi(documents, data):
        return _cdi(data, file, prefix)
    lines = data.decode("utf-8-sig", errors="replace").split("\n")
    found: list[CheckedDocument] = []
    problems: list[Problem] = []
    values = [it.value for it in documents if isinstance(it, Placed)]
    classes, on_host, names = classes_in(values), claims_on_host_network(values), request_names_in(values)
    for document in documents:
        if isinstance(document, Placed):
            _objects(document, lines, file, prefix, classes, on_host, names, found, problems)
        else:
            problems.append(Problem.of(document, file, Place(document.line, document.column), ""))
    if not problems and all(item.skipped == _NO_OBJECT for item in found):
        problems.append(_nothing(file, found))
    ordered = sorted(problems, key=lambda problem: (problem.line, problem.column))
    return Checked(
        file=file,
        documents=tuple(found),
        problems=tuple(problem for problem in ordered if not problem.is_warning),
        warnings=tuple(problem for problem in ordered if problem.is_warning),
    )


def _nothing(file: str, found: list[CheckedDocument]) -> Problem:
    what = f"nothing in it could be checked: {found[0].skipped if found else 'it is empty'}"
    hint = "give a pod, a workload, a resource claim or device class, a CDI spec or a configuration"
    return Problem.of(NriRdmaError(ErrorCode.NOTHING_TO_CHECK, what, hint=hint), file, NOWHERE, "")


# Configurations and CDI specs

_TOML = re.compile(
    r"""(?:[ \t]*(?:\#[^\n]*)?\r?\n)*             # blank lines and comments
    [ \t]*(?:\[\[?[ \t]*[\w."' -]+\]\]?[ \t]*(?:\#[^\n]*)?\r?$   # then a header
    |(?:[\w-]+|"[^"\n]*"|'[^'\n]*')(?:[ \t]*\.[ \t]*(?:[\w-]+|"[^"\n]*"|'[^'\n]*'))*[ \t]*=)  # or a setting""",
    re.VERBOSE | re.MULTILINE,
)


def _is_toml(data: bytes) -> bool:
    return _TOML.match(data[: MAX_CONFIG_BYTES + 1].decode("utf-8", errors="replace")) is not None


def _configuration(data: bytes, file: str) -> Checked:
    problems = tuple(
        Problem.of(error, file, Place(error.line, 0), error.path) for error in _configuration_errors(data, file)
    )
    return Checked(file=file, documents=(CheckedDocument(kind="configuration", name="", line=1),), problems=problems)


def _configuration_errors(data: bytes, file: str) -> tuple[SettingError, ...]:
    if len(data) > MAX_CONFIG_BYTES:
        what = f"the configuration is larger than {MAX_CONFIG_BYTES} bytes"
        return (SettingError(ErrorCode.SETTING, what, hint="write fewer pools and rules"),)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return (SettingError(ErrorCode.SETTING, "it is not UTF-8", hint="save it as UTF-8", line=line),)
    return problems_of(Document(name=file, text=text))


_CDI = re.compile(rb"""^(\{\s*)?["']?cdiVersion["']?\s*:|"cdiVersion"\s*:""", re.MULTILINE)
"""Matches the key cdiVersion in a text that is not valid YAML or JSON."""


def _is_cdi(documents: tuple[Placed | NriRdmaError, ...], data: bytes) -> bool:
    if not documents or not isinstance(documents[0], Placed):
        return bool(documents) and _CDI.search(data) is not None
    return isinstance(documents[0].value, dict) and "cdiVersion" in documents[0].value


def _cdi(data: bytes, file: str, prefix: str) -> Checked:
    inspected = inspect_asking(data, file, prefix)
    name = str(inspected.spec.kind) if inspected.spec is not None else ""
    return Checked(
        file=file,
        documents=(CheckedDocument(kind="CDI spec", name=name, line=1),),
        problems=tuple(Problem.of(error, file, Place(error.line, 0), error.path) for error in inspected.problems),
    )


# Kubernetes

_NO_OBJECT = "it is no object of Kubernetes"


def _objects(
    placed: Placed,
    lines: list[str],
    file: str,
    prefix: str,
    classes: Mapping[str, Mapping[str, Any]],
    on_host: frozenset[Reference],
    names: Mapping[Reference, tuple[str, ...]],
    found: list[CheckedDocument],
    problems: list[Problem],
) -> None:
    for value, path in items_of(placed.value):
        skipped = _why_skipped(value, prefix)
        found.append(_document(value, placed.place_of(path).line, skipped))
        if skipped:
            continue
        if is_claim(value):
            problems += claim_problems(value, path, placed, file, prefix.partition("/")[0], classes, on_host)
        else:
            problems += pod_problems(value, path, placed, lines, file, prefix, names)


def _why_skipped(value: Any, prefix: str) -> str:
    if not isinstance(value, dict):
        return _NO_OBJECT
    if not is_object(value):
        return "it has no kind"
    if is_claim(value):
        return why_foreign(value, prefix.partition("/")[0])
    return "" if has_annotations(value, prefix) else why_unread(value)


def _document(value: Any, line: int, skipped: str) -> CheckedDocument:
    fields = value if isinstance(value, dict) else {}
    metadata = fields.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return CheckedDocument(
        kind=str(fields.get("kind", "")), name=name if isinstance(name, str) else "", line=line, skipped=skipped
    )
