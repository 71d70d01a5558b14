"""DistributedDataParallel after a fault.

`DdpAdapter` resets the reducer of DistributedDataParallel and brings it into the bucket layout of the step that is
redone.

The sum over four ranks depends on where in a bucket an element lies, and two ranks with different layouts would add
gradients of different parameters. So the redone step is exact only if every rank has the bucket layout that the
undisturbed run has at that step. What torch does (reducer.cpp):

- The first synchronised backward runs in the *first layout*, which the constructor computes (by default one bucket
with
  all parameters), and records the order in which gradients became ready, parameter by parameter.
- The next forward broadcasts the order of rank 0 and lays the buckets out by it: this *final layout* stays. With
  find_unused_parameters and a dynamic graph nothing is recorded, and the first layout stays. With static_graph the
  first backward only counts and the second one records, so all of this comes one step later.
- `_reset_state()` empties the recording and clears "has rebuilt", but leaves the buckets as they are. After a fault in
  the very first backward a survivor therefore has the first layout and an empty recording (the partial one is dropped),
  as has a freshly constructed newcomer. After any later fault it has the final layout and records and broadcasts once
  more: the redone step runs in the final layout, and in the forward after it all ranks take part in the broadcast and
  get the same layout again.

Three cases remain, and all are handled without communication:

- A survivor was hit after its first backward, but before or inside the broadcast: it has a complete recording and
the
  first layout. reset() lays the buckets out by its own recording, with a group that communicates with no peer.
- A newcomer reaches the final layout by one dry step (two with static_graph), laid out in the same way when
rehearsing()
  ends.
- Work resumes at step 0 (after a fault in step 0, or in step 1 with a rollback): a rank that has left the first layout
  has to return to it, and only a new reducer can do that. seated(0) makes one on all ranks, so that they are all alike.

With static_graph there is a fourth: work resumes at step 1. Whether that step begins in the final layout depends on
how many backwards a step has, and nothing in a reducer tells it. Only a process whose reducer has seen exactly one
dry step is certain to be right, so every other one is replaced by such a process.

Assumptions: on all ranks gradients become ready in the same order as on rank 0 (every rank has the same graph), and
every step has at least one synchronised backward.

`KeptGradients` refuses gradients that stay in DDP's buckets from step to step if the number of ranks is no power of
two.

With gradient_as_bucket_view the reducer averages in two ways. A gradient that was None is multiplied by 1/n on its
way into the bucket; one that is already there (`zero_grad(set_to_none=False)`) is divided by n. For n = 3 the
results differ in the last bit. After a recovery the buckets are new and hold no gradient, so the redone step would
average in the other way. Whether a script keeps its gradients shows when the first one arrives in the second step:
one hook on one parameter, for that step only, finds out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from deadpool.backend.recorded_collectives import NullGroup
from deadpool.errors import ConfigError, NotInPlace, StateError
from deadpool.trainer.adapters.ddp_state import averages_gradients
from deadpool.trainer.adapters.plain import Adapter


class DdpAdapter(Adapter):
    """One DistributedDataParallel module."""

    name = "ddp"
    dry_steps_change_numerics = True

    def __init__(self, module: DistributedDataParallel) -> None:
        self._module: Any = module
        self._layout_is_known = False
        self._rehearsed_in_vain = False  # a dry step failed before its gradients were complete
        self._dry_steps_done: int | None = 0  # all that the reducer has seen; None: it may have seen other steps too

    @property
    def dry_steps(self) -> int:
        """How many steps at the start run in the first layout: as many dry steps are needed to leave it."""
        return 2 if self._module.static_graph else 1

    def reset(self) -> None:
        # The values after an ordinary step. If a forward without synchronisation was cut off, this rank would otherwise
        # skip the broadcast of buffers in which the other ranks take part. A boundary record may hold other values.
        self._module.require_forward_param_sync = self._module.require_backward_grad_sync = True
        self._leave_step()
        self._layout_is_known = not self._rehearsed_in_vain

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        try:
            with self._without_peers():
                yield
            self._rehearsed_in_vain = False
            if self._dry_steps_done is not None:
                self._dry_steps_done += 1
        except Exception:
            self._rehearsed_in_vain = not self._leave_step() and self._has_final_layout
            raise
        finally:
            self.reset()

    def seated(self, resume_step: int) -> None:
        in_first_steps = 0 < resume_step < self.dry_steps and self._has_final_layout
        if resume_step == 0:
            self._return_to_first_layout()
        elif self._rehearsed_in_vain or not (self._layout_is_known or in_first_steps):
            raise StateError(
                f"DistributedDataParallel cannot start at step {resume_step} without {self.dry_steps} dry steps, and "
                "the script failed in a dry step before its backward was over (the event dry_step_failed says how). "
                "Dry steps compute garbage: leave out checks that garbage fails, by `if not step.dry`"
            )
        elif in_first_steps and self._dry_steps_done != resume_step:
            raise NotInPlace(f"a static graph that resumes at step {resume_step} needs a process that has run no other")

    def resumed(self) -> None:
        self._dry_steps_done = None

    def replicas(self) -> dict[int, tuple[int, ...]]:
        ranks = tuple(sorted(dist.get_process_group_ranks(self._module.process_group)))
        if len(ranks) < 2 or not averages_gradients(self._module):
            return {}
        ignored = self._module.parameters_to_ignore
        return {id(each): ranks for name, each in self._module.module.named_parameters() if name not in ignored}

    @property
    def _reducer(self) -> Any:
        """None if DDP has no reducer, because all parameters are reduced by other means."""
        return getattr(self._module, "reducer", None)

    @property
    def _has_final_layout(self) -> bool:
        """Whether torch lays the buckets out anew after the first backward that records; if not, they never change."""
        module = self._module
        return self._reducer is not None and (module.static_graph or not module.find_unused_parameters)

    @contextlib.contextmanager
    def _without_peers(self) -> Iterator[None]:
        if self._reducer is None:
            yield
            return
        group = self._module.process_group
        null_group = NullGroup(group.rank(), group.size())  # a local, since the reducer keeps only the C++ half alive
        self._reducer._update_process_group(null_group)
        try:
            yield
        finally:
            self._reducer._update_process_group(group)

    def _leave_step(self) -> bool:
        """Whether a complete recording has laid the buckets out: in this call, or in a second forward of the step."""
        if self._reducer is None:
            return True
        laid_out = bool(self._module._has_rebuilt_buckets)
        # The reducer refuses if a backward was cut off. That does not matter: its forward has laid the buckets out
        # already, or it was the first backward, and work resumes at step 0.
        with self._without_peers(), contextlib.suppress(RuntimeError):
            laid_out = self._reducer._rebuild_buckets() or laid_out
        self._reducer._reset_state()
        return laid_out

    def _return_to_first_layout(self) -> None:
        if self._reducer is None:
            return
        module = self._module
        module.zero_grad(set_to_none=True)  # gradients may be views of the buckets that are freed now
        self._reducer._remove_autograd_hooks()
        del module.logger, module.reducer  # before the new one is made: buckets are as large as all gradients
        _make_reducer(module)
        module._has_rebuilt_buckets = False
        self._layout_is_known = False  # until a step has run and reset() came after it
        self._rehearsed_in_vain = False  # the layout does not depend on dry steps any more


def ddp_modules(modules: Iterable[nn.Module]) -> list[DistributedDataParallel]:
    found = (each for module in modules for each in module.modules() if isinstance(each, DistributedDataParallel))
    return list({id(each): each for each in found}.values())


def _make_reducer(module: Any) -> None:
    """Makes a reducer as the constructor does, and registers on it what was registered on the old one."""
    parameters, expect_sparse = module._build_params_for_reducer()
    names = module._build_debug_param_to_name_mapping(parameters)
    module._ddp_init_helper(parameters, expect_sparse, names, module.static_graph)
    if module.static_graph:
        module._static_graph_delay_allreduce_enqueued = False
        module.reducer._set_static_graph()
        module.logger._set_static_graph()
    for hook, state in module._comm_hooks:
        module.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(module.reducer, state, hook)
    if module.mixed_precision is not None:
        module.reducer._set_mixed_precision_param_dtype(module.mixed_precision.param_dtype)


_SECOND = 1


class KeptGradients:
    def __init__(self, modules: Iterable[DistributedDataParallel]) -> None:
        self._modules: list[Any] = [module for module in modules if _averages_in_two_ways(module)]
        self._hooks: list[Any] = []
        self._kept = False

    def enter_step(self, number: int) -> None:
        if number == _SECOND:
            self._stop()
            for module in self._modules:
                self._watch(next((each for each in module.parameters() if each.grad is not None), None))

    def check(self) -> None:
        """Called at the end of a step."""
        self._stop()
        if self._kept:
            raise ConfigError(
                "gradients stay in the buckets of DistributedDataParallel from step to step, and the number of ranks "
                "is no power of two: after a fault torch would average them by another operation, and losses would "
                "differ in the last bit. Call zero_grad() without set_to_none=False, or leave out "
                "gradient_as_bucket_view=True"
            )

    def _watch(self, param: Tensor | None) -> None:
        if param is None:
            return

        def arriving(_: Tensor) -> None:
            self._kept = self._kept or param.grad is not None
            hook.remove()

        hook = param.register_hook(arriving)
        self._hooks.append(hook)

    def _stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _averages_in_two_ways(module: Any) -> bool:
    ranks = dist.get_world_size(module.process_group)
    hooks = getattr(module, "_comm_hooks", ())
    return module.gradient_as_bucket_view and ranks & (ranks - 1) != 0 and not hooks
