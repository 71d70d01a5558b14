"""Layouts x victims x moments: whoever dies and whenever, losses and final state are those of the undisturbed run.

A tour takes one layout through all moments, a node being killed at each. By default the victim changes from moment to
moment, so that every pair of layout, victim and moment occurs; with --all every cell of the matrix does, with --sample
(scripts/check) every layout and every moment. Each cell is a test: its strike fell at its moment, and every rank's
losses and final state are bit-identical.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tour import Itinerary, Strike, Tour

from deadpool.errors import ConfigError
from deadpool.workload import layouts
from deadpool.workload.gpt import Size
from deadpool.workload.layouts.assembly import Options
from deadpool.workload.results import Results, differences

MOMENTS = ("first", "forward", "backward", "reduce", "clip", "optimizer", "between", "capture", "wire", "recovered")
VICTIMS: dict[str, Callable[[int], int]] = {
    "rank0": lambda nodes: 0,
    "last": lambda nodes: nodes - 1,  # of a pipeline: the last stage
    "middle": lambda nodes: nodes // 2,
}

# In every run: equal losses prove that generators, schedule, average and data position came back too.
COMMON = ("--clip", "1.0", "--dropout", "0.1", "--checkpoint", "--ema", "0.9")
FOREACH = ("--optimizer", "foreach")
STATEFUL = ("--loader", "stateful") if importlib.util.find_spec("torchdata") else ()


@dataclass(frozen=True, slots=True)
class Shape:
    nodes: int
    per_node: int
    flags: tuple[str, ...] = ()


LAYOUTS: dict[str, Shape] = {
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
}
CANNOT = {
    (layout, "reduce"): "a pipeline alone reduces no gradients" for layout in ("pp-gpipe", "pp-1f1b", "pp-interleaved")
}

Cell = tuple[str, str, str]  # layout, victim, moment


def cells(extent: str) -> list[Cell]:
    """`extent`: all, pairs or sample. In the order of tours, and in each of them of the moments."""
    rotated = [(row, layout, column) for row, layout in enumerate(LAYOUTS) for column in range(len(MOMENTS))]
    if extent == "sample":
        rotated = [each for each in rotated if (each[2] - 3 * each[0]) % len(MOMENTS) < 3]
    if extent != "all":
        return [(layout, list(VICTIMS)[(row + column) % 3], MOMENTS[column]) for row, layout, column in rotated]
    return [(layout, victim, moment) for layout in LAYOUTS for victim in VICTIMS for moment in MOMENTS]


def extent_of(config: pytest.Config) -> str:
    return next((name for name in ("all", "sample") if config.getoption(f"--{name}")), "pairs")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        metafunc.parametrize("cell", cells(extent_of(metafunc.config)), ids="-".join)


@dataclass(slots=True)
class Finding:
    """What came of one tour; `error` if it could not be done to its end."""

    tour: Tour | None = None
    disturbed: Results | None = None
    undisturbed: Results | None = None
    error: str | None = None


_findings: dict[tuple[str, str], Finding] = {}


def itinerary(layout: str, victim: str, extent: str) -> Itinerary:
    """The cells of one tour: with --all those of this victim, else every moment has its own."""
    shape = LAYOUTS[layout]
    row = [cell for cell in cells(extent) if cell[0] == layout and (extent != "all" or cell[1] == victim)]
    victims = {moment: victim for _, victim, moment in row if (layout, moment) not in CANNOT}
    strikes = tuple(Strike(moment, VICTIMS[victims[moment]](shape.nodes)) for moment in victims)
    return Itinerary(
        layout=layout, nodes=shape.nodes, per_node=shape.per_node, flags=(*COMMON, *shape.flags), strikes=strikes
    )


@pytest.fixture
def finding(cell, request, tmp_path_factory, nursery) -> Finding:
    layout, victim, _ = cell
    extent = extent_of(request.config)
    key = (layout, victim if extent == "all" else "")
    if key not in _findings:
        _findings[key] = found = Finding()
        found.tour = Tour(itinerary(layout, victim, extent), tmp_path_factory.mktemp(layout), nursery)
        try:
            found.undisturbed = found.tour.undisturbed()
            found.disturbed = found.tour.run()
        except Exception as error:
            found.error = f"{type(error).__name__}: {error}"
    return _findings[key]


@pytest.mark.timeout(300)
def test_survives_bit_for_bit(cell, finding):
    layout, _, moment = cell
    if (layout, moment) in CANNOT:
        pytest.skip(CANNOT[layout, moment])
    assert finding.error is None, finding.error
    index = [strike.moment for strike in finding.tour.itinerary.strikes].index(moment)
    assert finding.tour.fell(index)
    assert differences(finding.undisturbed, finding.disturbed) == []


def test_context_parallelism_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="does not have a sharding strategy registered"):
        layouts.build("cp", Options(size=Size()))
