"""What NVML says of this node's GPUs while a job runs (the package nvidia-ml-py, the driver's libnvidia-ml.so.1)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from deadpool.protocol.health import CORRECTABLE, HOT, THROTTLED, UNCORRECTABLE

SLOWDOWNS = {
    "nvmlClocksThrottleReasonHwSlowdown": "by its hardware",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "because it is too hot",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "because it is too hot",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "because its power supply is short",
}
_BY_HEAT = ("nvmlClocksThrottleReasonHwThermalSlowdown", "nvmlClocksThrottleReasonSwThermalSlowdown")


class Gpus:
    """Opened once: a job's agent looks again and again."""

    def __init__(self, pynvml: Any) -> None:
        self._nvml = pynvml
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(int(pynvml.nvmlDeviceGetCount()))]
        self._handles = list(enumerate(handles))

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
        for index, handle in self._handles:
            for kind, code in kinds.items():
                errors = self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, code, nvml.NVML_VOLATILE_ECC)
                if errors is not None:
                    yield kind, f"GPU {index}", int(errors)

    def gauges(self) -> Iterator[tuple[str, float, str]]:
        """Kind, value and words: heat, and slowdowns for another reason."""
        for index, handle in self._handles:
            reasons = self._ask(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
            active = [name for name in SLOWDOWNS if reasons & getattr(self._nvml, name)]
            hot = any(name in _BY_HEAT for name in active)
            why = ", ".join(dict.fromkeys(SLOWDOWNS[name] for name in active))
            yield HOT, float(hot), f"GPU {index} {self._degrees(handle)}"
            yield THROTTLED, float(bool(active) and not hot), f"GPU {index} is slowed down {why}"

    def _degrees(self, handle: Any) -> str:
        sensor = getattr(self._nvml, "NVML_TEMPERATURE_GPU", 0)
        degrees = self._ask(self._nvml.nvmlDeviceGetTemperature, handle, sensor)
        return f"at {degrees} °C" if degrees is not None else "is too hot"

    def _ask(self, call: Callable[..., Any], *words: Any) -> Any:
        """None: this GPU has no such figure."""
        with contextlib.suppress(self._nvml.NVMLError):
            return call(*words)
        return None


def open_gpus() -> Gpus | None:
    """None: there is none, or its health cannot be asked for."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the package is missing, or its library, or the driver
        return None
    try:
        gpus = Gpus(pynvml)
    except pynvml.NVMLError:
        return None
    if not len(gpus):
        gpus.close()
        return None
    return gpus
