"""The transaction: all steps or none, and one undo for rollback, detach and recovery."""

from __future__ import annotations

from collections.abc import Callable

from nri_rdma.attach.port import Kernel, Namespace
from nri_rdma.attach.steps import Step
from nri_rdma.errors import AttachError, NriRdmaError
from nri_rdma.observe.spans import Recorder

Boundary = Callable[[str], None]
"""Called at every boundary with its place; a test may raise there, wait, or end the process.

The places of a step are ``before NAME DEVICE`` and ``after NAME DEVICE``, those of its undo ``before undo NAME DEVICE``
and ``after undo NAME DEVICE``. Only who makes a Daemon can give one: no setting, variable or socket leads here.
"""


def no_boundary(_place: str) -> None:
    """The boundary of production: nothing happens there."""


def do_steps(
    kernel: Kernel, namespace: Namespace, steps: tuple[Step, ...], spans: Recorder, boundary: Boundary = no_boundary
) -> None:
    """Do all steps in order. Raises the first error; the caller undoes."""
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
) -> tuple[NriRdmaError, ...]:
    """Undo all steps, last first, going on after an error, even one of our own: every device that can come home does.

    Returns the errors; empty means that the host is as before.
    """
    errors: list[NriRdmaError] = []
    for step in reversed(steps):
        try:
            boundary(f"before undo {step.name} {step.device}")
            with spans.span(f"undo {step.name}", {"rdma.device": step.device}):
                step.undo(kernel, namespace)
            boundary(f"after undo {step.name} {step.device}")
        except NriRdmaError as error:
            errors.append(error)
        except Exception as error:  # noqa: BLE001 - a bug in one step must not keep the devices of the others away
            what = f"undo {step.name}: {type(error).__name__}: {error}"
            errors.append(AttachError(what, device=step.device, hint="report this bug, with the daemon's log"))
    return tuple(errors)
