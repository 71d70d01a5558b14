"""The model of overhead.py: one rank trains a whole GPT in bf16, with master weights and moments in fp32.

Nothing in it waits for the device; time is measured between marks, which are CUDA events on a CUDA device.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deadpool.demo.gpt import GPT, Size, mean_loss
from deadpool_lab.workload.master_weights import MasterAdamW

LARGE = Size(width=2048, heads=16, sequence=1024, vocabulary=32_768)
SMALL = Size(width=128, heads=4, sequence=64, vocabulary=512)
LARGE_FROM = 200e6  # parameters
SEQUENCES = 8
"""In a micro-batch, at most. With 2, launching a large model's kernels takes as long as running them on an H200."""
DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}  # few CPUs have fast arithmetic in bf16
_PLAIN_BYTES = 1 << 30
_PLAIN_REPEATS = 5


def size_for(parameters: float) -> Size:
    """Returns the size of a GPT with about `parameters` parameters."""
    base = LARGE if parameters >= LARGE_FROM else SMALL
    ends = (2 * base.vocabulary + base.sequence) * base.width
    layers = max(1, round((parameters - ends) / (12 * base.width**2)))
    return Size(layers=layers, width=base.width, heads=base.heads, sequence=base.sequence, vocabulary=base.vocabulary)


@dataclass(frozen=True, slots=True)
class Marks:
    """Points in the device's work, and the time between them."""

    device: torch.device

    def set(self) -> Any:
        if self.device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def finish(self) -> None:
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)

    def between_s(self, earlier: Any, later: Any) -> float:
        """Returns the time between two marks. Call it after finish()."""
        if self.device.type == "cpu":
            return float(later - earlier)
        return float(earlier.elapsed_time(later)) / 1e3


class Solo:
    """A model of which `share` is protected: the part that one of 1/share ZeRO ranks would have."""

    def __init__(self, size: Size, device: torch.device, share: float = 1.0) -> None:
        torch.manual_seed(0)
        with device:
            self.model = GPT(size).to(DTYPES[device.type])
            self._tokens = torch.randint(size.vocabulary, (SEQUENCES, size.sequence + 1))
        self.device, self.sequences = device, SEQUENCES
        own, others = split(list(self.model.parameters()), share)
        self.own = nn.ParameterList(own)
        self.optimizer = MasterAdamW(own)
        self._other_optimizer = MasterAdamW(others) if others else None

    def train_step(self, micro_batches: int) -> None:
        batch = self._tokens[: self.sequences]
        tokens, targets = batch[:, :-1], batch[:, 1:]
        for _ in range(micro_batches):
            (mean_loss(self.model(tokens), targets) / micro_batches).backward()

    def update(self) -> None:
        """Steps the protected optimizer first, so that a copy has only the time of forward and backward."""
        for optimizer in (self.optimizer, self._other_optimizer):
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()

    @property
    def state_bytes(self) -> int:
        """Returns the bytes of the protected parameters, master weights and moments."""
        return sum(tensor.nbytes for tensor in self.state().values())

    def state(self) -> dict[str, Tensor]:
        found = {f"param.{i}": parameter.detach() for i, parameter in enumerate(self.own)}
        for i, parameter in enumerate(self.own):
            found |= {f"state.{i}.{key}": value for key, value in self.optimizer.state[parameter].items()}
        return found


def split(parameters: list[Tensor], share: float) -> tuple[list[Tensor], list[Tensor]]:
    """Takes the first parameters until they are the share; if the share is 1, it takes all of them."""
    wanted, own = share * sum(each.numel() for each in parameters), list[Tensor]()
    while parameters[len(own) :] and sum(each.numel() for each in own) < wanted:
        own.append(parameters[len(own)])
    return own, parameters[len(own) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """The speeds of this machine without protection."""

    micro_batch_s: float
    update_s: float
    plain_bytes_per_s: float  # from the device into pinned memory

    def micro_batches(self, step_s: float) -> int:
        """Returns the number of micro-batches for a step of about `step_s`."""
        return max(1, round((step_s - self.update_s) / self.micro_batch_s))


def measure(solo: Solo) -> Speeds:
    for _ in range(2):  # the first step does one-time work
        solo.train_step(1)
        solo.update()
    return Speeds(
        micro_batch_s=_time_s(solo.device, lambda: solo.train_step(1)),
        update_s=_time_s(solo.device, solo.update),
        plain_bytes_per_s=plain_copy(solo.device),
    )


def plain_copy(device: torch.device) -> float:
    """Returns the rate of the fastest copy of a large block into pinned memory (on the CPU: into plain memory)."""
    size = _PLAIN_BYTES if device.type != "cpu" else _PLAIN_BYTES >> 6
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty(size, dtype=torch.uint8, pin_memory=device.type != "cpu")
    target.copy_(source)
    best = min(_time_s(device, lambda: target.copy_(source, non_blocking=True), 1) for _ in range(_PLAIN_REPEATS))
    return size / best


def _time_s(device: torch.device, work: Any, repeats: int = 3) -> float:
    marks = Marks(device)
    begin = marks.set()
    for _ in range(repeats):
        work()
    end = marks.set()
    marks.finish()
    return marks.between_s(begin, end) / repeats
