"""Checks of one machine: its memory and limits, its folders and the secret, its GPUs.

Arenas are memfds: they need no room in /dev/shm and no huge pages, but count against the memory of the node and of its
cgroups. /dev/shm is what NCCL and the workers of data loaders use. There may be limits that stop a job although there
is enough memory. A folder is tried by writing to it, since the job will have to.

NVML (the package nvidia-ml-py, the driver's libnvidia-ml.so.1) tells the health of this node's NVIDIA GPUs, and the
kernel's log has the errors that their driver wrote in the last day.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deadpool.doctor.finding import Facts, Finding, note, unknown
from deadpool.host import host_memory
from deadpool.host.health.gpus import SLOWDOWNS
from deadpool.host.health.kernel import XID_LINE, XIDS_OF_HARDWARE, all_lines
from deadpool.host.private_files import open_private
from deadpool.host.rdma import INSTALL as INSTALL_NIXL
from deadpool.host.rdma import nixl_build, rdma_devices
from deadpool.wire.credentials import UnusableSecret, read_secret, secret_is_given

_SHM = Path("/dev/shm")
_SHM_LEAST_BYTES = 128 << 20
_FILES_LEAST = 1024
_CAP_IPC_LOCK = 14
_GIB = 2**30

_LOG = Path("/dev/kmsg")
_RECORD = re.compile(r"\d+,\d+,(?P<microseconds>\d+),")
_RECENT_S = 24 * 3600.0


def check_memory(arena_bytes: int) -> tuple[Facts, list[Finding]]:
    room, figures = host_memory.room(), host_memory.meminfo()
    huge = figures.get("HugePages_Free", 0) * figures.get("Hugepagesize", 0)
    facts: Facts = {
        "memory_total_bytes": figures["MemTotal"],
        "memory_room_bytes": room.bytes,
        "memory_limited_by": room.limited_by,
        "huge_pages_free_bytes": huge,
    }
    if arena_bytes <= room.bytes:
        return facts, []
    what = f"arenas need {arena_bytes / _GIB:.2f} GiB, and {room.bytes / _GIB:.2f} GiB are left by {room.limited_by}"
    if huge and arena_bytes <= room.bytes + huge:
        do = f"give back the {huge / _GIB:.2f} GiB that are set aside as huge pages, which arenas do not use: "
        return facts, [Finding(check="memory", what=what, do=do + "sysctl vm.nr_hugepages=0")]
    do = "ask for more memory (Slurm --mem, Kubernetes resources.limits.memory), or use fewer --slots or more nodes"
    return facts, [Finding(check="memory", what=what, do=do)]


def check_shared_memory() -> tuple[Facts, list[Finding]]:
    try:
        figures = os.statvfs(_SHM)
    except OSError as error:
        what = f"/dev/shm cannot be used: {error.strerror}"
        return {}, [
            Finding(check="shared memory", what=what, do="mount a tmpfs at /dev/shm: NCCL and data loaders need it")
        ]
    free = figures.f_bavail * figures.f_frsize
    facts: Facts = {"shm_bytes": figures.f_blocks * figures.f_frsize, "shm_free_bytes": free}
    if free >= _SHM_LEAST_BYTES:
        return facts, []
    what = f"/dev/shm has {free / 2**20:.0f} MiB free, which NCCL and workers of data loaders use up quickly"
    do = "give the container more (docker --shm-size, in Kubernetes an emptyDir with medium: Memory), or empty it"
    return facts, [Finding(check="shared memory", what=what, do=do)]


def check_limits(rdma: bool) -> tuple[Facts, list[Finding]]:
    devices = rdma_devices()
    locked, files, cpu = (
        resource.getrlimit(each)[0] for each in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU)
    )
    facts: Facts = {"rdma_devices": devices, "memlock_bytes": _known(locked), "open_files": _known(files)}
    facts["nixl"] = nixl_build()
    findings = []
    if devices and facts["nixl"] is None:
        what = f"copies go by TCP although {', '.join(devices)} could carry them: nixl is not installed"
        findings.append(note("rdma", what, INSTALL_NIXL))
    if rdma and not devices:
        what = "the job uses RDMA, and this node has no RDMA device"
        findings.append(Finding(check="rdma", what=what, do="load its driver, or pass the devices into the container"))
    if (rdma or devices) and locked != resource.RLIM_INFINITY and not _may_lock():
        what = f"memlock is {locked / 2**20:.2f} MiB: registering memory with {', '.join(devices) or 'RDMA'} fails"
        do = "set it to unlimited: LimitMEMLOCK=infinity for slurmd, memlock in limits.conf, docker --ulimit memlock=-1"
        findings.append(Finding(check="memlock", what=what, do=do))
    if files != resource.RLIM_INFINITY and files < _FILES_LEAST:
        what = f"a process may open {files} files, and an agent may need {_FILES_LEAST}"
        findings.append(
            Finding(check="open files", what=what, do=f"ulimit -n {_FILES_LEAST} or more where agents start")
        )
    if cpu != resource.RLIM_INFINITY:
        what = f"the kernel ends each process here after {cpu} s of CPU time"
        do = "start the job where `ulimit -t` is unlimited: this may be a login node"
        findings.append(Finding(check="time limit", what=what, do=do))
    return facts, findings


def _known(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _may_lock() -> bool:
    """Whether the limit does not hold for this process, as for root."""
    status = Path("/proc/self/status").read_text()
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)


_LEAST_FREE_BYTES = 100 << 20
_TRIED_BYTES = 1 << 16
_ADVICE = {
    errno.EROFS: "mount it for writing, or give another --run-dir",
    errno.EACCES: "give its folder to the user of the job, or give another --run-dir",
    errno.EPERM: "give its folder to the user of the job, or give another --run-dir",
    errno.ENOSPC: "free some space or inodes, or give another --run-dir",
    errno.EDQUOT: "free some of your quota, or give another --run-dir",
    errno.ESTALE: "mount the file system again: its server has forgotten this mount",
    errno.ENOTDIR: "it is a file: give another --run-dir",
}


def check_folder(run_dir: Path) -> tuple[Facts, list[Finding]]:
    """Where the folder does not exist yet, the nearest one above it that does has to take it."""
    folder = run_dir.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        _try_writing(folder)
        figures = os.statvfs(folder)
    except OSError as error:
        what = f"{folder} cannot be written to: {error.strerror}"
        do = _ADVICE.get(error.errno or 0, "repair it, or give another --run-dir")
        return {}, [Finding(check="run folder", what=what, do=do)]
    free = figures.f_bavail * figures.f_frsize
    facts: Facts = {"run_folder": str(folder), "run_folder_free_bytes": free}
    if free < _LEAST_FREE_BYTES:
        what = f"{folder} has {free / 2**20:.0f} MiB free: logs and events of a long job need more"
        return facts, [Finding(check="run folder", what=what, do=_ADVICE[errno.ENOSPC])]
    return facts, []


def check_secret() -> tuple[Facts, list[Finding]]:
    if not secret_is_given():
        return {}, []
    try:
        read_secret()
    except UnusableSecret as error:
        return {}, [Finding(check="secret", what=error.found, do=error.cure)]
    return {}, []


def _try_writing(folder: Path) -> None:
    """Writes until the bytes are on the disk: a full or broken file system may tell only then."""
    trial = folder / f".deadpool-doctor-{secrets.token_hex(6)}"
    try:
        with open_private(trial, "wb") as file:
            file.write(secrets.token_bytes(_TRIED_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        trial.unlink(missing_ok=True)


def recent_xids() -> list[str]:
    """In words, one for each device and number."""
    since = time.clock_gettime(time.CLOCK_BOOTTIME) - _RECENT_S
    found = {}
    for record in all_lines(_LOG):
        match, head = XID_LINE.search(record), _RECORD.match(record)
        number = int(match["number"]) if match else 0
        if match and number in XIDS_OF_HARDWARE and (head is None or int(head["microseconds"]) / 1e6 >= since):
            found[match["device"], number] = f"Xid {number} of {match['device']}: {XIDS_OF_HARDWARE[number]}"
    return list(found.values())


INSTALL = "pip install 'torch-deadpool[doctor]'"
_DEVICES = Path("/dev")
_REPLACE = "keep jobs off it and have it replaced: its memory has no spare rows left"
_RESET = "reset it (nvidia-smi --gpu-reset) or restart the node before the next job"


def check_gpus(wanted: int | None) -> tuple[Facts, list[Finding]]:
    devices = sorted(path.name for path in _DEVICES.glob("nvidia[0-9]*"))
    try:
        import pynvml
    except ImportError:
        return _without_package(len(devices), wanted)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _without_library(pynvml, error, devices, wanted)
    try:
        return _examine(pynvml, wanted)
    finally:
        pynvml.nvmlShutdown()


def _without_package(count: int, wanted: int | None) -> tuple[Facts, list[Finding]]:
    if not count and not wanted:
        return {"gpus": 0}, []
    found = unknown("gpu", f"{count} GPUs are here, and nvidia-ml-py, which tells their health, is not", INSTALL)
    return {"gpus": count}, [found, *_too_few(count, wanted)]


def _without_library(
    pynvml: Any, error: Exception, devices: list[str], wanted: int | None
) -> tuple[Facts, list[Finding]]:
    missing = isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded))
    if missing and not devices and not wanted:
        return {"gpus": 0}, []
    what = f"NVML cannot be used: {error}"
    do = "restart the node if the driver was updated under it; else load the driver and, in a container, pass it in"
    return {"gpus": 0}, [Finding(check="gpu", what=what, do=do), *_too_few(0, wanted)]


def _examine(pynvml: Any, wanted: int | None) -> tuple[Facts, list[Finding]]:
    count = int(pynvml.nvmlDeviceGetCount())
    facts: Facts = {"gpus": count, "driver": _text(pynvml.nvmlSystemGetDriverVersion()), "gpu_models": []}
    findings = _too_few(count, wanted)
    for index in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            facts["gpu_models"].append(_text(pynvml.nvmlDeviceGetName(handle)))
        except pynvml.NVMLError as error:
            do = "restart the node; if that does not help, have the GPU replaced"
            findings.append(Finding(check="gpu", what=f"GPU {index} does not answer: {error}", do=do))
            continue
        findings += _health(pynvml, handle, index)
    for xid in recent_xids() if count else ():
        findings.append(Finding(check="gpu", what=f"the driver logged {xid}", do=_RESET))
    return facts, findings


def _health(pynvml: Any, handle: Any, index: int) -> Iterator[Finding]:
    def ask(call: Callable[..., Any], *more: Any) -> Any:
        """None: this GPU has no such figure."""
        with contextlib.suppress(pynvml.NVMLError):
            return call(handle, *more)
        return None

    def found(what: str, do: str) -> Finding:
        return Finding(check="gpu", what=f"GPU {index} {what}", do=do)

    kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    if errors := ask(pynvml.nvmlDeviceGetTotalEccErrors, kind, pynvml.NVML_VOLATILE_ECC):
        yield found(f"has had {errors} memory errors that ECC could not correct since its last reset", _RESET)
    _, _, rows_pending, rows_failed = ask(pynvml.nvmlDeviceGetRemappedRows) or (0, 0, 0, 0)
    if rows_failed:
        yield found("could not replace a bad row of its memory", _REPLACE)
    elif rows_pending or ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus):
        yield found("has bad memory that is taken out of use only when it is reset", _RESET)
    reasons = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    for why in dict.fromkeys(why for name, why in SLOWDOWNS.items() if reasons & getattr(pynvml, name)):
        yield found(f"is slowed down {why}", "look at the node's cooling and power: it would slow the whole job down")
    if ask(pynvml.nvmlDeviceGetPersistenceMode) == pynvml.NVML_FEATURE_DISABLED:
        do = "run nvidia-persistenced, so that the driver keeps the GPU's state and processes start faster"
        yield note("gpu", f"GPU {index} is not in persistence mode", do)


def _too_few(count: int, wanted: int | None) -> list[Finding]:
    if wanted is None or count >= wanted:
        return []
    do = (
        "look for those that are missing with lspci and dmesg, or pass them into the job (Slurm --gres, nvidia.com/gpu)"
    )
    return [Finding(check="gpu", what=f"{count} GPUs are visible, and {wanted} are needed", do=do)]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
