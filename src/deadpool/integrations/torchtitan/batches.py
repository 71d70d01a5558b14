"""The position in the training data, in torchtitan's own way: `state_dict` of its loader, then `iter` after
`load_state_dict`.

Whether a loader goes on exactly there is up to its data set, and some do not: one that is asked in the middle of the
second epoch to go back to the first one may stay with the order of the second. So the batches of the last step are read
again after a fault, from the state before that step, and compared with what they were. Where they differ in a process
that has read data before, a fresh process takes its place. Where they differ in a fresh one the job ends: nobody may
go on with other data unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import xxhash
from torch import Tensor

from deadpool.errors import ConfigError, NotInPlace
from deadpool.snapshot.record.record import decode, encode
from deadpool.snapshot.state.rng import capture_rng, restore_rng

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
            raise ConfigError("train() reads batches of another loader than trainer.dataloader: only that is protected")
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
        raise ConfigError(
            f"{text}, also in a fresh process: `load_state_dict` of the loader or of its data set has to put back all "
            "that the next batches depend on"
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
