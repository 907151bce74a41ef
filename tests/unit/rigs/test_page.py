"""Each rig of README.md has a smallest test there, which passes."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).with_name("README.md")
PROJECT = PAGE.parents[3]


def test_each_rig_of_the_page_has_an_example_that_passes(tmp_path: Path) -> None:
    page = PAGE.read_text()
    rigs = re.findall(r"^\| `(\w+)\.py` \|", page, re.MULTILINE)
    examples = re.findall(r"^### (\w+)\.py\n\n```python\n(.+?)^```$", page, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in examples] == rigs
    for name, example in examples:
        (tmp_path / f"test_{name}.py").write_text(example)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.unit.conftest",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert f"{len(rigs)} passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
