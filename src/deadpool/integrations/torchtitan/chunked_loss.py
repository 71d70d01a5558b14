"""What ChunkedLossWrapper leaves in the output layer if a fault cuts it off.

While the chunks run, it keeps FSDP2 from resharding that layer and from reducing its gradients, and its first call of
all changes for good when the layer is resharded. A survivor that was cut off there, and a process that has not
called it yet, would gather this layer at other times than the others, and the job would hang.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import ChunkedLossWrapper

from deadpool.trainer.adapters import Adapter


class ChunkedLossAdapter(Adapter):
    name = "chunked_loss"

    def __init__(self, loss: ChunkedLossWrapper) -> None:
        self._loss = loss

    @property
    def dry_steps(self) -> int:
        return 0

    def reset(self) -> None:
        self._set_as_after_a_call()

    def seated(self, resume_step: int) -> None:
        self._set_as_after_a_call()

    def _set_as_after_a_call(self) -> None:
        layer: Any = self._loss.lm_head
        if isinstance(layer, FSDPModule):
            layer.set_reshard_after_forward(True)
            layer.set_reshard_after_backward(True)
            layer.set_requires_gradient_sync(True, recurse=False)


def adapters_of(trainer: Any) -> list[Adapter]:
    return [ChunkedLossAdapter(trainer.loss_fn)] if isinstance(trainer.loss_fn, ChunkedLossWrapper) else []
