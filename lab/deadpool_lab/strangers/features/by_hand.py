"""Data parallelism as people write it by hand: all ranks have the model, and gradients are averaged somehow; or
parameters differ from rank to rank: local SGD, gossip, DiLoCo, experts that live on one rank each."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, block

_GRADIENTS = "[parameter.grad for parameter in model.parameters() if parameter.grad is not None]"


def _by_hand(builder: ScriptBuilder) -> None:
    builder.traits |= {"by_hand", "whole_model"}


def _each(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    builder.reduce.append(
        block(f"""
        for gradient in {_GRADIENTS}:
            dist.all_reduce(gradient)
            gradient /= world_size
        """)
    )


def _async_handles(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    builder.reduce.append(
        block(f"""
        gradients = {_GRADIENTS}
        handles = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        for handle, gradient in zip(handles, gradients):
            handle.wait()
            gradient.div_(world_size)
        """)
    )


def _flat_bucket(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    builder.need("from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors")
    builder.reduce.append(
        block(f"""
        gradients = {_GRADIENTS}
        bucket = _flatten_dense_tensors(gradients)
        dist.all_reduce(bucket)
        bucket /= world_size
        for gradient, mean in zip(gradients, _unflatten_dense_tensors(bucket, gradients)):
            gradient.copy_(mean)
        """)
    )


def _functional(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    builder.need("import torch.distributed._functional_collectives as funcol")
    builder.reduce.append(
        block(f"""
        for gradient in {_GRADIENTS}:
            gradient.copy_(funcol.all_reduce(gradient, "sum", dist.group.WORLD) / world_size)
        """)
    )


def _gradient_hooks(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    builder.traits.add("one_backward")
    builder.wrap.append(
        block("""
        started = []


        def start_reduction(parameter):
            started.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))


        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(start_reduction)
        """)
    )
    builder.begin.append("started.clear()")
    builder.reduce.append(
        block("""
        for parameter, work in started:
            work.wait()
            parameter.grad /= world_size
        """)
    )


def _ring(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    builder.helper("""
        def ring_sum(tensor, rank, world_size):
            \"\"\"What everybody has goes round once; each adds up what passes by.\"\"\"
            total, passing = tensor.clone(), tensor
            for _ in range(world_size - 1):
                arriving = torch.empty_like(passing)
                sends = dist.P2POp(dist.isend, passing, (rank + 1) % world_size)
                receives = dist.P2POp(dist.irecv, arriving, (rank - 1) % world_size)
                for request in dist.batch_isend_irecv([sends, receives]):
                    request.wait()
                total += arriving
                passing = arriving
            return total
    """)
    builder.reduce.append(
        block(f"""
        for gradient in {_GRADIENTS}:
            gradient.copy_(ring_sum(gradient, rank, world_size) / world_size)
        """)
    )


def _reduce_and_broadcast(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    builder.reduce.append(
        block(f"""
        for gradient in {_GRADIENTS}:
            dist.reduce(gradient, dst=0)
            dist.broadcast(gradient, src=0)
            gradient.mul_(1 / world_size)
        """)
    )


def _scatter_and_gather(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    builder.reduce.append(
        block(f"""
        for gradient in {_GRADIENTS}:
            padded = torch.zeros(-(-gradient.numel() // world_size) * world_size, dtype=gradient.dtype)
            padded[: gradient.numel()] = gradient.reshape(-1)
            shard = torch.empty(padded.numel() // world_size, dtype=gradient.dtype)
            dist.reduce_scatter_tensor(shard, padded)
            dist.all_gather_into_tensor(padded, shard / world_size)
            gradient.copy_(padded[: gradient.numel()].view_as(gradient))
        """)
    )


def _by_objects(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    builder.helper("""
        class Share:
            \"\"\"What a rank gives to the others.\"\"\"

            def __init__(self, rank, gradients):
                self.rank, self.arrays = rank, [gradient.numpy() for gradient in gradients]
    """)
    builder.reduce.append(
        block(f"""
        gradients = {_GRADIENTS}
        shares = [None] * world_size
        dist.all_gather_object(shares, Share(rank, gradients))
        for index, gradient in enumerate(gradients):
            gradient.copy_(torch.from_numpy(sum(share.arrays[index] for share in shares)) / world_size)
        """)
    )


def _two_levels(builder: ScriptBuilder) -> None:
    _by_hand(builder)
    size = builder.rng.choice(
        [size for size in range(2, builder.shape.world_size + 1) if builder.shape.world_size % size == 0]
    )
    builder.groups.append(
        block(f"""
        team, _ = dist.new_subgroups(group_size={size})
        captains = dist.new_group(list(range(0, world_size, {size})))
        """)
    )
    builder.reduce.append(
        block(f"""
        for gradient in {_GRADIENTS}:
            dist.all_reduce(gradient, group=team)
            if rank % {size} == 0:
                dist.all_reduce(gradient, group=captains)
            dist.broadcast(gradient, src=rank - rank % {size}, group=team)
            gradient /= world_size
        """)
    )


BY_HAND = [
    Feature("all-reduce each gradient", _each, 1.5),
    Feature("async handles", _async_handles),
    Feature("flat bucket", _flat_bucket),
    Feature("functional collectives", _functional),
    Feature("gradient hooks that start async", _gradient_hooks, 1.5),
    Feature("ring of isend and irecv", _ring),
    Feature("reduce and broadcast", _reduce_and_broadcast),
    Feature("reduce_scatter and all_gather", _scatter_and_gather),
    Feature("gradients through all_gather_object", _by_objects, 0.7),
    Feature("two levels of groups", _two_levels),
]


def _local_sgd(builder: ScriptBuilder) -> None:
    builder.traits |= {"apart", "whole_model"}
    every = builder.rng.choice([2, 3])
    builder.finish.append(
        block(f"""
        if step.number % {every} == {every - 1}:  # local SGD: meet now and then
            with torch.no_grad():
                for parameter in model.parameters():
                    dist.all_reduce(parameter)
                    parameter /= world_size
        """)
    )


def _gossip(builder: ScriptBuilder) -> None:
    builder.traits |= {"apart", "whole_model"}
    builder.finish.append(
        block("""
        with torch.no_grad():  # gossip: half of the neighbour's opinion
            for parameter in model.parameters():
                theirs = torch.empty_like(parameter)
                sending = dist.isend(parameter.detach().clone(), (rank + 1) % world_size)
                receiving = dist.irecv(theirs, (rank - 1) % world_size)
                receiving.wait()
                sending.wait()
                parameter.lerp_(theirs, 0.5)
        """)
    )


def _diloco(builder: ScriptBuilder) -> None:
    builder.traits |= {"apart", "whole_model"}
    builder.need("import copy")
    every = builder.rng.choice([2, 3])
    builder.extras.append(
        block("""
        outer_model = copy.deepcopy(model)
        outer_optimizer = torch.optim.SGD(outer_model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        """)
    )
    builder.protect(outer_model="outer_model", outer_optimizer="outer_optimizer")
    builder.finish.append(
        block(f"""
        if step.number % {every} == {every - 1}:  # DiLoCo: the outer optimizer follows the mean of all ways
            for outer, inner in zip(outer_model.parameters(), model.parameters()):
                outer.grad = outer.detach() - inner.detach()
                dist.all_reduce(outer.grad)
                outer.grad /= world_size
            outer_optimizer.step()
            with torch.no_grad():
                for outer, inner in zip(outer_model.parameters(), model.parameters()):
                    inner.copy_(outer)
        """)
    )


def _experts(builder: ScriptBuilder) -> None:
    builder.traits |= {"apart", "own_model", "one_loss"}
    builder.helper("""
        class Exchange(torch.autograd.Function):
            \"\"\"all_to_all_single with a backward: what was sent comes back.\"\"\"

            @staticmethod
            def forward(ctx, tokens, sent, received):
                ctx.sent, ctx.received = sent, received
                arrived = tokens.new_empty(sum(received), tokens.shape[1])
                dist.all_to_all_single(arrived, tokens.contiguous(), received, sent)
                return arrived

            @staticmethod
            def backward(ctx, gradient):
                back = gradient.new_empty(sum(ctx.sent), gradient.shape[1])
                dist.all_to_all_single(back, gradient.contiguous(), ctx.sent, ctx.received)
                return back, None, None
    """)
    builder.helper("""
        class Experts(nn.Module):
            \"\"\"A router that all ranks have, and an expert of this rank's own.\"\"\"

            def __init__(self, rank, world_size):
                super().__init__()
                self.router = nn.Linear(WIDTH, world_size)
                torch.manual_seed(100 + rank)
                self.expert = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

            def forward(self, x):
                scores = self.router(x).softmax(-1)
                weight, chosen = scores.max(-1)
                order = chosen.argsort(stable=True)
                sent = torch.bincount(chosen, minlength=scores.shape[1])
                received = torch.empty_like(sent)
                dist.all_to_all_single(received, sent)
                arrived = Exchange.apply(x[order], sent.tolist(), received.tolist())
                back = Exchange.apply(self.expert(arrived), received.tolist(), sent.tolist())
                return x + weight.unsqueeze(-1) * torch.empty_like(back).index_copy(0, order, back)
    """)
    builder.model.append("model = Experts(rank, world_size)")
    builder.reduce.append(
        block("""
        for parameter in model.router.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        """)
    )


APART = [
    Feature("local SGD", _local_sgd),
    Feature("gossip with isend and irecv", _gossip),
    Feature("DiLoCo", _diloco),
    Feature("experts over all_to_all_single", _experts, 2.0),
]
