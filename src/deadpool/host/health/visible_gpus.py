"""Which GPUs of this machine the trainers of this node use: CUDA_VISIBLE_DEVICES, resolved as CUDA does it.

On a machine that several jobs share, the errors of another's GPU say nothing about ours. Where it cannot be told which
GPUs are ours, all are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

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
