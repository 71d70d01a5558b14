"""Which device a rank of the workload trains on, and what makes training repeat itself there bit for bit."""

from __future__ import annotations

import os

import torch

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def take_device(kind: str) -> torch.device:
    """Before the first group is made. Ranks share a GPU where a node has fewer of them than trainers."""
    if kind == "cpu":
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts: else sums vary by stream
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    _be_deterministic()
    return device


def _be_deterministic() -> None:
    """Attention by plain matrix products: of the fused kernels those for float32 add up gradients in any order unless
    told not to, and which kernel is taken depends on shapes, version and GPU. The workload is too small to care."""
    torch.use_deterministic_algorithms(True)
    # Nothing here reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
