"""What people do beside training: evaluate, log, skip bad batches, talk through objects, handle signals; and
collectives beside those of the layout: objects, barriers, groups of all kinds."""

from __future__ import annotations

from deadpool_lab.strangers.builder import Feature, ScriptBuilder, block, lacks


def tally(builder: ScriptBuilder) -> None:
    """Counters of the script's own."""
    builder.helper("""
        class Tally:
            \"\"\"Counters that have to survive.\"\"\"

            def __init__(self):
                self.skipped = self.signals = self.evaluations = 0

            def state_dict(self):
                return dict(vars(self))

            def load_state_dict(self, state):
                vars(self).update(state)
    """)
    if "tally" not in builder.protected:
        builder.extras.append("tally = Tally()")
        builder.protect(tally="tally")


def _skip_bad(builder: ScriptBuilder) -> None:
    tally(builder)
    builder.traits.add("skips")
    builder.skips_errors = True
    builder.guard = f"step.number % {builder.rng.choice([3, 4, 5])} == 2"
    builder.draws.append("tally.skipped")


def _evaluation(builder: ScriptBuilder) -> str:
    """Returns in which steps."""
    builder.helper("""
        @torch.no_grad()
        def evaluate(model):
            \"\"\"The mean loss of all ranks on a fixed batch.\"\"\"
            model.eval()
            x = torch.linspace(-1, 1, BATCH * WIDTH).view(BATCH, WIDTH).to(next(model.parameters()).dtype)
            total = nn.functional.mse_loss(model(x).float(), x.float())
            dist.all_reduce(total)
            model.train()
            return float(total) / dist.get_world_size()
    """)
    builder.traits.add("evaluates")
    every = builder.rng.choice([2, 3, 4])
    return f"step.number % {every} == {every - 1}"


def _evaluate_inside(builder: ScriptBuilder) -> None:
    tally(builder)
    due = _evaluation(builder)
    builder.finish.append(
        block(f"""
        score = 0.0
        if {due}:
            tally.evaluations += 1
            score = evaluate(model)
        """)
    )
    builder.draws.append("score")


def _evaluate_between(builder: ScriptBuilder) -> None:
    due = _evaluation(builder)
    builder.between.append(
        f"if {due} and not step.dry:\n    note(path, evaluated=step.number, score=evaluate(model).hex())"
    )


def _early_break(builder: ScriptBuilder) -> None:
    last = builder.steps - builder.rng.choice([2, 3])
    builder.constants["ENOUGH"] = str(last)
    builder.between.append("if step.number >= ENOUGH:\n    break")


def _when_final(builder: ScriptBuilder) -> None:
    builder.finish.append("job.on_final(step.number, lambda number=step.number: note(path, final=number))")


def _checkpoints(builder: ScriptBuilder) -> None:
    every = builder.rng.choice([4, 5])
    builder.helper("""
        def save(model, path):
            \"\"\"Written aside and renamed: a checkpoint is whole or not there.\"\"\"
            torch.save([parameter.detach() for parameter in model.parameters()], path + ".draft")
            os.replace(path + ".draft", path)
    """)
    builder.finish.append(
        block(f"""
        if rank == 0 and not step.dry and step.number % {every} == {every - 1}:
            checkpoint_path = os.path.join(args.out, f"step-{{step.number}}.pt")
            save(model, checkpoint_path)
            job.durable(step.number + 1, checkpoint_path)
        """)
    )


def _signals(builder: ScriptBuilder) -> None:
    tally(builder)
    builder.need("import signal")
    builder.extras.append(
        block("""
        def on_signal(number, frame):
            tally.signals += 1


        signal.signal(signal.SIGUSR1, on_signal)
        signal.signal(signal.SIGTERM, on_signal)
        """)
    )
    builder.begin.append("if step.number % 3 == 1:\n    os.kill(os.getpid(), signal.SIGUSR1)")
    builder.draws.append("tally.signals")


def _logging(builder: ScriptBuilder) -> None:
    builder.need("import logging")
    builder.opening.append(
        'logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)'
    )
    builder.finish.append('logging.info("rank %d step %d loss %.6f", rank, step.number, float(loss))')


def _strict_warnings(builder: ScriptBuilder) -> None:
    builder.need("import warnings")
    builder.before_loop.append('warnings.simplefilter("error", UserWarning)')


def _deterministic(builder: ScriptBuilder) -> None:
    builder.opening.append("torch.use_deterministic_algorithms(True)")


def _ticking_thread(builder: ScriptBuilder) -> None:
    builder.need("import threading")
    builder.extras.append(
        block("""
        ticks = []


        def tick():
            while True:
                time.sleep(0.02)
                ticks.append(time.time())


        threading.Thread(target=tick, daemon=True).start()
        """)
    )


def _destroys_groups(builder: ScriptBuilder) -> None:
    """Destroys the groups at the end, but not with DDP: in torch 2.13 its destructor may then wait for a thread that
    waits for it.
    """
    builder.farewell.append("dist.destroy_process_group()")


def _freezes_later(builder: ScriptBuilder) -> None:
    """Freezes parameters in one step only: a newcomer has not run it."""
    builder.begin.append("if step.number == 3:\n    next(model.children()).requires_grad_(False)")


def _ends_statistics(builder: ScriptBuilder) -> None:
    builder.begin.append(
        block("""
        if step.number == 4:  # fine-tuning: statistics stay as they are from here on
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()
        """)
    )


def _freezable(builder: ScriptBuilder) -> bool:
    return "by_hand" in builder.traits and not builder.traits & {"closure", "compiled", "one_backward", "frozen"}


def _forked_rng(builder: ScriptBuilder) -> None:
    builder.finish.append(
        "with torch.random.fork_rng():\n    torch.manual_seed(step.number)\n    noise = float(torch.rand(()))"
    )
    builder.draws.append("noise")


LOOP_STYLES = [
    Feature(
        "bad batches skipped", _skip_bad, 0.15, lacks("uneven", "ddp", "one_backward", "closure", "pipeline", "sharded")
    ),
    Feature(
        "evaluation in a step", _evaluate_inside, 0.2, lacks("low_precision", "same_batches", "compiled", "pipeline")
    ),
    Feature(
        "evaluation between steps", _evaluate_between, 0.12, lacks("low_precision", "evaluates", "compiled", "pipeline")
    ),
    Feature("early break", _early_break, 0.12),
    Feature("on_final", _when_final, 0.2),
    Feature("checkpoints", _checkpoints, 0.15),
    Feature("signal handlers", _signals, 0.12),
    Feature("logging", _logging, 0.15),
    Feature("UserWarning is an error", _strict_warnings, 0.08),
    Feature("deterministic algorithms", _deterministic, 0.1),
    Feature("a thread of its own", _ticking_thread, 0.1),
    Feature("fork_rng", _forked_rng, 0.12),
    Feature("a layer frozen later", _freezes_later, 0.15, _freezable),
    Feature(
        "statistics frozen later",
        _ends_statistics,
        0.4,
        lambda builder: "batch_norm" in builder.traits and not builder.traits & {"evaluates", "compiled"},
    ),
    Feature("groups destroyed", _destroys_groups, 0.4, lacks("ddp")),
]


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
