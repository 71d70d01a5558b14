"""The GPUs of this node, as NVML and the kernel's log tell.

`recent_xids`: Errors that the NVIDIA driver wrote to the kernel's log, in the last day.

`check_gpus`: Health of this node's NVIDIA GPUs, as NVML tells it (the package nvidia-ml-py, the driver's
libnvidia-ml.so.1).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deadpool.doctor.finding import Facts, Finding, note, unknown
from deadpool.host.health.gpus import SLOWDOWNS
from deadpool.host.health.kernel import XID_LINE, XIDS_OF_HARDWARE, all_lines

_LOG = Path("/dev/kmsg")
_RECORD = re.compile(r"\d+,\d+,(?P<microseconds>\d+),")
_RECENT_S = 24 * 3600.0


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
