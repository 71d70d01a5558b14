"""The layout matrix with NCCL: nodes are killed at every moment, and every rank's results are those undisturbed.

All ranks share one GPU, which plain NCCL refuses: docs/gpu.md says how to make one that does not.
"""

from __future__ import annotations

import os

import pytest
from matrix import Matrix, Shape, extent_of

from deadpool.backend.torch_versions import NCCL_NAMES

LEGACY = {"ddp-legacy": Shape(2, 2, ("--backend", "nccl-legacy"), layout="ddp")}
SHARED = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
MATRIX = Matrix(
    {
        "ddp": Shape(2, 2, ("--optimizer", "foreach")),
        "fsdp2": Shape(4, 1),
        "hsdp": Shape(4, 1, ("--optimizer", "capturable")),
        "tp": Shape(2, 2),
        "pp-1f1b": Shape(2, 2),
        "3d": Shape(4, 2),
        **(LEGACY if "nccl-legacy" in NCCL_NAMES else {}),
    },
    ("--clip", "1.0", "--dropout", "0.1", "--checkpoint", "--ema", "0.9", "--device", "cuda"),
)

pytestmark = pytest.mark.skipif(not SHARED, reason="needs an NCCL that lets ranks share a GPU: docs/gpu.md")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    MATRIX.parametrize(metafunc)


@pytest.mark.timeout(1200)
def test_survives_bit_for_bit_with_nccl(cell, request, tmp_path_factory, fork_server):
    MATRIX.check(cell, extent_of(request.config), tmp_path_factory.mktemp, fork_server)
