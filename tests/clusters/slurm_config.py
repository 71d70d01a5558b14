"""The configuration files of the Slurm testbed, as an administrator would write them, with short timeouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NETWORK = "10.77.0"
CONTROLLER = "ctl"
USERS = {"alice": 20001, "bob": 20002}
"""Ordinary users: alice submits, bob is another user of the same cluster."""
CGROUPS = Path("/run/slurm/cgroup")
REFUSING_SBATCH = Path("/run/slurm/sbatch")

_SLURM_CONF = """\
ClusterName=testbed
SlurmctldHost={controller}({network}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A job that is requeued may begin after twice this time: 240 s by default.
AuthInfo=cred_expire=3
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/%n/slurmd.pid
SlurmctldLogFile=/run/slurm/log/slurmctld.log
SlurmdLogFile=/run/slurm/log/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
TopologyPlugin=topology/{topology}
GresTypes=gpu
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout={down_after_s}
InactiveLimit=0
KillWait=10
MinJobAge=600
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,bf_interval=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{health}
"""


def has_freezer() -> bool:
    """Whether nodes can track processes as nearly every site does. Then a signal to a job goes to the tasks that srun
    started; otherwise it goes to all their descendants too, and a node cannot be drained on it."""
    return Path("/sys/fs/cgroup/freezer/tasks").exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    nodes: int
    racks: int = 2
    topology: bool = True  # else racks are told by node features only
    gpus: int = 0  # of each node; counted, without devices
    grace_s: int = 30  # from the announcement of a preemption to its execution
    down_after_s: int = 10  # of silence, after which Slurm calls a node DOWN; Slurm's default is 300
    health_program: str = ""
    submit_only_from_login: bool = False

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def address(self, name: str) -> str:
        return f"{NETWORK}.{10 + int(name.removeprefix('n'))}"

    def rack(self, name: str) -> str:
        index = self.names.index(name)
        return f"rack{index * self.racks // self.nodes}"


def files(shape: ClusterShape) -> dict[str, str]:
    """The files of /etc/slurm."""
    health = f"HealthCheckProgram={shape.health_program}\nHealthCheckInterval=10" if shape.health_program else ""
    conf = _SLURM_CONF.format(
        controller=CONTROLLER,
        network=NETWORK,
        proctrack="cgroup" if has_freezer() else "linuxproc",
        topology="tree" if shape.topology else "none",
        down_after_s=shape.down_after_s,
        health=health,
    )
    return {
        "slurm.conf": conf + "".join(f"{line}\n" for line in [*_nodes(shape), *_partitions(shape)]),
        "gres.conf": "".join(f"Name=gpu File={path}\n" for path in gpu_files(shape)),
        "topology.conf": "".join(f"{line}\n" for line in _switches(shape)) if shape.topology else "",
        "cgroup.conf": f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={CGROUPS}\nCgroupAutomount=no\n",
    }


def gpu_files(shape: ClusterShape) -> list[str]:
    """Slurm counts GPUs by their device files; plain files will do."""
    return [f"/run/slurm/gpu{index}" for index in range(shape.gpus)]


def hosts(shape: ClusterShape) -> str:
    lines = ["127.0.0.1 localhost", f"{NETWORK}.1 {CONTROLLER}"]
    return "".join(f"{line}\n" for line in [*lines, *(f"{shape.address(name)} {name}" for name in shape.names)])


def _nodes(shape: ClusterShape) -> list[str]:
    gres = f" Gres=gpu:{shape.gpus}" if shape.gpus else ""
    return [
        f"NodeName={name} NodeAddr={shape.address(name)} CPUs=2 RealMemory=2000 Feature=cpu,{shape.rack(name)}{gres}"
        for name in shape.names
    ]


def _partitions(shape: ClusterShape) -> list[str]:
    common = f"Nodes={','.join(shape.names)} MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE"
    return [
        f"PartitionName=main Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={shape.grace_s} {common}",
        f"PartitionName=urgent PriorityTier=10 PreemptMode=off {common}",
    ]


def _switches(shape: ClusterShape) -> Sequence[str]:
    racks: dict[str, list[str]] = {}
    for name in shape.names:
        racks.setdefault(shape.rack(name), []).append(name)
    leaves = [f"SwitchName=switch-{rack} Nodes={','.join(names)}" for rack, names in racks.items()]
    return [*leaves, f"SwitchName=spine Switches={','.join(f'switch-{rack}' for rack in racks)}"]
