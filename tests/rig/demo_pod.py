"""The command `pod` of the demo's prompt: pods of its containerd, asked for as the kubelet does."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nri_rdma.errors import NriRdmaError
from nri_rdma.text.manifest import read_pods
from nri_rdma.text.placed_yaml import Placed, read_documents
from tests.rig.cri import Container, Cri, CriError, Sandbox

_KEY = "rdma.noderesource.dev/pod"


class _PodError(Exception):
    """A sentence for the person at the prompt."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked; 1 with a sentence on stderr when it is refused."""
    chosen = _parser().parse_args(arguments)
    with Cri(chosen.socket, cgroup_parent=chosen.cgroup, log_directory=chosen.work / "logs") as cri:
        try:
            return _done(cri, chosen)
        except CriError as error:
            print(f"pod: {error.text}", file=sys.stderr)
        except (NriRdmaError, _PodError, OSError) as error:
            print(f"pod: {error}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pod", description="Pods on the demo's node.")
    for name, kind in (("socket", Path), ("cgroup", str), ("work", Path)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help=f"a pod with one container, `main`; ASKS is the value of {_KEY}")
    run.add_argument("name")
    run.add_argument("asks", nargs="?", default="")
    commands.add_parser("apply", help="the pods of a manifest").add_argument("file", type=Path)
    execute = commands.add_parser("exec", help="a command in a container")
    execute.add_argument("name", metavar="NAME[/CONTAINER]")
    execute.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND...")
    commands.add_parser("list", help="all pods and containers")
    commands.add_parser("delete", help="end a pod, which gives its devices back").add_argument("name")
    return parser


def _done(cri: Cri, chosen: argparse.Namespace) -> int:
    match chosen.command:
        case "run":
            _start(cri, chosen.name, {_KEY: chosen.asks} if chosen.asks else {}, ("main",))
        case "apply":
            for document in read_documents(chosen.file.read_bytes()):
                if not isinstance(document, Placed):
                    raise document
                for pod in read_pods(document.value, chosen.file.name):
                    _start(cri, pod.name, pod.annotations, [it.name for it in pod.containers], pod.namespace)
        case "exec":
            name, _, container = chosen.name.partition("/")
            done = cri.exec(_container(cri, name, container), chosen.words)
            sys.stdout.write(done.stdout)
            sys.stderr.write(done.stderr)
            return done.exit_code
        case "list":
            for sandbox in cri.pods():
                names = " ".join(it.name for it in cri.containers(sandbox))
                print(f"{sandbox.namespace}/{sandbox.name}  {names}")
        case "delete":
            cri.delete_pod(_pod(cri, chosen.name))
    return 0


def _start(
    cri: Cri, name: str, annotations: Mapping[str, str], containers: Sequence[str], namespace: str = "default"
) -> None:
    sandbox = cri.run_pod(name, annotations=annotations, namespace=namespace)
    try:
        for container in containers:
            cri.run_container(sandbox, container)
    except CriError:
        cri.delete_pod(sandbox)
        raise
    print(f"{namespace}/{name} runs")


def _pod(cri: Cri, name: str) -> Sandbox:
    wanted = name.rpartition("/")[2]
    for sandbox in cri.pods():
        if sandbox.name == wanted:
            return sandbox
    raise _PodError(f"there is no pod {name}; `pod list` shows those there are")


def _container(cri: Cri, name: str, container: str) -> Container:
    for found in cri.containers(_pod(cri, name)):
        if container in {"", found.name}:
            return found
    raise _PodError(f"pod {name} has no container {container}; `pod list` shows those there are")


if __name__ == "__main__":
    sys.exit(main())
