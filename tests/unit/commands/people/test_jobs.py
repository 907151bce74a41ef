"""What people write, in their words: jobs are explained as they mean them, and each mistake is named with what to
write."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.commands.cli.program import PROJECT, nri_rdma

HERE = Path(__file__).parent
SNAPSHOT = PROJECT / "docs/examples/node.json"
POOLS = '[pools.hca]\nmodes = ["shared"]\ndoor = "resource"\nresource = "rdma/rdma_shared_device_a"\nshares = 64\n'
CLAIMS = '[pools.nics]\nmodes = ["exclusive", "shared"]\ndoor = "claims"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A manifest, the flags of the command, what has to be in its answer, and its exit code."""

    flags: tuple[str, ...]
    told: tuple[str, ...]
    code: int
    text: str


def written(file: str) -> dict[str, Written]:
    _, *parts = re.split(r"^#### ", (HERE / file).read_text(), flags=re.MULTILINE)
    return dict(_written(part) for part in parts)


def _written(part: str) -> tuple[str, Written]:
    name, _, text = part.partition("\n")
    marked = dict[str, list[str]]()
    for sign, words in re.findall(r"^#([$>!]) ?(.*)\n", text, re.MULTILINE):
        marked.setdefault(sign, []).append(words)
    return name, Written(
        flags=tuple(shlex.split(" ".join(marked.get("$", [])))),
        told=tuple(marked.get(">", [])),
        code=int("".join(marked.get("!", ["0"]))),
        text=re.sub(r"^#[$>!].*\n", "", text, flags=re.MULTILINE),
    )


JOBS, MISTAKES = written("jobs.yaml"), written("mistakes.yaml")


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_explained_as_its_author_means_it(name: str, tmp_path: Path) -> None:
    job = JOBS[name]
    (tmp_path / "POOLS").write_text(POOLS)
    (tmp_path / "CLAIMS").write_text(CLAIMS)
    flags = [str(tmp_path / it) if it in {"POOLS", "CLAIMS"} else it for it in job.flags]
    done = nri_rdma("explain", "-", "--snapshot", SNAPSHOT, *flags, columns=999, text=job.text)
    answer = f"{done.stdout}{done.stderr}"
    words = re.sub(" +", " ", answer)
    assert [it for it in job.told if it not in words] == [], answer
    assert done.returncode == job.code, answer


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_what_to_write(name: str) -> None:
    mistake = MISTAKES[name]
    done = nri_rdma("validate", "-", text=mistake.text)
    problems = [it for it in done.stdout.splitlines() if it.startswith(("nri-rdma: ", "warning: "))]
    assert [it for it in mistake.told if it not in done.stdout] == [], done.stdout
    assert done.returncode == mistake.code, done.stdout
    assert len(problems) == (1 if mistake.told else 0), done.stdout
    assert all("Next: " in it for it in problems), done.stdout


def test_there_are_as_many_as_people_wrote() -> None:
    assert (len({name[:2] for name in JOBS}), len(MISTAKES)) == (30, 41)
