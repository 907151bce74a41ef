"""One program that is etcd, every part of Kubernetes and kubectl, built once from the Go module proxy.

Kubernetes publishes no binaries there, but it can be required as a module: its go.mod points k8s.io/api and its other
parts to folders of its repository, and those are published as v0.N.P beside v1.N.P. A main package of our own calls
their entry points, and the name that it is called by says which one. Nothing of Kubernetes is copied or changed.

What was built is kept in the user's cache: fresh clones need not build it again. A build takes twelve minutes of a
processor and 5 GB, which are freed afterwards. Where there is no Go it is fetched (tests.rig.go).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.rig.go import GoError, ensure_go

VERSION = os.environ.get("KUBERNETES") or "v1.37.2"
"""The version that is built; KUBERNETES in the environment names another one that the Go module proxy has."""
MINOR = int(VERSION.split(".")[1])
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nri-rdma"
_OPERATOR = "github.com/ray-project/kuberay/ray-operator"
OPERATOR_VERSION = "v1.4.2"
_HELM = "helm.sh/helm/v4"
HELM_VERSION = "v4.3.1"
PACKAGES = 2850
"""About as many packages are compiled, for the progress that is shown."""
_SAID_EVERY_S = 20
_STAGING = re.compile(r"^\t(k8s\.io/[a-z-]+) => \./staging/", re.MULTILINE)
_LANGUAGE = re.compile(r"^(?:go |godebug )[^(\n]*$|^godebug \([^)]*\)", re.MULTILINE)
_MAIN = """\
package main

import (
	"context"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(manager.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "kubectl":
		os.Exit(cli.Run(kubectl.NewDefaultKubectlCommand()))
	default:
		os.Stderr.WriteString(name + " is no program of Kubernetes\\n")
		os.Exit(2)
	}
}
"""


@dataclass(frozen=True)
class Programs:
    """Where the programs of one version are: a folder with a link for each name."""

    folder: Path

    def __getitem__(self, name: str) -> Path:
        return self.folder / name


def ensure_programs(version: str = VERSION) -> Programs:
    """Return the programs of a version, built now if they never were. Raises ClusterError."""
    return Programs(_ensure(f"kubernetes-{version}", "kubernetes", partial(_build, version)))


@dataclass(frozen=True)
class Operator:
    """The program of KubeRay's operator, and the files of its custom resource definitions."""

    program: Path
    definitions: tuple[Path, ...]


def ensure_operator(version: str = OPERATOR_VERSION) -> Operator:
    """Return KubeRay's operator, built now if it never was. Raises ClusterError."""
    target = _ensure(f"ray-operator-{version}", "ray-operator", partial(_build_operator, version))
    return Operator(target / "ray-operator", tuple(sorted((target / "definitions").glob("*.yaml"))))


def ensure_helm(version: str = HELM_VERSION) -> Path:
    """Return the program helm, built now if it never was. Raises ClusterError."""
    return _ensure(f"helm-{version}", "helm", partial(_build_helm, version)) / "helm"


def _ensure(name: str, program: str, build: Callable[[Path], None]) -> Path:
    """Return a folder of the cache that has a program; it is built when it is not there."""
    target = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another clone may be building it
        if not (target / program).exists():
            build(target)
    return target


def _build_operator(version: str, target: Path) -> None:
    say(f"building KubeRay's operator {version} once, into {target}: about four minutes of a processor")
    _build_module(f"{_OPERATOR}@{version}", ".", target / "ray-operator", {"config/crd/bases": "definitions"})


def _build_helm(version: str, target: Path) -> None:
    say(f"building helm {version} once, into {target}: about three minutes of a processor")
    _build_module(f"{_HELM}@{version}", "./cmd/helm", target / "helm", {})


