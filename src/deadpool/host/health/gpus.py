"""The GPUs of this node and their health.

`visible_gpus`: which GPUs of this machine the trainers of this node use: CUDA_VISIBLE_DEVICES, resolved as CUDA does
it.

On a machine that several jobs share, the errors of another's GPU say nothing about ours. Where it cannot be told
which GPUs are ours, all are.

`Gpus`: what NVML says of this node's GPUs while a job runs (the package nvidia-ml-py, the driver's
libnvidia-ml.so.1).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from deadpool.protocol.health import CORRECTABLE, GPU_LOST, HOT, THROTTLED, UNCORRECTABLE

_VISIBLE, _ORDER, _BY_BUS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"
_NONE = ("", "-1", "NoDevFiles")
"""CUDA shows the devices before such a word, and none after it. The last is Slurm's."""


def visible_gpus(nvml: Any, handles: Sequence[Any], environment: Mapping[str, str]) -> list[int]:
    """Indices of `handles`, which are those that this user may use, as NVML orders them; None is one that is lost."""
    setting, ordered = environment.get(_VISIBLE), environment.get(_ORDER) == _BY_BUS
    found: list[int] = []
    for word in setting.split(",") if setting is not None else ():
        if (name := word.strip()) in _NONE:
            return sorted(set(found))
        index = _by_number(nvml, handles, name, ordered) if name.isdecimal() else _by_uuid(nvml, handles, name)
        if index is None:
            return list(range(len(handles)))
        found.append(index)
    return sorted(set(found)) if setting is not None else list(range(len(handles)))


def _by_number(nvml: Any, handles: Sequence[Any], name: str, ordered: bool) -> int | None:
    """CUDA counts the fastest first unless it is told otherwise, and NVML by bus: the same among equal ones only."""
    index = int(name)
    if index >= len(handles):
        return None
    names = {_ask(nvml.nvmlDeviceGetName, handle) for handle in handles if handle is not None}
    return index if ordered or len(names) <= 1 else None


def _by_uuid(nvml: Any, handles: Sequence[Any], name: str) -> int | None:
    """The beginning of one is enough. A part of a GPU (MIG) counts as the whole: errors do not keep to it."""
    if name.startswith("MIG-GPU-"):  # the driver's older form: MIG-GPU-..., then / and the number of its part
        name = name.removeprefix("MIG-").partition("/")[0]
    elif name.startswith("MIG-"):
        part = _ask(nvml.nvmlDeviceGetHandleByUUID, name)
        whole = _ask(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, part)
        name = str(_ask(nvml.nvmlDeviceGetUUID, whole))
    matching = [i for i, handle in enumerate(handles) if str(_ask(nvml.nvmlDeviceGetUUID, handle)).startswith(name)]
    return matching[0] if len(matching) == 1 else None


def _ask(call: Any, what: Any) -> Any:
    """None: it is not told."""
    with contextlib.suppress(Exception):  # an old driver or package does not know the call
        return call(what) if what is not None else None
    return None


SLOWDOWNS = {
    "nvmlClocksThrottleReasonHwSlowdown": "by its hardware",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "because it is too hot",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "because it is too hot",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "because its power supply is short",
}
_BY_HEAT = ("nvmlClocksThrottleReasonHwThermalSlowdown", "nvmlClocksThrottleReasonSwThermalSlowdown")


_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
"""What NVML says of a GPU that has fallen off the bus, or that nobody can use before it is reset."""


class Gpus:
    """The GPUs that trainers of this node use. They are opened once: a job's agent looks again and again."""

    def __init__(self, pynvml: Any, environment: Mapping[str, str]) -> None:
        self._nvml = pynvml
        self._lost_codes = {getattr(pynvml, name) for name in _LOST}
        self._lost: set[int] = set()  # at this look
        opened = [(i, self._open(i)) for i in range(int(pynvml.nvmlDeviceGetCount()))]
        self._dead = frozenset(self._lost)  # they have no handle, so nothing more is heard of them
        usable = [(i, handle) for i, handle in opened if handle is not None or i in self._dead]
        visible = visible_gpus(pynvml, [handle for _, handle in usable], environment)
        self._handles = [usable[place] for place in visible]
        self._others = [gpu for gpu in opened if gpu not in self._handles]

    def _open(self, index: int) -> Any:
        """None: it is lost, or not for this user."""
        return self._ask(index, self._nvml.nvmlDeviceGetHandleByIndex, index)

    def buses_of_others(self) -> frozenset[str]:
        """Where the GPUs are that other jobs use, in the words of the kernel's log."""
        asked = (self._ask(i, self._nvml.nvmlDeviceGetPciInfo, handle) for i, handle in self._others if handle)
        return frozenset(f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}" for info in asked if info is not None)

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def __len__(self) -> int:
        return len(self._handles)

    def counters(self) -> Iterator[tuple[str, str, int]]:
        """Kind, source and total, since each GPU's last reset."""
        nvml = self._nvml
        kinds = {
            CORRECTABLE: nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            UNCORRECTABLE: nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        }
        for index, handle in self._answering():
            for kind, code in kinds.items():
                errors = self._ask(index, nvml.nvmlDeviceGetTotalEccErrors, handle, code, nvml.NVML_VOLATILE_ECC)
                if errors is not None:
                    yield kind, f"GPU {index}", int(errors)

    def gauges(self) -> Iterator[tuple[str, float, str]]:
        """Kind, value and words: heat, slowdowns for another reason, and whether it is lost."""
        for index, handle in self._answering():
            reasons = self._ask(index, self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
            active = [name for name in SLOWDOWNS if reasons & getattr(self._nvml, name)]
            hot = any(name in _BY_HEAT for name in active)
            why = ", ".join(dict.fromkeys(SLOWDOWNS[name] for name in active))
            yield HOT, float(hot), f"GPU {index} {self._degrees(index, handle)}"
            yield THROTTLED, float(bool(active) and not hot), f"GPU {index} is slowed down {why}"
        for index, _ in self._handles:
            yield GPU_LOST, float(index in self._lost), f"GPU {index} is lost, or has to be reset, says its driver"
        self._lost = set(self._dead)

    def _answering(self) -> list[tuple[int, Any]]:
        return [(index, handle) for index, handle in self._handles if index not in self._dead]

    def _degrees(self, index: int, handle: Any) -> str:
        sensor = getattr(self._nvml, "NVML_TEMPERATURE_GPU", 0)
        degrees = self._ask(index, self._nvml.nvmlDeviceGetTemperature, handle, sensor)
        return f"at {degrees} °C" if degrees is not None else "is too hot"

    def _ask(self, index: int, call: Callable[..., Any], *words: Any) -> Any:
        """None: this GPU has no such figure, or is lost."""
        try:
            return call(*words)
        except self._nvml.NVMLError as error:
            if error.value in self._lost_codes:
                self._lost.add(index)
        return None


def open_gpus() -> Gpus | None:
    """None: there is none, or its health cannot be asked for."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the package is missing, or its library, or the driver
        return None
    try:
        gpus = Gpus(pynvml, os.environ)
    except pynvml.NVMLError:
        return None
    if not len(gpus):
        gpus.close()
        return None
    return gpus
