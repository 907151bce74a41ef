"""The image's folder, small."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder as the image has it, but for what is in the interpreter."""
    root = tmp_path / "image"
    files = {
        "bin/nri-rdma": f"#!{root}/bin/python3.13 -I\nmain()\n",
        "bin/nri-rdma-hook": "#!/usr/bin/python3 -IS\n",
        "bin/nri_rdma_hook.py": "def main(): ...\n",
        "bin/python3.13": f"\x7fELF\0{root}/{'./' * 60}lib/ld.so\0{root}/{'./' * 60}lib\0end",
        "lib/libc.so.6": f"{root}/{'./' * 60}lib",
        "local/lib/deep/module.py": "pass\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).parent.chmod(0o700)
        (root / name).chmod(0o750 if text.startswith(("#!", "\x7f")) else 0o600)
    (root / "bin/python3").symlink_to("python3.13")
    return root
