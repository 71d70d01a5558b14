"""Layouts x victims x moments, as runs with injections that are each made once, and what came of them.

A run takes one layout through all moments, a node being killed at each. By default the victim changes from moment to
moment, so that every pair of layout, victim and moment occurs; with --all every cell of the matrix does, with --sample
the most common layouts, and every moment in some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from injected_run import InjectedRun, Injection, InjectionList

from deadpool.control.trainers.fork_client import SharedForkServer
from deadpool.demo.trial import Results, differences

MOMENTS = ("first", "forward", "backward", "reduce", "clip", "optimizer", "between", "capture", "wire", "recovered")
VICTIMS: dict[str, Callable[[int], int]] = {
    "rank0": lambda nodes: 0,
    "last": lambda nodes: nodes - 1,  # of a pipeline: the last stage
    "middle": lambda nodes: nodes // 2,
}
SAMPLED = {"ddp": range(8), "fsdp2-tp": range(8, 10)}
"""Which of the moments a sample takes: each of them in one layout."""
PIPELINES = ("pp-gpipe", "pp-1f1b", "pp-interleaved")
CANNOT = {(layout, "reduce"): "a pipeline alone reduces no gradients" for layout in PIPELINES}

Cell = tuple[str, str, str]
"""Layout, victim, moment."""


def extent_of(config: pytest.Config) -> str:
    return next((name for name in ("all", "sample") if config.getoption(f"--{name}")), "pairs")


@dataclass(frozen=True, slots=True)
class Shape:
    nodes: int
    per_node: int
    flags: tuple[str, ...] = ()
    layout: str = ""  # of the workload, where its row has another name


@dataclass(slots=True)
class Finding:
    """What came of one run for the cells `of` it; `error` if it could not be done to its end."""

    of: Cell

    injected: InjectedRun | None = None
    disturbed: Results | None = None
    undisturbed: Results | None = None
    failed: str = "the reference"
    error: str | None = None


@dataclass(slots=True)
class Matrix:
    layouts: dict[str, Shape]
    common: tuple[str, ...]  # flags of every run
    _findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def cells(self, extent: str) -> list[Cell]:
        """`extent`: all, pairs or sample. In the order of runs, and in each of them of the moments."""
        if extent == "all":
            return [(layout, victim, moment) for layout in self.layouts for victim in VICTIMS for moment in MOMENTS]
        rotated = [(row, layout, column) for row, layout in enumerate(self.layouts) for column in range(len(MOMENTS))]
        if extent == "sample":
            rotated = [each for each in rotated if each[2] in SAMPLED.get(each[1], ())]
        return [(layout, list(VICTIMS)[(row + column) % 3], MOMENTS[column]) for row, layout, column in rotated]

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        if "cell" in metafunc.fixturenames:
            metafunc.parametrize("cell", self.cells(extent_of(metafunc.config)), ids="-".join)

    def check(self, cell: Cell, extent: str, new_folder: Callable[[str], Path], fork_server: SharedForkServer) -> None:
        """The fault was injected at its moment, and every rank's losses and final state are bit-identical."""
        layout, _, moment = cell
        if (layout, moment) in CANNOT:
            pytest.skip(CANNOT[layout, moment])
        finding = self._find(cell, extent, new_folder, fork_server)
        if finding.error is not None and finding.of != cell:
            pytest.fail(f"{finding.failed} of this family failed: see {'-'.join(finding.of)}", pytrace=False)
        assert finding.error is None, f"{finding.failed} failed: {finding.error}"
        assert finding.injected is not None and finding.undisturbed is not None and finding.disturbed is not None
        index = [injection.moment for injection in finding.injected.wanted.injections].index(moment)
        assert finding.injected.fell(index)
        assert finding.injected.hangs() == []
        assert differences(finding.undisturbed, finding.disturbed) == []

    def _find(
        self, cell: Cell, extent: str, new_folder: Callable[[str], Path], fork_server: SharedForkServer
    ) -> Finding:
        layout, victim, _ = cell
        key = (layout, victim if extent == "all" else "")
        if key not in self._findings:
            self._findings[key] = found = Finding(cell)
            found.injected = InjectedRun(self._injection_list(layout, victim, extent), new_folder(layout), fork_server)
            try:
                found.undisturbed = found.injected.undisturbed()
                found.failed = "the run with injections"
                found.disturbed = found.injected.run()
            except Exception as error:
                found.error = f"{type(error).__name__}: {error}"
        return self._findings[key]

    def _injection_list(self, layout: str, victim: str, extent: str) -> InjectionList:
        """The cells of one run: with --all those of this victim, else every moment has its own."""
        shape = self.layouts[layout]
        row = [cell for cell in self.cells(extent) if cell[0] == layout and (extent != "all" or cell[1] == victim)]
        victims = {moment: victim for _, victim, moment in row if (layout, moment) not in CANNOT}
        injections = tuple(Injection(moment, VICTIMS[victims[moment]](shape.nodes)) for moment in victims)
        flags = (*self.common, *shape.flags)
        return InjectionList(
            layout=shape.layout or layout,
            nodes=shape.nodes,
            per_node=shape.per_node,
            flags=flags,
            injections=injections,
        )
