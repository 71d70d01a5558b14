"""Protected steps for `pretrain` of Megatron-LM (`megatron.training`), whose script stays as it is:

    deadpool run --nodes 2 --spares 1 -m deadpool.integrations.megatron SCRIPT ...

or, in the script, before `pretrain(...)`:

    from deadpool.integrations.megatron import protect_pretrain

    protect_pretrain()

`pretrain` builds model, optimizer and data, and calls `train`, whose loop calls `train_step`. All of these are names of
one module, and are looked up there at each call: ours stand in for them. A step begins where `train_step` is called.
After a fault `train` is entered again at the iteration that is due, in the way in which Megatron-LM goes on from a
checkpoint, with model, optimizer and iterators in memory. What it keeps in local variables is put back by what it is
given: the iteration, floating point operations so far, the losses since the last log.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from deadpool.integrations.library_check import is_protected_job, require_suitable
from deadpool.integrations.megatron.hooks import protect
from deadpool.integrations.megatron.refusals import MegatronRefusal
from deadpool.integrations.megatron.relies_on import LIBRARIES, megatron_lm
from deadpool.integrations.refusals import Refused
from deadpool.snapshot.data.position import DataPosition
from deadpool.trainer import current
from deadpool.trainer.interface import Job
from deadpool.trainer.library_job import LibraryJob, UnprotectedLibraryJob
from deadpool.trainer.loop import StepLoop

_LOOP = "pretrain()"
_COUNTERS = ("consumed_train_samples", "consumed_valid_samples", "skipped_train_samples", "curr_iteration")
_UNTRIED = (
    *("perform_rl_step", "iterations_to_skip", "phase_transition_iterations", "multiple_validation_sets"),
    *("full_validation", "hybrid_context_parallel", "profile", "run_workload_inspector_server", "async_save"),
    *("exit_duration_in_mins", "exit_signal_handler", "adlr_autoresume", "log_straggler", "use_megatron_fsdp"),
)


def require_supported_pretrain(args: Any) -> None:
    for name in _UNTRIED:
        if getattr(args, name, None):
            raise Refused(
                MegatronRefusal.PRETRAIN_UNTRIED,
                f"--{name.replace('_', '-')} cannot be protected with Megatron-LM's pretrain: it was never tried",
            )
    if args.overlap_param_gather:
        raise Refused(
            MegatronRefusal.PRETRAIN_GATHER,
            "--overlap-param-gather cannot be protected with Megatron-LM's pretrain: train() switches its hooks off "
            "where it begins, and parameters would not be gathered in a step that is redone; leave it out, or write "
            "the loop",
        )


class TrainState:
    """Where `train` begins again. `first` is the iteration that the job began with; a process that is started later
    takes it from the others."""

    def __init__(self, args: Any) -> None:
        self._args, self.first = args, args.iteration
        self.operations = args.num_floating_point_operations_so_far
        self.losses: dict[str, Any] = {}  # since the last log; train() makes another dict each time it is entered

    def state_dict(self) -> dict[str, Any]:
        losses = {name: each.cpu() if hasattr(each, "cpu") else each for name, each in self.losses.items()}
        counters = {name: getattr(self._args, name) for name in _COUNTERS if hasattr(self._args, name)}
        return {"first": self.first, "operations": self.operations, "counters": counters, "losses": losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first, self.operations, self.losses = state["first"], state["operations"], dict(state["losses"])
        for name, value in state["counters"].items():
            setattr(self._args, name, value)

    def log_into(self, losses: dict[str, Any], newest: dict[str, Any]) -> None:
        """`losses` is the dict of the loop. One that is new gets what was added up before."""
        if losses is not self.losses:
            for name, value in self.losses.items():
                like: Any = newest.get(name)
                losses[name] = value.to(like.device) if hasattr(value, "to") and hasattr(like, "device") else value
            self.losses = losses


class Pretraining:
    """One call of `pretrain`, protected."""

    def __init__(self, module: Any, objects: dict[str, object], returned: LibraryJob, *, force: bool) -> None:
        self._module, self._objects, self._returned, self._force = module, objects, returned, force
        assert current.session is not None
        self._is_late = current.session.groups.detached
        self._loaders: list[DataPosition] = []
        self._job: Job | None = None
        self._loop: StepLoop
        self._state: TrainState

    @property
    def is_dry(self) -> bool:
        return self._job is not None and self._loop.step is not None and bool(self._loop.step.dry)

    def install(self) -> None:
        stand_ins: dict[str, Callable[..., Any]] = {
            "train": self._train,
            "train_step": self._train_step,
            "build_pretraining_data_loader": self._build_loader,
            "training_log": self._log,
            "checkpoint_and_decide_exit": self._decide_exit,
            "load_checkpoint": self._load_checkpoint,
            "evaluate_and_print_results": functools.partial(self._in_pause, "evaluation"),
            "save_checkpoint_and_time": functools.partial(self._in_pause, "checkpoint"),
        }
        for name, stand_in in stand_ins.items():
            setattr(self._module, name, functools.partial(stand_in, getattr(self._module, name)))

    def _build_loader(self, build: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The loader's position is known before Megatron-LM begins to read."""
        loader = build(*args, **kwargs)
        if loader is None:
            return None
        if type(loader) is not DataLoader or loader.persistent_workers:
            raise Refused(
                MegatronRefusal.PRETRAIN_LOADER,
                f"a {type(loader).__name__} cannot be protected with Megatron-LM's pretrain: use --dataloader-type "
                "single or cyclic, and give datasets of workers that do not persist",
            )
        # Datasets of Megatron keep masks from their first sample on, and a flag that they do. The flag is a plain value
        # of the dataset, which travels with its position; the masks do not, so every process has to make them.
        samples: Any = loader.dataset
        if len(samples):
            samples[0]
        self._loaders.append(DataPosition(f"data loader {len(self._loaders)}", loader))
        return loader

    def _load_checkpoint(self, load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A process that takes part later gets its state from the others. A checkpoint that it finds may be newer than
        the one that the job began with, or half written."""
        return (0, 0) if self._is_late else load(*args, **kwargs)

    def _train(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._job is not None:
            raise Refused(MegatronRefusal.PRETRAIN_TWICE, "train() was called a second time: a job has one loop")
        _, model, optimizer, scheduler, *_ = args
        settings, config = self._module.get_args(), args[7]
        require_supported_pretrain(settings)
        self._state = state = TrainState(settings)
        loaders = {f"loader{index}": each for index, each in enumerate(self._loaders)}
        objects = {**loaders, "pretraining": state, **self._objects}
        self._job = protect(model, optimizer=optimizer, scheduler=scheduler, force=self._force, **objects)
        self._returned.begin(self._job)
        self._loop = self._job.loop(lambda: settings.train_iters - state.first)
        return self._run(functools.partial(train, *args, **kwargs), settings, config)

    def _run(self, train: Callable[[], Any], settings: Any, config: Any) -> Any:
        result = settings.iteration, settings.num_floating_point_operations_so_far
        while (number := self._loop.enter()) is not None:
            settings.iteration = self._state.first + number
            settings.num_floating_point_operations_so_far = self._state.operations
            config.no_sync_func = config.grad_sync_func = None  # train() sets them, and asserts that they are not set
            for timer in self._timers():
                timer._started = False
            try:
                result = train()
            except SystemExit:
                self._loop.leave()
                raise
            except BaseException as error:
                if not self._loop.came_back(error):
                    raise
                continue
            if not self.is_dry and result[0] < settings.train_iters:
                self._loop.leave()
                break
        return result

    def _timers(self) -> Iterator[Any]:
        yield from self._module.get_timers()._timers.values()

    def _train_step(self, train_step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._loop.next_step()
        return train_step(*args, **kwargs)

    def _log(self, log: Callable[..., Any], newest: Any, losses: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_dry:
            return False
        self._state.log_into(losses, newest)
        return log(newest, losses, *args, **kwargs)

    def _decide_exit(self, decide: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Megatron-LM calls this once for each iteration, with the floating point operations so far."""
        if self.is_dry:
            return False
        self._state.operations = args[4]
        return decide(*args, **kwargs)

    def _in_pause(self, reason: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_dry:
            return None
        assert self._job is not None
        with self._job.pause(reason):
            return call(*args, **kwargs)


def protect_pretrain(*, force: bool = False, **objects: object) -> Job:
    """Makes `pretrain()` of Megatron-LM survive the loss of nodes. Call it before `pretrain`, once.

    `objects` are further ones whose state training changes, as for `deadpool.protect`. The job that is returned has no
    steps of its own: those are the iterations of `train`. Only with `force` is it accepted yet, since no fault was
    tried with it; then features are too that were never tried with Megatron-Core, and versions in which something is
    missing that this relies on. In a script that DeadPool did not start nothing changes, and a note says so.
    """
    if not is_protected_job(LIBRARIES, force=force):
        return UnprotectedLibraryJob(_LOOP)
    require_suitable((megatron_lm(),), force=force)
    if not force:
        raise Refused(
            MegatronRefusal.PRETRAIN,
            "pretrain() of Megatron-LM cannot be protected yet: no fault was tried with it; use "
            "protect_pretrain(force=True), and compare the losses once with those of an unprotected run",
        )
    job = LibraryJob(_LOOP)
    module = importlib.import_module("megatron.training.training")
    Pretraining(module, dict(objects), job, force=force).install()
    return job
