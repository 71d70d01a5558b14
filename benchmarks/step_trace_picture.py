"""Draws where the time of steps went, from results of `overhead.py --trace`: a bar each for a step beside a copy and
for one without.

    python benchmarks/step_trace_picture.py 'small=out/launch.json:shard-launch' 'large=out/shard.json:shard' \
        > docs/pictures/step-trace.svg

Each bar is the median of the traced stretches. What other streams do, which is the copy, runs beside it and is drawn
below. Tracing makes launching slower, so a device that waits for its host waits longer here than without a trace.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from deadpool.views.picture.svg import Canvas, text_px

WIDTH, LEFT, RIGHT = 860.0, 250.0, 70.0
TOP, GROUP, ROW, BAR, COPY = 76.0, 26.0, 34.0, 15.0, 5.0
KINDS = {"kernels": "prepare", "short gaps": "unwind", "long gaps": "fault", "on other streams": "connect"}
LEGEND = {
    "kernels": "kernels of the step",
    "short gaps": "gaps between kernels",
    "long gaps": "gaps of more than 0.1 ms: the device waits for its host",
    "on other streams": "the copy, beside them",
}


def medians(path: Path, case: str, *, protected: bool) -> dict[str, float]:
    """Milliseconds per step by kind, and `whole`."""
    chapters = [
        each for each in json.loads(path.read_text())[case]["trace_ms_per_step"] if each["protected"] is protected
    ]
    found: dict[str, float] = {"kernels": statistics.median(sum(each["kernels"].values()) for each in chapters)}
    for kind in ("short gaps", "long gaps", "on other streams", "whole"):
        found[kind] = statistics.median(each[kind] for each in chapters)
    return found


def draw(groups: list[tuple[str, list[tuple[str, dict[str, float]]]]]) -> str:
    canvas = Canvas(WIDTH)
    longest = max(bar["whole"] for _, bars in groups for _, bar in bars)
    scale = (WIDTH - LEFT - RIGHT) / longest
    canvas.text(20, 30, "Where the time of a step goes on the GPU", size="large")
    _draw_legend(canvas, 54.0)
    y = TOP
    for title, bars in groups:
        canvas.text(20, y + 16, title, size="head")
        y += GROUP
        for name, bar in bars:
            _draw_bar(canvas, y, name, bar, scale)
            y += ROW
    return canvas.render(y + 12, "Where the time of a step goes on the GPU")


def _draw_legend(canvas: Canvas, y: float) -> None:
    x = 20.0
    for kind, words in LEGEND.items():
        canvas.rect(x, y - 9, 10, 10, KINDS[kind], rx=2)
        canvas.text(x + 15, y, words, "quiet", size="small")
        x += 34 + text_px(words) * 0.9


def _draw_bar(canvas: Canvas, y: float, name: str, bar: dict[str, Any], scale: float) -> None:
    canvas.text(LEFT - 10, y + 12, name, "quiet", anchor="end")
    x = LEFT
    for kind in ("kernels", "short gaps", "long gaps"):
        canvas.rect(x, y, bar[kind] * scale, BAR, KINDS[kind])
        x += bar[kind] * scale
    canvas.text(x + 8, y + 12, f"{bar['whole']:.0f} ms")
    if bar["on other streams"] > 0:
        canvas.rect(LEFT, y + BAR + 2, bar["on other streams"] * scale, COPY, KINDS["on other streams"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="TITLE=FILE:CASE")
    groups = []
    for each in parser.parse_args().traces:
        title, _, source = each.rpartition("=")
        path, _, case = source.rpartition(":")
        bars = [
            (name, medians(Path(path), case, protected=protected))
            for name, protected in (("without a copy", False), ("captured and replicated", True))
        ]
        groups.append((title, bars))
    print(draw(groups), end="")


if __name__ == "__main__":
    main()
