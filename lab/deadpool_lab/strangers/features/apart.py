"""Ranks whose parameters differ: local SGD, gossip, DiLoCo, experts that live on one rank each."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, block


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
