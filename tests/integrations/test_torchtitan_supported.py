"""What torchtitan can be asked for and cannot be protected is refused with the reason, before anything is trained."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if importlib.util.find_spec("torchtitan") is None:
    pytest.skip("torchtitan is not installed", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import torchtitan_cpu  # noqa: F401  # before torchtitan's trainer
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.trainer import Trainer

from deadpool.errors import ConfigError, NotInPlace
from deadpool.integrations.torchtitan.hooks import require_supported
from deadpool.integrations.torchtitan.training import Batches, Training


def make(kind: type = Trainer, **attributes: Any) -> Any:
    trainer = object.__new__(kind)
    checkpointer = object.__new__(CheckpointManager)
    checkpointer.enable, checkpointer.pg = False, None
    trainer.config = Trainer.Config()
    trainer.parallel_dims, trainer.device = SimpleNamespace(world_size=2), torch.device("cpu")
    trainer.optimizers, trainer.model_parts = SimpleNamespace(optimizers=[]), [torch.nn.Linear(2, 2)]
    trainer.checkpointer = checkpointer
    vars(trainer).update(attributes)
    return trainer


def test_usual_trainer_is_accepted():
    require_supported(make(), {})


class DistMuon:
    pass


class DeepEPTokenDispatcher:
    pass


def with_dispatcher() -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    module.dispatcher = DeepEPTokenDispatcher()
    return module


CASES = {
    "one rank": (make(parallel_dims=SimpleNamespace(world_size=1)), "a job of one rank"),
    "graphs": (make(device=torch.device("cuda")), "disable_cuda_graphs"),
    "Muon": (make(optimizers=SimpleNamespace(optimizers=[DistMuon()])), "DistMuon"),
    "dispatcher": (make(model_parts=[with_dispatcher()]), "DeepEPTokenDispatcher"),
    "generator": (make(noise=torch.Generator()), "a generator of its own"),
    "checkpointer": (make(checkpointer=object()), "CheckpointManager"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case):
    trainer, reason = CASES[case]
    with pytest.raises(ConfigError, match=reason):
        require_supported(trainer, {})


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("training", "enable_cpu_offload", True),
        ("compile", "enable_async_tensor_parallel", True),
        ("parallelism", "enable_fsdp_symm_mem", True),
        ("parallelism", "pipeline_parallel_degree", 2),
        ("comm", "mode", "fake_backend"),
    ],
)
def test_refused_setting(part, name, value):
    trainer = make()
    setattr(getattr(trainer.config, part), name, value)
    with pytest.raises(ConfigError, match=name if name != "mode" else value):
        require_supported(trainer, {})


def test_trainer_of_experiments_is_refused():
    kind = type("OtherTrainer", (Trainer,), {"__module__": "torchtitan.experiments.other"})
    with pytest.raises(ConfigError, match="never tried"):
        require_supported(make(kind), {})


def test_generator_that_is_passed_is_accepted():
    generator = torch.Generator()
    require_supported(make(noise=generator), {"noise": generator})


def test_train_that_does_not_say_where_steps_begin_is_refused():
    training = object.__new__(Training)
    training.job, training._trainer = None, type("P", (type("Q", (), {}), type("Mine", (), {})), {})()
    with pytest.raises(ConfigError, match="Mine calls train_step without asking should_continue_training"):
        training.require_open_step()


class Loader:
    """`offset` is changed by reading and is no part of its state: it cannot be put back."""

    def __init__(self, forgets: bool) -> None:
        self._forgets, self._next, self._offset = forgets, 0, 0

    def __iter__(self) -> Any:
        while True:
            self._next += 1
            self._offset += self._forgets
            yield torch.tensor([self._next, self._offset]), {"text": "row"}

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


def read_two_steps(loader: Loader) -> tuple[Batches, dict[str, Any]]:
    batches = Batches(loader)
    batches.begin(loader)
    for _ in range(2):
        batches.begin_step()
        next(batches), next(batches)
    return batches, batches.state_dict()


def test_data_is_put_back_to_the_end_of_the_last_step():
    batches, state = read_two_steps(Loader(forgets=False))
    wanted = next(batches)[0]
    batches.load_state_dict(state)
    assert torch.equal(next(batches)[0], wanted)
    fresh = Batches(Loader(forgets=False))
    fresh.load_state_dict(state)
    assert torch.equal(next(fresh)[0], wanted)


def test_data_that_cannot_be_put_back_is_noticed():
    batches, state = read_two_steps(Loader(forgets=True))
    with pytest.raises(NotInPlace, match="other batches"):
        batches.load_state_dict(state)
    with pytest.raises(ConfigError, match="also in a fresh process"):
        Batches(Loader(forgets=True)).load_state_dict(state)


def test_batches_of_another_loader_are_refused():
    with pytest.raises(ConfigError, match="another loader"):
        Batches(Loader(forgets=False)).begin(Loader(forgets=False))
