"""What becomes of a container, whatever happens to the daemon and however it asks: each cell of docs/outcomes.md.

Each test keeps what it saw in build/, from where `python -m tests.rig.outcomes_page` brings it onto the page.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.rig import outcomes
from tests.rig.fabric import Fabric
from tests.rig.guard import GUARDED, write_definition
from tests.rig.outcomes_page import expected
from tests.rig.runtime import Runtime
from tests.runtime.asking import WAYS, Kubernetes, kubernetes
from tests.runtime.scene import Scene

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]


@pytest.fixture(scope="module")
def on(runtime: Runtime, node: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    with kubernetes(runtime, node, tmp_path_factory.mktemp("k")) as made:
        yield made
    (runtime.run / "nri-rdma/guard").unlink(missing_ok=True)


@pytest.mark.parametrize("situation", outcomes.SITUATIONS)
def test_containers_have_what_the_page_says(host_equal: None, on: Kubernetes, situation: str) -> None:
    runtime = on.runtime.release.name
    reasons = {ask: outcomes.why_impossible(runtime, situation, ask) for ask in outcomes.ASKS}
    possible = [ask for ask, reason in reasons.items() if not reason]
    if not possible:
        pytest.skip(reasons["annotation"])
    seen: dict[str, str] = {}
    for is_guarded in (True, False):
        handlers = handlers_of(on.runtime, possible, is_guarded)
        if handlers:
            with guard(on.runtime, is_guarded), Scene(on, handlers) as scene:
                seen |= scene.play(situation)
    assert seen.keys() == set(possible)
    outcomes.record(runtime, situation, seen)
    assert seen == expected(runtime, situation), "docs/outcomes.md"


def handlers_of(runtime: Runtime, asks: list[str], is_guarded: bool) -> Mapping[str, str]:
    """The handlers of pods, by what they ask for. containerd has handlers with the guard beside others; CRI-O has the
    guard for all, so that pods without it need a scene of their own."""
    if runtime.release.is_crio:
        return {ask: "" for ask in asks if WAYS[ask].is_guarded == is_guarded}
    return {ask: GUARDED if WAYS[ask].is_guarded else "" for ask in asks} if is_guarded else {}


@contextmanager
def guard(runtime: Runtime, is_guarded: bool) -> Iterator[None]:
    """CRI-O reads the guard's definition when it starts."""
    if not (runtime.release.is_crio and is_guarded):
        yield
        return
    write_definition(runtime.run / "hooks", runtime.run)
    runtime.restart()
    try:
        yield
    finally:
        (runtime.run / "hooks/nri-rdma-guard.json").unlink()
        runtime.restart()
