"""Pictures for the tests, drawn by the product."""

from __future__ import annotations

from nri_rdma.commands.picture.positions import drawing_of
from nri_rdma.commands.picture.svg import svg_of
from nri_rdma.commands.picture.view import view_of
from nri_rdma.decide.placement import Taken
from nri_rdma.model.device import Node

NOTES = ("As the daemon (pid 4711) knows it now.", "A sentence that is longer than the picture is wide. " * 5)


def svg(node: Node, taken: Taken | None = None) -> str:
    """Return the picture of a node as the command writes it."""
    return svg_of(drawing_of(view_of(node, taken or {}), NOTES))
