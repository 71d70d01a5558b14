"""One call of `train`, protected: its data, its position, and its loss.

`Training`: one call of `train`, protected: where its steps begin, and where it is entered again after a fault.

`Batches`: the position in the training data, in torchtitan's own way: `state_dict` of its loader, then `iter` after
`load_state_dict`.

Whether a loader goes on exactly there is up to its data set, and some do not: one that is asked in the middle of the
second epoch to go back to the first one may stay with the order of the second. So the batches of the last step are
read again after a fault, from the state before that step, and compared with what they were. Where they differ in a
process that has read data before, a fresh process takes its place. Where they differ in a fresh one the job ends:
nobody may go on with other data unnoticed.

`LoopState`: what Trainer keeps beside model, optimizers, schedulers and data, and changes in a step.

`ChunkedLossAdapter`: what ChunkedLossWrapper leaves in the output layer if a fault cuts it off.

While the chunks run, it keeps FSDP2 from resharding that layer and from reducing its gradients, and its first call
of all changes for good when the layer is resharded. A survivor that was cut off there, and a process that has not
called it yet, would gather this layer at other times than the others, and the job would hang.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import xxhash
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.tools.utils import GarbageCollection

from deadpool.errors import NotInPlace
from deadpool.integrations.plain_state import plain_attributes, set_plain_attributes
from deadpool.integrations.refusals import Refused
from deadpool.integrations.torchtitan.quiet import Quiet, watch_checkpoints, watch_metrics, watch_validation
from deadpool.integrations.torchtitan.refusals import TorchtitanRefusal
from deadpool.snapshot.record.record import decode, encode
from deadpool.snapshot.state.rng import capture_rng, restore_rng
from deadpool.trainer.adapters import Adapter
from deadpool.trainer.job import Job
from deadpool.trainer.library_job import LibraryJob
from deadpool.trainer.loop import Moved, StepLoop
from deadpool.trainer.protect import JobRank, join

_PATH = "dataloader.state_dict()"


class Batches(Iterator[Any]):
    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] | None = None
        self._was_read = False  # by this process
        # The state before the last step, with the random numbers of that moment, and what was taken in that step.
        self._before, self._rng = b"", b""
        self._taken: list[str] = []

    def begin(self, loader: Any) -> Iterator[Any]:
        """The batches of `loader`, from where it stands. It is begun here and not at the first batch, so that the
        random numbers that this draws are drawn before the first step, also by a process that comes later."""
        if loader is not self._loader:
            raise Refused(
                TorchtitanRefusal.OTHER_LOADER,
                "train() reads batches of another loader than trainer.dataloader: only that is protected",
            )
        if self._iterator is None:
            self._iterator = iter(loader)
        return self

    def __next__(self) -> Any:
        assert self._iterator is not None
        self._was_read = True
        batch = next(self._iterator)
        self._taken.append(_digest(batch))
        return batch

    def begin_step(self) -> None:
        self._before, self._rng = encode(self._loader.state_dict(), _PATH), encode(capture_rng(), "rng")
        self._taken.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"before": self._before, "rng": self._rng, "taken": list(self._taken)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What is drawn here does not count: generators are put back after all objects."""
        self._iterator = None  # ends its workers
        self._before, self._rng, self._taken = state["before"], state["rng"], list(state["taken"])
        self._loader.load_state_dict(decode(self._before, _PATH))
        self._iterator = iter(self._loader)
        restore_rng(decode(self._rng, "rng"))
        found = [_digest(next(self._iterator, None)) for _ in self._taken]
        if found != self._taken:
            self._refuse()

    def _refuse(self) -> None:
        text = "the training data, put back to where it stood before the last step, gives other batches than it gave"
        if self._was_read:
            raise NotInPlace(text)
        raise Refused(
            TorchtitanRefusal.OTHER_BATCHES,
            f"{text}, also in a fresh process: `load_state_dict` of the loader or of its data set has to put back all "
            "that the next batches depend on",
        )


def _digest(batch: Any) -> str:
    hasher = xxhash.xxh3_64()
    _feed(hasher, batch)
    return hasher.hexdigest()


