"""DistributedDataParallel: the reducer, and above all which bucket layout it stands in.

The sum of four ranks depends on where in a bucket an element lies, and two ranks with different layouts add up
gradients of different parameters. So the redone step is exact only if every rank stands in the layout that the
undisturbed run has at that step. What torch does (reducer.cpp):

- The first synchronised backward runs in the *first layout*, computed by the constructor (by default one bucket with
  everything), and records the order in which gradients became ready, parameter by parameter.
- The next forward broadcasts rank 0's order and lays the buckets out by it: the *final layout*, once and for all. With
  find_unused_parameters and a dynamic graph there is no recording, and the first layout stays. With static_graph the
  first backward only counts, the second records: everything comes one step later.
- `_reset_state()` empties the recording and clears "has rebuilt", but leaves the buckets as they are. After a fault in
  the very first backward a survivor is therefore in the first layout with an empty recording, the partial one being
  dropped, which is also where a freshly constructed newcomer stands; after any later fault it is in the final layout
  and will record and broadcast once more: the redone step runs in the final layout, the forward after it takes part in
  the broadcast on every rank alike, and arrives at the same layout again.

Three cases are left, and all are settled without communication:

- A survivor was hit after its first backward, but before or inside the broadcast: it holds a whole recording in the
  first layout. reset() lays out by its own recording, with a group that talks to nobody.
- A newcomer reaches the final layout by ONE dry step (two with static_graph), laid out by the same means when
  rehearsing() ends.
- Work resumes at step 0 (a fault in step 0, or in step 1 with a roll back): whoever has left the first layout has to
  return to it, which only a new reducer can do. seated(0) makes one, on all ranks, so that nobody's past matters.

Taken for granted: all ranks see gradients become ready in the same order as rank 0 (the same graph on every rank), and
every step has at least one synchronised backward. With static_graph a resume at step 1 starts anew too; all ranks
agree, but step 2 then runs in the first layout and may differ from the undisturbed run in the last bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from deadpool.backend.null_group import NullGroup
from deadpool.errors import StateError
from deadpool.trainer.adapters.ddp_state import averages_gradients


class DdpAdapter:
    """One DistributedDataParallel module."""

    name = "ddp"
    dry_steps_change_numerics = True

    def __init__(self, module: DistributedDataParallel) -> None:
        self._module: Any = module
        self._layout_is_known = False
        self._rehearsed_in_vain = False  # a dry step broke off before its gradients were there

    @property
    def dry_steps(self) -> int:
        """In how many steps from the start buckets lie in the first layout: so many it takes to leave it."""
        return 2 if self._module.static_graph else 1

    def reset(self) -> None:
        # As a step leaves them. A forward without synchronisation that was cut off would make this rank leave out the
        # broadcast of buffers that the others take part in. Where a step ends otherwise, the record says how.
        self._module.require_forward_param_sync = self._module.require_backward_grad_sync = True
        self._leave_step()
        self._layout_is_known = not self._rehearsed_in_vain

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        try:
            with self._talking_to_nobody():
                yield
            self._rehearsed_in_vain = False
        except Exception:
            self._rehearsed_in_vain = not self._leave_step() and self._lays_out_anew
            raise
        finally:
            self.reset()

    def seated(self, resume_step: int) -> None:
        if resume_step < self.dry_steps:
            self._return_to_first_layout()
        elif not self._layout_is_known:
            raise StateError(
                f"DistributedDataParallel cannot start at step {resume_step} without {self.dry_steps} dry steps, and "
                "the script failed in one before its backward was over (event dry_step_failed says how): what it "
                "computes of garbage should not stop it, `if not step.dry` leaves a check out"
            )

    def replicas(self) -> dict[int, tuple[int, ...]]:
        ranks = tuple(sorted(dist.get_process_group_ranks(self._module.process_group)))
        if len(ranks) < 2 or not averages_gradients(self._module):
            return {}
        ignored = self._module.parameters_to_ignore
        return {id(each): ranks for name, each in self._module.module.named_parameters() if name not in ignored}

    @property
    def _reducer(self) -> Any:
        """None where DDP has none: all parameters are reduced by other means."""
        return getattr(self._module, "reducer", None)

    @property
    def _lays_out_anew(self) -> bool:
        """After the first backward that records; else the first layout is the only one."""
        module = self._module
        return self._reducer is not None and (module.static_graph or not module.find_unused_parameters)

    @contextlib.contextmanager
    def _talking_to_nobody(self) -> Iterator[None]:
        if self._reducer is None:
            yield
            return
        group = self._module.process_group
        nobody = NullGroup(group.rank(), group.size())  # held here: the reducer does not keep its Python half alive
        self._reducer._update_process_group(nobody)
        try:
            yield
        finally:
            self._reducer._update_process_group(group)

    def _leave_step(self) -> bool:
        """Whether the buckets are laid out by a recording that was whole: now, or by a second forward in the step."""
        if self._reducer is None:
            return True
        laid_out = bool(self._module._has_rebuilt_buckets)
        # Refused when a backward was cut off. That is no loss: its forward has laid the buckets out already, or it was
        # the first one, and work resumes at step 0.
        with self._talking_to_nobody(), contextlib.suppress(RuntimeError):
            laid_out = self._reducer._rebuild_buckets() or laid_out
        self._reducer._reset_state()
        return laid_out

    def _return_to_first_layout(self) -> None:
        if self._reducer is None:
            return
        module = self._module
        module.zero_grad(set_to_none=True)  # gradients may be views of the buckets that go now
        self._reducer._remove_autograd_hooks()
        del module.logger, module.reducer  # before the new one comes: buckets are as large as all gradients
        _make_reducer(module)
        module._has_rebuilt_buckets = False
        self._layout_is_known = False  # until it has run, and was reset after that
        self._rehearsed_in_vain = False  # dry steps do not matter any more


def ddp_modules(modules: Iterable[nn.Module]) -> list[DistributedDataParallel]:
    found = (each for module in modules for each in module.modules() if isinstance(each, DistributedDataParallel))
    return list({id(each): each for each in found}.values())


def _make_reducer(module: Any) -> None:
    """As the constructor does, with everything that was registered on the old reducer since."""
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
