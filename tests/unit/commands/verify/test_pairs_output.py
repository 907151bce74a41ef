"""What the two sides of a measurement show."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from nri_rdma.commands.common.screen import Screen
from nri_rdma.commands.verify.measured_pairs import Latency, MeasuredPair
from nri_rdma.commands.verify.pairs_output import document, matrix, show
from nri_rdma.errors import ErrorCode, ProofError

FAILED = ProofError(ErrorCode.PROOF_PORT, "mlx5_1, port 1, cannot carry data: down", hint="see the link")
GOOD = Latency(least=1.5, median=2, p99=2.25)
MEASURED = [
    MeasuredPair(client="mlx5_0:1", server="mlx5_0:1", latency=GOOD, mib_per_s=11920.9),
    MeasuredPair(client="mlx5_0:1", server="mlx5_1:1", error=FAILED),
]


def test_people_get_a_row_for_each_pair_and_the_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    show(Screen(), MEASURED)
    assert capsys.readouterr().out == (
        "CLIENT    SERVER    MIN   MEDIAN  P99   MIB/S    GBIT/S  RESULT\n"
        "mlx5_0:1  mlx5_0:1  1.50  2.00    2.25  11920.9  100.00  ok\n"
        "mlx5_0:1  mlx5_1:1  -     -       -     -        -       PROOF-PORT\n"
        "\n"
        "nri-rdma: PROOF-PORT: mlx5_1, port 1, cannot carry data: down. Next: see the link.\n"
        "RDMA works in 1 of 2 pairs. Latencies are of one way, in us.\n"
    )


def test_programs_get_the_same_as_a_document() -> None:
    told = document(MEASURED)
    assert (told["works"], told["version"]) == (False, 1)
    assert told["pairs"][0] == {
        "client": "mlx5_0:1",
        "server": "mlx5_0:1",
        "problem": None,
        "latency_us": {"min": 1.5, "median": 2, "p99": 2.25},
        "mib_per_s": 11920.9,
        "gbit_per_s": 100.0,
    }
    assert told["pairs"][1]["problem"]["code"] == "PROOF-PORT"


def test_the_matrix_is_a_picture_with_a_cell_for_each_pair() -> None:
    picture = ElementTree.fromstring(matrix(MEASURED))
    cells = [(it.get("data-client"), it.get("data-server")) for it in picture.iter() if it.get("class") == "pair"]
    assert cells == [("mlx5_0:1", "mlx5_0:1"), ("mlx5_0:1", "mlx5_1:1")]
    texts = {it.text for it in picture.iter() if it.tag.endswith("}text")}
    assert {"2.00 us", "100.00 Gbit/s", "failed", "PROOF-PORT"} <= texts