def _build_module(module: str, package: str, program: Path, beside: Mapping[str, str]) -> None:
    """Build a program of a module, and put some of the module's folders beside it, by these names."""
    _ensure_go()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="building-", dir=CACHE) as name:
        work = Path(name)
        fetched = json.loads(_run(["go", "mod", "download", "-json", module], work, {}))
        # Not `go install`: it asks the proxy for a list of versions, and for checksums that the module has itself.
        source = Path(shutil.copytree(fetched["Dir"], work / "source", copy_function=shutil.copyfile))
        complete = work / "complete"
        complete.mkdir()
        environment = {"GOCACHE": str(work / "compiled"), "CGO_ENABLED": "0"}
        how = ("-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", str(complete / program.name))
        _run(["go", "build", "-v", *how, package], source, environment)
        for folder, kept_as in beside.items():
            shutil.copytree(source / folder, complete / kept_as)
        shutil.rmtree(program.parent, ignore_errors=True)
        complete.replace(program.parent)
    say(f"built in {time.monotonic() - begun:.0f} s")


def _ensure_go() -> None:
    try:
        ensure_go()
    except GoError as error:
        raise ClusterError(str(error)) from error


def _build(version: str, target: Path) -> None:
    _ensure_go()
    begun = time.monotonic()
    say(f"building Kubernetes {version} once, into {target}: about twelve minutes of a processor")
    with tempfile.TemporaryDirectory(prefix="building-", dir=CACHE) as name:
        work = Path(name)
        source = work / "source"
        source.mkdir()
        (source / "main.go").write_text(_MAIN)
        (source / "go.mod").write_text(_requirements(version, source))
        environment = {"GOCACHE": str(work / "compiled"), "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
        _run(["go", "mod", "tidy"], source, environment)
        link = "-s -w " + " ".join(f"-X {name}={value}" for name, value in _versions(version))
        compile_ = ["go", "build", "-v", "-buildvcs=false", "-trimpath", "-ldflags", link, "-o", "kubernetes", "."]
        _run(compile_, source, environment, shows=True)
        complete = work / "complete"
        complete.mkdir()
        shutil.move(source / "kubernetes", complete)
        for program in NAMES:
            (complete / program).symlink_to("kubernetes")
        shutil.rmtree(target, ignore_errors=True)
        complete.replace(target)
    size = (target / "kubernetes").stat().st_size >> 20
    say(f"built in {time.monotonic() - begun:.0f} s, {size} MiB")


def _requirements(version: str, where: Path) -> str:
    """Return a go.mod that takes the published parts in place of the folders that Kubernetes' own one names."""
    fetched = json.loads(_run(["go", "mod", "download", "-json", f"k8s.io/kubernetes@{version}"], where, {}))
    theirs = (Path(fetched["Dir"]) / "go.mod").read_text()
    parts = _STAGING.findall(theirs)
    if not parts:
        raise ClusterError(f"the go.mod of k8s.io/kubernetes@{version} names no parts. Next: take another version.")
    published = version.replace("v1.", "v0.", 1)
    lines = ["module kubernetes", *_LANGUAGE.findall(theirs), f"require k8s.io/kubernetes {version}"]
    return "\n".join([*lines, *(f"replace {part} => {part} {published}" for part in parts)]) + "\n"


def _versions(version: str) -> list[tuple[str, str]]:
    """Return the variables that a released binary has set: the API server compares its own version with others."""
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return [(f"{package}.{name}", value) for package in packages for name, value in values.items()]


def _run(command: Sequence[str], where: Path, environment: Mapping[str, str], *, shows: bool = False) -> str:
    """Run a command and return what it printed; with `shows`, say how far it is by the lines of its errors."""
    try:
        process = subprocess.Popen(
            command, cwd=where, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError as missing:
        message = f"{command[0]} is not on this machine, and has to build programs. Next: install it."
        raise ClusterError(message) from missing
    assert process.stderr is not None
    assert process.stdout is not None
    errors: list[str] = []
    reader = threading.Thread(target=errors.extend, args=(process.stderr,))
    reader.start()
    told = time.monotonic()
    while shows and reader.is_alive():
        reader.join(1)
        if time.monotonic() - told > _SAID_EVERY_S:
            told = time.monotonic()
            say(f"compiled {len(errors)} of about {PACKAGES} packages")
    printed = process.stdout.read()
    reader.join()
    if process.wait() != 0:
        last = " / ".join(line.strip() for line in errors[-3:])
        raise ClusterError(
            f"{' '.join(command[:3])} failed: {last}. Next: see that the Go module proxy can be reached."
        )
    return printed


def say(words: str) -> None:
    """Print one line of progress."""
    print(f"cluster: {words}", flush=True)
