"""Chooses the device that a rank of the workload trains on, and makes its training repeatable bit for bit."""

from __future__ import annotations

import os

import torch

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def take_device(kind: str) -> torch.device:
    """Call it before the first group is made. Ranks share a GPU if a node has fewer GPUs than trainers."""
    if kind == "cpu":
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts; without it sums vary by stream
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    _be_deterministic()
    return device


def _be_deterministic() -> None:
    """Computes attention by plain matrix products. Some fused kernels for float32 add up gradients in any order, and
    the choice of a kernel depends on shapes, version and GPU. The workload is so small that speed does not matter."""
    torch.use_deterministic_algorithms(True)
    # The workload reads no memory that it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
