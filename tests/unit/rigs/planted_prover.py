"""A prover that answers as a test has planted it. It keeps what it was asked."""

from __future__ import annotations

import time

from nri_rdma.model.proof import DeviceProof, DeviceTask, ProofAnswer, ProofEnd, ProofProblem, ProofStep, ProofTask


class PlantedProver:
    """Proves each port, unless `problem` or another `end` is planted."""

    def __init__(self) -> None:
        self.end = ProofEnd.ANSWERED
        self.problem: ProofProblem | None = None
        self.takes_s = 0.0
        self.asked: list[tuple[ProofTask, float]] = []

    def fail(self, step: ProofStep, text: str, errno: int | None = None) -> None:
        """Have each port fail at this step."""
        self.problem = ProofProblem(step=step, text=text, errno=errno)

    def prove(self, task: ProofTask, within_s: float) -> ProofAnswer:
        self.asked.append((task, within_s))
        time.sleep(self.takes_s)
        if self.end is not ProofEnd.ANSWERED:
            return ProofAnswer(end=self.end, took_ms=1.0, text="as planted")
        return ProofAnswer(end=self.end, took_ms=12.5, proofs=tuple(map(self._proof, task.devices)))

    def _proof(self, task: DeviceTask) -> DeviceProof:
        return DeviceProof(
            device=task.device,
            port=task.port,
            gid_index=1 if task.gid_index is None else task.gid_index,
            gid="::ffff:10.0.0.1",
            transport="roce",
            registered_bytes=1 << 20,
            transferred_bytes=1 << 20,
            problem=self.problem,
        )