def _feed(hasher: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        hasher.update(f"{value.dtype} {tuple(value.shape)};".encode())
        hasher.update(value.detach().cpu().contiguous().flatten().view(-1).numpy(force=True).tobytes())
    elif isinstance(value, dict):
        for key, each in value.items():
            hasher.update(f"{key}:".encode())
            _feed(hasher, each)
    elif isinstance(value, list | tuple):
        hasher.update(f"{len(value)};".encode())
        for each in value:
            _feed(hasher, each)
    elif isinstance(value, str | int | float | bytes | None):
        hasher.update(f"{value!r};".encode())


_TIME = "time_last_log"


class LoopState:
    """Step and token counts, other plain attributes of the trainer, and the counters of metrics and validation.

    `ended`: torchtitan has left its loop after the last step. `was_loaded`: the state came from another process, or
    was put back, since `train` was entered. `is_new`: this process has not trained yet.
    """

    def __init__(self, trainer: Any, *, is_new: bool) -> None:
        self._trainer, self.is_new = trainer, is_new
        self.ended = self.was_loaded = False

    def state_dict(self) -> dict[str, Any]:
        return {
            "ended": self.ended,
            "own": self._trainer.state_dict(),
            "parts": {name: plain_attributes(part, but=frozenset({_TIME})) for name, part in self._parts().items()},
            "since_log_s": time.perf_counter() - getattr(self._trainer.metrics_processor, _TIME),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A process that has logged keeps its clock, so that throughput counts the time that the fault has cost."""
        trainer, self.ended, self.was_loaded = self._trainer, state["ended"], True
        trainer.load_state_dict(state["own"])
        for name, part in self._parts().items():
            set_plain_attributes(part, state["parts"][name])
        if self.is_new:
            setattr(trainer.metrics_processor, _TIME, time.perf_counter() - state["since_log_s"])

    def _parts(self) -> dict[str, Any]:
        trainer = self._trainer
        parts = {"trainer": trainer, "metrics": trainer.metrics_processor}
        return parts | ({"validator": trainer.validator} if trainer.config.validator.enable else {})


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


_NO_END = 1 << 40
"""Steps of a training: torchtitan itself says when it has ended."""


class Training:
    def __init__(self, trainer: Any, objects: dict[str, object], quiet: Quiet | None, returned: LibraryJob) -> None:
        self._trainer, self._objects = trainer, dict[str, Any](objects)
        self._returned = returned
        self._quiet = quiet  # until this process is no spare any more
        self.batches = Batches(trainer.dataloader)
        self.job: Job | None = None
        self._loop: StepLoop
        self._position = LoopState(trainer, is_new=quiet is not None)
        watch_checkpoints(trainer.checkpointer, self)
        watch_metrics(trainer.metrics_processor, self)
        if trainer.config.validator.enable:
            watch_validation(trainer.validator, self)

    @property
    def is_dry(self) -> bool:
        return self.job is not None and self._loop.step is not None and self._loop.step.dry

    @property
    def loads_checkpoints(self) -> bool:
        """A process that takes part later gets its state from the others. A checkpoint that it finds may be newer than
        the one that the job began with, or half written. Nor is one read when `train` is entered again."""
        return self.job is None and self._quiet is None

    def pause(self, reason: str) -> contextlib.AbstractContextManager[None]:
        return self.job.pause(reason) if self.job is not None else contextlib.nullcontext()

    def run(self, train: Callable[[], None]) -> None:
        if self.job is not None:
            raise Refused(TorchtitanRefusal.CALLED_TWICE, "train() was called a second time: a job has one loop")
        while True:
            try:
                train()
            except BaseException as error:
                if self.job is None or not self._loop.came_back(error):
                    raise
            else:
                if self.job is None:
                    return  # there was no step to do
                # Without an open step every rank has ended. With one the data ran out, and torchtitan has left its
                # loop: this step has done nothing, and is the last.
                self._position.ended = not self.is_dry
            if self._loop.enter() is None:
                return
            self._prepare_again()

    def next_step(self, is_more: bool) -> bool:
        """Called where torchtitan begins a step or ends its loop. A process that comes later stands at the first step
        of all then, and `train` has to be entered again."""
        if self.job is None:
            if not is_more:
                return False
            self._begin()
        if not is_more and not self.is_dry:
            self._position.ended = True
            if self._loop.enter() is not None:
                raise Moved
            return False
        self._loop.next_step()
        self.batches.begin_step()
        return True

    def require_open_step(self) -> None:
        if self.job is None or self._loop.step is None:
            raise Refused(
                TorchtitanRefusal.UNKNOWN_STEPS,
                f"{type(self._trainer).__bases__[1].__name__} calls train_step without asking should_continue_training "
                "before each step, so nobody knows where steps begin: ask it in `train`, as torchtitan's Trainer does",
            )

    def _begin(self) -> None:
        trainer, joined = self._trainer, join()
        assert isinstance(joined, JobRank)
        self.batches.begin_step()
        objects: dict[str, Any] = {"position": self._position, "data": self.batches}
        for name, parts in (
            ("model", trainer.model_parts),
            ("optimizer", trainer.optimizers.optimizers),
            ("scheduler", trainer.lr_schedulers.schedulers),
        ):
            objects |= {f"{name}{index}": part for index, part in enumerate(parts)}
        self.job = joined.protect(adapters=adapters_of(trainer), **objects, **self._objects)
        self._returned.begin(self.job)
        self._loop = self.job.loop(lambda: 0 if self._position.ended else _NO_END)
        self._loop.enter()
        if self._position.was_loaded:
            raise Moved

    def _prepare_again(self) -> None:
        """The frames that the fault has cut off hold activations, and torchtitan has switched off the collection of
        garbage."""
        assert self.job is not None
        self._position.was_loaded = False
        GarbageCollection.collect("DeadPool enters the loop again")
        if self._quiet is not None and not self.job.rehearses:
            quiet, self._quiet, self._position.is_new = self._quiet, None, False
            quiet.end()
