"""Captures and restores the position of torchdata's StatefulDataLoader, also if the script holds one of its iterators.

The loader's own load_state_dict() takes effect only at the next iter(): an iterator that the script made before would
silently continue where it was. So the restored position is moved into the current iterator, which stays the same
object. Everything else that decides the order of batches is restored with it: the generators that shuffle the next
epochs, and the epoch of a distributed sampler. loader_iterators.py handles iterators that were begun later.

The random number generators inside worker processes are not restored, because workers do not report them. A dataset
that augments at random in workers is exact only if it draws from a generator that is keyed by the index.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterDataPipe, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from deadpool.errors import ConfigError
from deadpool.snapshot.data.position import DataPosition
from deadpool.snapshot.state.loader_iterators import LoaderIterators, replaced

_UNSTORED_ORDER = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def with_position(name: str, value: object) -> object:
    """Returns the value itself, or the position of a loader, whose own state_dict() is not enough, if it has one at
    all. Raises a ConfigError if the loader can never be restored exactly."""
    module: Any = sys.modules.get("torchdata.stateful_dataloader.stateful_dataloader")
    if isinstance(value, DataLoader) and (module is None or not isinstance(value, module.StatefulDataLoader)):
        if value._iterator is not None:
            raise ConfigError(f"{name}: iter() was called before protect(): the position of that iterator is not known")
        return DataPosition(name, value)
    if module is not None and isinstance(value, module._StatefulBaseDataLoaderIter):
        raise ConfigError(f"{name}: got the iterator of a StatefulDataLoader, pass the loader itself")
    if isinstance(value, _BaseDataLoaderIter):
        raise ConfigError(f"{name}: got the iterator of a DataLoader, pass the loader itself")
    if module is None or not isinstance(value, module.StatefulDataLoader):
        return value
    _require_exact(name, value)
    return LoaderPosition(name, value)


def require_own_generators(stateful: Mapping[str, object], objects: Mapping[str, object]) -> None:
    """A loader's generator is put where its batches need it: what others draw from it would be lost."""
    others = {name: each for name, each in objects.items() if not isinstance(each, DataLoader)}
    users = {id(part): name for name, each in others.items() for part in getattr(each, "__dict__", {}).values()}
    for name, position in stateful.items():
        if not isinstance(position, DataPosition):
            continue
        held = {id(each) for each in position.held_generators()}
        if found := held & users.keys():
            raise ConfigError(
                f"{name}: it holds a generator of random numbers that {users[found.pop()]} holds, too: give each "
                "loader a generator of its own, which comes back with the loader and is not passed beside it"
            )
        users |= dict.fromkeys(held, name)


class LoaderPosition:
    """The state of one loader and of its current iterator. state_dict() changes nothing in the loader."""

    def __init__(self, name: str, loader: Any) -> None:
        self._loader = loader
        self._handed_out = LoaderIterators(name, loader)

    @property
    def place(self) -> tuple[int, int, bool]:
        """Changes with every batch that the script takes, and not with those that workers prepare. Cheap to read."""
        return self._handed_out.place

    @property
    def is_at_end(self) -> bool:
        """Returns whether the script has read the newest iterator to its end."""
        return self.place[2]

    def state_dict(self) -> dict[str, Any]:
        loader = self._loader
        begun = loader._iterator is not None  # if not, the loader's state_dict() would make one and draw numbers
        return {
            "iterator": loader._iterator.state_dict() if begun else None,
            "handed_out": self._handed_out.mark(),
            "sources": [] if begun else [source.state_dict() for source in self._sources()],
            "unclaimed": loader._initial_iter_for_state_dict,
            "next": loader.next_iter_state,
            "generators": [_generator_state(generator) for generator in self._generators()],
            "epochs": [sampler.epoch for sampler in self._epoch_samplers()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        loader, held = self._loader, self._loader._iterator
        waiting = loader._initial_iter_for_state_dict  # an earlier restore made one, and the script has not taken it
        begun, mark = state["iterator"] is not None, state["handed_out"]
        anew = held is not None and (not begun or self._handed_out.is_to_begin_anew(mark))
        if anew:
            self._handed_out.require_exact(mark)
        for sampler, epoch in zip(self._epoch_samplers(), state["epochs"], strict=True):
            sampler.set_epoch(epoch)
        loader.load_state_dict({})
        loader.next_iter_state = state["next"]
        if begun:
            loader.next_iter_state = state["iterator"]
            loader._iterator = replaced(None if anew else held, self._handed_out.make)
            loader.next_iter_state = state["next"]
            # If the script has no iterator yet, its first iter() must return this one.
            loader._initial_iter_for_state_dict = state["unclaimed"] or waiting or held is None
        else:
            for source, stored in zip(self._sources(), state["sources"], strict=True):
                source.load_state_dict(stored)
        if anew:
            self._handed_out.put_back_to_start(held)
        for generator, stored in zip(self._generators(), state["generators"], strict=True):
            if generator is not None:
                generator.set_state(stored)

    def _generators(self) -> list[torch.Generator | None]:
        return [self._loader.generator, getattr(self._loader.sampler, "generator", None)]

    def _sources(self) -> list[Any]:
        """Returns the objects whose state an iterator begins from and changes. Workers have copies of the dataset."""
        loader = self._loader
        found = (*(() if loader.num_workers else (loader.dataset,)), loader.sampler, loader.batch_sampler)
        return [each for each in found if hasattr(each, "state_dict") and hasattr(each, "load_state_dict")]

    def _epoch_samplers(self) -> list[Any]:
        found = (self._loader.sampler, self._loader.batch_sampler)
        return [each for each in found if hasattr(each, "set_epoch") and hasattr(each, "epoch")]


def _require_exact(name: str, loader: Any) -> None:
    if loader.num_workers and not loader.in_order:
        raise ConfigError(
            f"{name}: in_order=False cannot be used, because batches would come in another order each time"
        )
    if isinstance(loader.dataset, IterDataPipe):
        raise ConfigError(f"{name}: a dataset of datapipes cannot be used: use a Dataset or an IterableDataset")
    if isinstance(loader.sampler, _UNSTORED_ORDER):
        raise ConfigError(
            f"{name}: the order of torch's {type(loader.sampler).__name__} cannot be saved or restored: use "
            "shuffle=True, torchdata's RandomSampler, or a sampler with state_dict() and load_state_dict()"
        )


def _generator_state(generator: torch.Generator | None) -> torch.Tensor | None:
    return None if generator is None else generator.get_state()
