"""What a script does with its machine and beside its training: processes, files, threads, stores, servers."""

from __future__ import annotations

from deadpool_lab.strangers.builder import ScriptBuilder, block
from deadpool_lab.strangers.kind import Kind

_ALONE = frozenset({"alone"})


def _fork(builder: ScriptBuilder) -> None:
    builder.need("import sys")
    builder.finish.append(
        block("""
        if step.number % 4 == 1 and not step.dry:
            child = os.fork()
            if not child:  # it has this step's parameters, and all the time in the world
                torch.save(model.state_dict(), os.path.join(args.out, f"aside-{rank}.pt"))
                sys.exit(0)
            os.waitpid(child, 0)
        """)
    )


def _clears_folder(builder: ScriptBuilder) -> None:
    builder.need("import shutil")
    builder.extras.append(
        block("""
        checkpoints = os.path.join(args.out, "checkpoints")
        if rank == 0:
            shutil.rmtree(checkpoints, ignore_errors=True)
            os.makedirs(checkpoints)
        """)
    )
    builder.finish.append(
        block("""
        if rank == 0 and not step.dry and step.number % 3 == 2:
            os.makedirs(checkpoints, exist_ok=True)
            torch.save(model.state_dict(), os.path.join(checkpoints, f"step-{step.number}.pt"))
        """)
    )


def _opens_log(builder: ScriptBuilder) -> None:
    builder.extras.append('log = open(os.path.join(args.out, f"log-{rank}.txt"), "w", buffering=1)')
    builder.finish.append('if not step.dry:\n    log.write(f"step {step.number}: {float(loss):.6f}\\n")')


def _hard_exit(builder: ScriptBuilder) -> None:
    builder.farewell.append("os._exit(0)")


def _side_thread(builder: ScriptBuilder) -> None:
    builder.need("import threading")
    builder.groups.append("side = dist.new_group()")
    builder.begin.append(
        block("""
        meanwhile = torch.full((1,), float(step.number + rank))
        thread = threading.Thread(target=dist.all_reduce, args=(meanwhile,), kwargs={"group": side})
        thread.start()
        """)
    )
    builder.reduce.insert(0, "thread.join()")
    builder.draws.append("float(meanwhile)")


def _async_save(builder: ScriptBuilder) -> None:
    builder.need("import torch.distributed.checkpoint as dcp")
    builder.groups.append("saving_group = dist.new_group()")
    builder.before_loop.append("saving = None")
    builder.finish.append(
        block("""
        if step.number % 3 == 2 and not step.dry:
            if saving is not None:
                saving.exception()  # a save that failed is made up for by this one
            place = os.path.join(args.out, "saved", str(step.number))
            saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id=place, process_group=saving_group)
        """)
    )
    builder.after.append("if saving is not None:\n    saving.exception()")


def _own_store(builder: ScriptBuilder) -> None:
    builder.need("import datetime")
    builder.groups.append(
        block("""
        patience = datetime.timedelta(seconds=30)
        if rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience)
        port = [store.port if rank == 0 else None]
        dist.broadcast_object_list(port, src=0)
        if rank > 0:
            store = dist.TCPStore("127.0.0.1", port[0], is_master=False, timeout=patience)
        """)
    )
    builder.finish.append(
        block("""
        told = 0.0
        if not step.dry:
            store.set(f"{step.number}/{rank}", float(loss).hex())
            told = sum(float.fromhex(store.get(f"{step.number}/{other}").decode()) for other in range(world_size))
        """)
    )
    builder.draws.append("told")
    builder.after.append("dist.barrier()  # the store ends with rank 0")


