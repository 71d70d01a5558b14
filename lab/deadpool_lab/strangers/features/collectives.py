"""Collectives beside those of the layout: objects, barriers, groups of all kinds."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, block


def _gather_objects(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Report:
            def __init__(self, rank, loss):
                self.rank, self.loss = rank, loss
    """)
    builder.finish.append(
        block("""
        reports = [None] * world_size
        dist.all_gather_object(reports, Report(rank, float(loss)))
        """)
    )
    builder.draws.append("sum(report.loss for report in reports)")


def _broadcast_settings(builder: ScriptBuilder) -> None:
    builder.groups.append(
        block("""
        settings = [{"factor": 0.5, "names": ["a", "b"]}] if rank == 0 else [None]
        dist.broadcast_object_list(settings, src=0)
        factor = settings[0]["factor"]
        """)
    )
    builder.draws.append("factor")


def _scatter_and_gather_objects(builder: ScriptBuilder) -> None:
    builder.begin.append(
        block("""
        tasks = [{"step": step.number, "for": other} for other in range(world_size)] if rank == 0 else None
        task = [None]
        dist.scatter_object_list(task, tasks, src=0)
        """)
    )
    builder.finish.append(
        block("""
        answers = [None] * world_size if rank == 0 else None
        dist.gather_object((rank, float(loss)), answers, dst=0)
        """)
    )
    builder.draws.append('task[0]["for"]')
    builder.draws.append("sum(each for _, each in answers) if rank == 0 else 0.0")


def _barrier(builder: ScriptBuilder) -> None:
    builder.begin.append("dist.barrier()")


def _monitored_barrier(builder: ScriptBuilder) -> None:
    builder.need("import datetime")
    builder.begin.append("dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))")


def _odd_and_even(builder: ScriptBuilder) -> None:
    builder.groups.append(
        block("""
        halves = [dist.new_group(list(range(half, world_size, 2))) for half in range(2)]
        half = halves[rank % 2]
        """)
    )
    builder.finish.append("vote = torch.tensor([float(loss)], dtype=torch.float64)\ndist.all_reduce(vote, group=half)")
    builder.draws.append("float(vote)")


def _split(builder: ScriptBuilder) -> None:
    """Plain gloo often never connects what is split off, so the run without DeadPool makes its group otherwise."""
    builder.groups.append(
        block("""
        everyone = list(range(world_size))
        under_deadpool = os.environ["TORCHELASTIC_RUN_ID"] == "deadpool"
        split = dist.group.WORLD.split_group if under_deadpool else dist.new_group
        all_of_us = split(everyone)
        """)
    )
    builder.finish.append(
        block("""
        most = torch.tensor([float(loss)])
        all_of_us.allreduce([most]).wait()
        """)
    )
    builder.draws.append("float(most)")


def _mesh(builder: ScriptBuilder) -> None:
    builder.need("from torch.distributed.device_mesh import init_device_mesh")
    builder.groups.append('grid = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("rows", "columns"))')
    builder.finish.append(
        "row = torch.tensor([float(loss)])\ndist.broadcast(row, group_src=0, group=grid.get_group('rows'))"
    )
    builder.draws.append("float(row)")


def _extremes(builder: ScriptBuilder) -> None:
    builder.finish.append(
        block("""
        lowest = torch.tensor(float(loss))
        lowering = dist.all_reduce(lowest, op=dist.ReduceOp.MIN, async_op=True)
        everyone = [torch.empty(1) for _ in range(world_size)]
        dist.all_gather(everyone, torch.tensor([float(loss)]))
        lowering.wait()
        """)
    )
    builder.draws.append("float(lowest)")


def _even(builder: ScriptBuilder) -> bool:
    return builder.shape.world_size % 2 == 0 and builder.shape.world_size >= 4


COLLECTIVES = [
    Feature("all_gather_object", _gather_objects, 0.15),
    Feature("broadcast_object_list", _broadcast_settings, 0.15),
    Feature("scatter_object_list and gather_object", _scatter_and_gather_objects, 0.12),
    Feature("barrier", _barrier, 0.1),
    Feature("monitored_barrier", _monitored_barrier, 0.1, lambda builder: builder.backend == "gloo"),
    Feature("new_group", _odd_and_even, 0.12),
    Feature("split_group", _split, 0.06),
    Feature("a mesh beside", _mesh, 0.1, _even),
    Feature("async min and all_gather", _extremes, 0.12),
]
