"""containerd of any release, as a private runtime of the rig."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.rig import cache
from tests.rig.collector import Collector
from tests.rig.containerd_toml import Choices, containerd_toml
from tests.rig.guard import write_guarded_spec
from tests.rig.runtime import Runtime

_CAP_SYS_RESOURCE = 24


class Containerd(Runtime):
    """`runtime_toml` goes into the table of the runtime `runc`, for instance `pod_annotations = ["a/*"]`. Its spans are
    sent to a `collector`, if there is one.

    The runtime handler `guarded` is the same with the guard, which asks the rig's daemon."""

    def __init__(
        self,
        work: Path,
        *,
        release: cache.Release = cache.CONTAINERD_2_3,
        runtime_toml: str = "",
        nri_request_timeout: str = "",
        required_plugins: Sequence[str] = (),
        reads_cdi: bool = True,
        collector: Collector | None = None,
    ) -> None:
        super().__init__(work, release)
        self._collector = collector
        choices = Choices(
            run=self.run,
            root=self._record.root,
            state=self._record.state,
            address=self.cri_address,
            snapshotter=_snapshotter(self.work),
            restrict_oom_score_adj=not _has_capability(_CAP_SYS_RESOURCE),
            runtime_toml=runtime_toml,
            nri_request_timeout=nri_request_timeout,
            required_plugins=tuple(required_plugins),
            guarded_spec=self.run / "guarded.json",
            reads_cdi=reads_cdi,
            collector=collector.address if collector is not None else "",
        )
        write_guarded_spec(choices.guarded_spec, self.run)
        self._record.config.write_text(containerd_toml(release, choices))

    def command(self) -> tuple[str, ...]:
        """containerd with its configuration."""
        return (str(self.release.server), "--config", str(self._record.config))

    def environment(self) -> Mapping[str, str]:
        """A PATH that the release's folder leads: containerd takes the shim from there. And where its spans go: 2.x
        reads OpenTelemetry's variables only."""
        path = {"PATH": f"{self.release.folder}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}"}
        return path | (self._collector.sender_environment if self._collector is not None else {})

    def import_image(self, archive: Path) -> None:
        """With ctr, and --local: what containerd 1.7's transfer service imports it does not unpack for CRI."""
        to_cri = ("-a", str(self.cri_address), "-n", "k8s.io")
        command = (str(cache.CTR), *to_cri, "images", "import", "--local", str(archive))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"containerd refused the image: {done.stderr.strip()}")


def default_oci_spec(containerd: Containerd) -> dict[str, object]:
    """The OCI configuration containerd starts from, to be extended for `base_runtime_spec`."""
    command = [str(cache.CTR), "-a", str(containerd.cri_address), "oci", "spec"]
    spec = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert isinstance(spec, dict)
    return spec


def _snapshotter(work: Path) -> str:
    """overlayfs where the kernel lets us mount it on this file system, else native."""
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        for part in ("lower", "upper", "work", "merged"):
            (folder / part).mkdir()
        options = f"lowerdir={folder}/lower,upperdir={folder}/upper,workdir={folder}/work"
        command = ["mount", "-t", "overlay", "overlay", "-o", options, str(folder / "merged")]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return "native"
        subprocess.run(["umount", str(folder / "merged")], check=True, capture_output=True)
        shutil.rmtree(folder / "work")
        return "overlayfs"


def _has_capability(number: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line for line in lines if line.startswith("CapEff:")).split()[1]
    return bool(int(effective, 16) >> number & 1)