def _parameter_server(builder: ScriptBuilder) -> None:
    builder.helper("""
        class Worker:
            \"\"\"What only a worker has.\"\"\"

            def __init__(self):
                self.sent = 0

            def state_dict(self):
                return {"sent": self.sent}

            def load_state_dict(self, state):
                self.sent = state["sent"]
    """)
    builder.optimizers.append(
        block("""
        if rank == 0:
            mine = {"optimizer": torch.optim.Adam(model.parameters(), lr=0.01)}
        else:
            mine = {"worker": Worker()}
        """)
    )
    builder.spread = "mine"
    builder.digested.append("[each.state_dict() for each in mine.values()]")
    builder.reduce = [
        block("""
        for parameter in model.parameters():
            dist.reduce(parameter.grad, dst=0)
        """)
    ]
    builder.update = [
        block("""
        if rank == 0:
            mine["optimizer"].step()
        else:
            mine["worker"].sent += 1
        with torch.no_grad():
            for parameter in model.parameters():
                dist.broadcast(parameter, src=0)
        """)
    ]
    builder.zero = ["model.zero_grad()"]
    builder.draws.append('mine["worker"].sent if rank else 0')


def _no_home(builder: ScriptBuilder) -> None:
    builder.environment["HOME"] = "/proc/nowhere"


def _gone_directory(builder: ScriptBuilder) -> None:
    builder.need("import shutil", "import tempfile")
    builder.before_loop.append("os.chdir(place := tempfile.mkdtemp())\nshutil.rmtree(place)")


def _in_a_thread(builder: ScriptBuilder) -> None:
    builder.need("import threading")
    builder.flat = False
    builder.start = "training = threading.Thread(target=main)\ntraining.start()\ntraining.join()"


_AVERAGE_OF_A_WORKER = """
    {begin} average(model, world_size):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
"""


def _in_a_task(builder: ScriptBuilder) -> None:
    builder.need("import asyncio")
    builder.helper(_AVERAGE_OF_A_WORKER.format(begin="async def"))
    builder.reduce = ["asyncio.run(average(model, world_size))"]


def _in_a_pool(builder: ScriptBuilder) -> None:
    builder.need("from concurrent.futures import ThreadPoolExecutor")
    builder.helper(_AVERAGE_OF_A_WORKER.format(begin="def"))
    builder.before_loop.append("workers = ThreadPoolExecutor(1)")
    builder.reduce = ["workers.submit(average, model, world_size).result()"]


SURROUNDINGS = [
    Kind(
        name="forkexit",
        about="a fork in a step whose child ends by sys.exit(0)",
        write=_fork,
        brings=_ALONE,
        real_torchrun=True,
    ),
    Kind(
        name="cleandir",
        about="rank 0 clears its checkpoint folder before the loop",
        write=_clears_folder,
        victims="rank 0",
        keeps=("checkpoints/*",),
        rules=("files_before_loop",),
    ),
    Kind(
        name="openw",
        about='open(log, "w") before the loop',
        write=_opens_log,
        keeps=("log-*.txt",),
        rules=("files_before_loop",),
    ),
    Kind(name="osexit", about="os._exit(0) at the end", write=_hard_exit, brings=_ALONE, real_torchrun=True),
    Kind(
        name="bgthread",
        about="an all-reduce in a thread, on a group of its own",
        write=_side_thread,
        brings=_ALONE,
    ),
    Kind(
        name="asyncsave",
        about="dcp.async_save every third step, on a group of its own",
        write=_async_save,
        brings=_ALONE,
    ),
    Kind(
        name="ownstore",
        about="a TCPStore of the script's own on rank 0, which is not lost",
        write=_own_store,
        brings=_ALONE,
        moments=("forward", "backward"),
        victims="other nodes",
    ),
    Kind(
        name="asym",
        about="a parameter server: rank 0 protects other objects",
        write=_parameter_server,
        brings=_ALONE | {"own_reduce", "own_optimizer"},
    ),
    Kind(name="nohome", about="a HOME that cannot be written", write=_no_home),
    Kind(name="gonecwd", about="a working directory that is gone", write=_gone_directory),
    Kind(
        name="inthread", about="training in a thread, for which the main one waits", write=_in_a_thread, brings=_ALONE
    ),
    Kind(
        name="asynctask",
        about="gradients reduced in an asyncio task",
        write=_in_a_task,
        brings=_ALONE | {"own_reduce"},
    ),
    Kind(
        name="pooled",
        about="gradients reduced in a ThreadPoolExecutor",
        write=_in_a_pool,
        brings=_ALONE | {"own_reduce"},
        moments=("forward", "backward", "optimizer"),
    ),
]
