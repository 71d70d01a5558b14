"""Pipelines of torch.distributed.pipelining: a stage on each rank."""

from __future__ import annotations

from deadpool_lab.strangers.draft import Draft, block
from deadpool_lab.strangers.feature import Feature


def _pipeline(draft: Draft) -> None:
    draft.traits |= {"apart", "own_model", "same_batches", "pipeline", "own_loss", "one_backward"}
    schedule = draft.rng.choice(["ScheduleGPipe", "Schedule1F1B"])
    draft.tag(schedule)
    draft.need(f"from torch.distributed.pipelining import PipelineStage, {schedule}")
    draft.batch = 2 * draft.shape.world_size
    draft.model.append(
        block(f"""
        torch.manual_seed(100 + rank)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        stage = PipelineStage(model, rank, world_size, torch.device("cpu"))
        schedule = {schedule}(stage, n_microbatches=world_size, loss_fn=nn.functional.mse_loss)
        """)
    )


def write_pipeline(draft: Draft) -> None:
    """The lines of a step, once the others are known."""
    draft.train = [
        'seen = ""',
        *draft.fetch,
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
        *draft.clip,
        *draft.update,
        *draft.zero,
    ]


PIPELINES = [Feature("pipeline", _pipeline)]
