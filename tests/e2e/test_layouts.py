"""Whoever dies and whenever, in whatever layout: losses and final state are those of the undisturbed run.

Each cell of the matrix (matrix.py) is a test. scripts/check takes a sample of it.
"""

from __future__ import annotations

import importlib.util

import pytest
from matrix import Matrix, Shape, extent_of

from deadpool.demo.gpt import Size
from deadpool.errors import ConfigError
from deadpool_lab.workload import layouts
from deadpool_lab.workload.layouts.assembly import LayoutOptions

# In every run: equal losses prove that generators, schedule, average and data position came back too.
COMMON = ("--clip", "1.0", "--dropout", "0.1", "--checkpoint", "--ema", "0.9")
FOREACH = ("--optimizer", "foreach")
STATEFUL = ("--loader", "stateful") if importlib.util.find_spec("torchdata") else ()

MATRIX = Matrix(
    {
        "plain": Shape(4, 1, STATEFUL),
        "ddp": Shape(2, 2, FOREACH),
        "ddp-accumulate": Shape(4, 1),
        "ddp-unused": Shape(2, 2, STATEFUL),
        "zero1": Shape(4, 1, FOREACH),
        "fsdp2": Shape(2, 4),
        "fsdp2-keep": Shape(4, 1, FOREACH + STATEFUL),
        "fsdp2-bf16": Shape(2, 2),
        "hsdp": Shape(4, 1, STATEFUL),
        "tp": Shape(2, 2, FOREACH),
        "tp-sp": Shape(4, 1),
        "fsdp2-tp": Shape(4, 1, STATEFUL),
        "pp-gpipe": Shape(4, 1),
        "pp-1f1b": Shape(2, 2, FOREACH),
        "pp-interleaved": Shape(3, 1, STATEFUL),
        "3d": Shape(4, 2, FOREACH),
    },
    COMMON,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    MATRIX.parametrize(metafunc)


def test_survives_bit_for_bit(cell, request, tmp_path_factory, fork_server):
    MATRIX.check(cell, extent_of(request.config), tmp_path_factory.mktemp, fork_server)


def test_context_parallelism_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="does not have a sharding strategy registered"):
        layouts.build("cp", LayoutOptions(size=Size()))
