"""Pipelines of torch.distributed.pipelining: a stage on each rank."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.feature import Feature


def _pipeline(builder: ScriptBuilder) -> None:
    builder.traits |= {"apart", "own_model", "same_batches", "pipeline", "own_loss", "one_backward"}
    schedule = builder.rng.choice(["ScheduleGPipe", "Schedule1F1B"])
    builder.tag(schedule)
    builder.need(f"from torch.distributed.pipelining import PipelineStage, {schedule}")
    builder.batch = 2 * builder.shape.world_size
    builder.model.append(
        block(f"""
        torch.manual_seed(100 + rank)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
        schedule = {schedule}(stage, n_microbatches=world_size, loss_fn=nn.functional.mse_loss)
        """)
    )


def write_pipeline(builder: ScriptBuilder) -> None:
    """The lines of a step, once the others are known."""
    builder.train = [
        'seen = ""',
        *builder.fetch,
        "seen = digest(seen, x, y)",
        block("""
        losses = []
        if rank == 0:
            schedule.step(x)
        elif rank == world_size - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        """),
        *builder.clip,
        *builder.update,
        *builder.zero,
    ]


PIPELINES = [Feature("pipeline", _pipeline)]
