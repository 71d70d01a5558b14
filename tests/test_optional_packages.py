"""Packages that a plain job does without: nothing of ours asks for them when it is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
from test_layers import modules

LIBRARIES = ("accelerate", "deepspeed", "lightning", "megatron", "torchtitan", "transformers")
OF_LIBRARIES = (*(f"integrations.{name}" for name in LIBRARIES), "clusters.kubernetes.operator.cluster")
"""What imports one of these uses the library itself."""
OPTIONAL = (
    *("cryptography", "pynvml", "hypothesis", "atheris", "torchdata", "tensorboard", "wandb", "ray"),
    *("kopf", "lightkube", "yaml", "aiohttp", "playwright", "fsspec", "s3fs", "safetensors"),
    *("prometheus_client", "opentelemetry"),
    *LIBRARIES,
)


def imported_without(packages: tuple[str, ...], names: list[str]) -> subprocess.CompletedProcess[str]:
    lines = ["import sys, importlib", *(f"sys.modules[{package!r}] = None" for package in packages)]
    lines += [f"importlib.import_module({name!r})" for name in names]
    command = [sys.executable, "-c", "\n".join(lines)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_everything_can_be_imported_without_them():
    names = [
        f"deadpool.{module}".replace("deadpool.lab", "deadpool_lab")
        for module in modules()
        if module != "__init__" and not module.startswith(OF_LIBRARIES)
    ]
    assert len(names) > 100
    done = imported_without(OPTIONAL, names)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["msgspec"])
def test_package_that_is_needed_is_missed(package):
    assert f"import of {package} halted" in imported_without((package,), ["deadpool.wire.codec"]).stderr
