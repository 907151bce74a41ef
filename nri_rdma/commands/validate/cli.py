"""`nri-rdma validate`: checks the files that people write for nri-rdma, before a cluster or node reads them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: a JSON document

import click

from nri_rdma.commands.common.options import annotation_prefix_option, output_option
from nri_rdma.commands.common.screen import Screen, print_json
from nri_rdma.errors import ErrorCode, SettingError

if TYPE_CHECKING:
    from nri_rdma.commands.validate.files import Checked
    from nri_rdma.commands.validate.problem import Problem

DOCUMENT_VERSION = 1
EXIT_FAILED = 1
_STDIN = Path("-")


@click.command()
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, allow_dash=True, path_type=Path), metavar="FILE..."
)
@annotation_prefix_option
@output_option
@click.pass_context
def validate(context: click.Context, files: tuple[Path, ...], annotation_prefix: str, output: str) -> None:
    """Find all errors in files for nri-rdma, with their lines.

    FILE is YAML or JSON with pods, objects with pod templates, resource claims or device classes (many documents in
    one file; - reads stdin), a CDI spec, or a configuration. The command finds out which from the content. Objects
    without a pod template are skipped and listed. It needs no node and no root; it does not know a node's pools and
    devices, as `explain` does. Ends with 1 if there is an error; warnings do not count.

    \b
    Example:
      nri-rdma validate pod.yaml claims.yaml
      kubectl kustomize . | nri-rdma validate -
      nri-rdma validate /etc/nri-rdma/config.toml -o json
    """
    from nri_rdma.commands.validate.files import check

    checked = [check(_read(path), "stdin" if path == _STDIN else str(path), annotation_prefix) for path in files]
    if output == "json":
        print_json(_document(checked))
    else:
        _show(checked)
    if any(item.problems for item in checked):
        context.exit(EXIT_FAILED)


def _read(path: Path) -> bytes:
    """Return the content of the file. At most one byte more than the checks allow is read, so that they refuse a larger
    file. Raises SettingError for a directory."""
    from nri_rdma.text.placed_yaml import MAX_BYTES

    if path != _STDIN and path.is_dir():
        hint = f"name its files, such as {path}/*.yaml; `nri-rdma cdi check` takes directories of CDI specs"
        raise SettingError(ErrorCode.SETTING, "this is a directory", where=str(path), hint=hint)
    with click.open_file(str(path), "rb") as file:
        return bytes(file.read(MAX_BYTES + 1))


def _show(checked: list[Checked]) -> None:
    screen = Screen()
    for item in checked:
        for problem in item.problems:
            screen.raw(str(problem))  # a line each, for grep
        for warning in item.warnings:
            screen.raw(str(warning))
        for document in item.documents:
            if document.skipped:
                screen.raw(f"{item.file}:{document.line}: skipped: {document.skipped}.")
    good = [document for item in checked for document in item.documents if not document.skipped]
    skipped = sum(len(item.documents) for item in checked) - len(good)
    problems = sum(len(item.problems) for item in checked)
    warnings = sum(len(item.warnings) for item in checked)
    counts = [f"{_counted(len(good), 'document')} checked", f"{skipped} skipped", _counted(problems, "problem")]
    counts += [_counted(warnings, "warning")] if warnings else []
    screen.line(f"{_counted(len(checked), 'file')}: {', '.join(counts)}.")


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _document(checked: list[Checked]) -> dict[str, Any]:
    return {
        "version": DOCUMENT_VERSION,
        "files": [
            {
                "file": item.file,
                "documents": [
                    {"kind": it.kind, "name": it.name, "line": it.line, "skipped": it.skipped} for it in item.documents
                ],
                "problems": [{"code": str(it.code), **_facts(it)} for it in item.problems],
                "warnings": [_facts(it) for it in item.warnings],
            }
            for item in checked
        ],
    }


def _facts(problem: Problem) -> dict[str, Any]:
    return {
        "file": problem.file,
        "line": problem.line or None,
        "column": problem.column or None,
        "path": problem.path,
        "what": problem.what,
        "hint": problem.hint,
        "text": str(problem),
    }
