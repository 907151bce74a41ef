"""The transaction: do all steps or none. One undo serves a failed attach, the end of a sandbox, and the recovery after
a crash."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from nri_rdma.attach.port import Kernel, Namespace
from nri_rdma.attach.steps import Restoring, Step
from nri_rdma.errors import AttachError, NriRdmaError
from nri_rdma.observe.spans import Recorder

T = TypeVar("T")

Boundary = Callable[[str], None]
"""Called before and after each step with the name of the place; a test may raise there, wait, or end the process.

A step has the places ``before NAME DEVICE`` and ``after NAME DEVICE``, its undo ``before undo NAME DEVICE`` and ``after
undo NAME DEVICE``, the restore on the host ``before restore DEVICE`` and ``after restore DEVICE``. Only the code that
creates a Daemon can pass a boundary: no setting, variable or socket leads here.
"""


def no_boundary(_place: str) -> None:
    """Do nothing. It is the default for a Boundary, the hook by which tests interrupt an attach before or after a
    step."""


def _nobody_waits() -> None:
    """Do nothing: the default for callers that do not wait for the devices to be on the host."""


def do_steps(
    kernel: Kernel, namespace: Namespace, steps: tuple[Step, ...], spans: Recorder, boundary: Boundary = no_boundary
) -> None:
    """Do all steps in order. Raises the first error; the caller then undoes the steps."""
    for step in steps:
        boundary(f"before {step.name} {step.device}")
        with spans.span(step.name, {"rdma.device": step.device, "step": step.describe()}):
            step.do(kernel, namespace)
        boundary(f"after {step.name} {step.device}")


def undo_steps(
    kernel: Kernel,
    namespace: Namespace | None,
    steps: tuple[Step, ...],
    spans: Recorder,
    boundary: Boundary = no_boundary,
    on_returned: Callable[[], None] = _nobody_waits,
) -> tuple[NriRdmaError, ...]:
    """Undo all steps, last one first, then restore the configuration of the returned devices. An error, even an
    unexpected exception, does not stop the other steps, so that as many devices as possible return.

    `on_returned` is called once all devices are on the host: from then on the namespace may end. Return the errors; an
    empty tuple means that the host is as before the attach.
    """
    undoing = _Undoing(spans, boundary)
    restoring: list[tuple[str, Restoring]] = []
    for step in reversed(steps):
        rest = undoing.attempt(f"undo {step.name}", step.device, partial(step.undo, kernel, namespace))
        if rest is not None:
            restoring.append((step.device, rest))
    if not undoing.errors:
        on_returned()
    for device, rest in restoring:
        undoing.attempt("restore", device, rest)
    return tuple(undoing.errors)


class _Undoing:
    """Runs the undo and the restore of each device, and collects their errors."""

    def __init__(self, spans: Recorder, boundary: Boundary) -> None:
        self._spans = spans
        self._boundary = boundary
        self.errors: list[NriRdmaError] = []

    def attempt(self, what: str, device: str, work: Callable[[], T]) -> T | None:
        """Run `work` and return its result; if it fails, record the error and return None. The hook for tests
        (`Boundary`) is called before and after `work`."""
        try:
            self._boundary(f"before {what} {device}")
            with self._spans.span(what, {"rdma.device": device}):
                result = work()
            self._boundary(f"after {what} {device}")
        except NriRdmaError as error:
            self.errors.append(error)
        except Exception as error:  # noqa: BLE001 - a bug in one step must not keep the devices of the others away
            told = f"{what}: {type(error).__name__}: {error}"
            self.errors.append(AttachError(told, device=device, hint="report this bug, with the daemon's log"))
        else:
            return result
        return None
