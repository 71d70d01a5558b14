"""Plain SVG and its axes.

`Canvas` writes plain SVG. Colours are CSS classes, so that one file looks right on light and on dark pages.

`Axis` maps values to positions on the page, finds round numbers for labels, and formats seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape, quoteattr

CHARACTER_PX = 6.2  # the average width of a character of the small text

LIGHT = {
    "page": "#ffffff",
    "ink": "#1f2328",
    "quiet": "#59636e",
    "rule": "#d1d9e0",
    "row": "#f6f8fa",
    "survivor": "#3b73c4",
    "newcomer": "#d9730d",
    "fault": "#cf222e",
    "detect": "#cf222e",
    "unwind": "#d4a017",
    "plan": "#848d97",
    "prepare": "#3b73c4",
    "connect": "#8250df",
    "redo": "#1a8a4f",
}
DARK = LIGHT | {
    "page": "#0d1117",
    "ink": "#e6edf3",
    "quiet": "#9198a1",
    "rule": "#30363d",
    "row": "#161b22",
    "survivor": "#5b9bf0",
    "newcomer": "#f0954a",
    "fault": "#f85149",
    "detect": "#f85149",
    "unwind": "#e3b341",
    "prepare": "#5b9bf0",
    "connect": "#a779f5",
    "redo": "#3fb970",
}


@dataclass(slots=True)
class Canvas:
    width: float
    elements: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, colour: str, **more: object) -> None:
        self._add("rect", {"x": x, "y": y, "width": max(width, 0.0), "height": height}, f"f-{colour}", more)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, **more: object) -> None:
        self._add("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2}, f"s-{colour}", more)

    def path(self, points: list[tuple[float, float]], colour: str, **more: object) -> None:
        listed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._add("polyline", {"points": listed, "fill": "none"}, f"s-{colour}", more)

    def dot(self, x: float, y: float, radius: float, colour: str, **more: object) -> None:
        self._add("circle", {"cx": x, "cy": y, "r": radius}, f"f-{colour}", more)

    def text(self, x: float, y: float, words: str, colour: str = "ink", *, size: str = "", anchor: str = "") -> None:
        attributes = {"x": x, "y": y} | ({"text-anchor": anchor} if anchor else {})
        self._add("text", attributes, f"f-{colour} {size}".strip(), {}, escape(words))

    def _add(
        self, tag: str, attributes: Mapping[str, object], kind: str, more: Mapping[str, object], body: str | None = None
    ) -> None:
        all_attributes = {
            "class": kind,
            **attributes,
            **{name.replace("_", "-"): value for name, value in more.items()},
        }
        written = " ".join(f"{name}={quoteattr(_plain(value))}" for name, value in all_attributes.items())
        self.elements.append(f"<{tag} {written}/>" if body is None else f"<{tag} {written}>{body}</{tag}>")

    def render(self, height: float, title: str) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {height:g}" role="img">'
        page = f'<rect class="f-page" width="{self.width:g}" height="{height:g}" rx="8"/>'
        return "\n".join([head, f"<title>{escape(title)}</title>", _style(), page, *self.elements, "</svg>\n"])


def text_px(words: str) -> float:
    return CHARACTER_PX * len(words)


def _plain(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _style() -> str:
    font = "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif}"
    sizes = ".large{font-size:19px;font-weight:600}.head{font-weight:600;font-size:13px}.small{font-size:11px}"
    dark = f"@media (prefers-color-scheme:dark){{{_colours(DARK)}}}"
    return f"<style>{font}{sizes}line,polyline{{stroke-width:1}}{_colours(LIGHT)}{dark}</style>"


def _colours(palette: dict[str, str]) -> str:
    return "".join(f".f-{name}{{fill:{value}}}.s-{name}{{stroke:{value}}}" for name, value in palette.items())


_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis: `low` is at `start`, `high` is at `end`."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """Returns about `count` round numbers on the axis."""
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        stride = next(power * each for each in _ROUND if power * each >= rough * 0.999)
        first = math.ceil(self.low / stride - 1e-9)
        last = math.floor(self.high / stride + 1e-9)
        return [stride * i for i in range(first, last + 1)]


def in_words(seconds: float) -> str:
    """Formats seconds with at most three digits: 63 ms, 0.32 s, 2.10 s."""
    if seconds < 0.00095:
        return f"{1e6 * seconds:.0f} µs"
    if seconds < 0.0995:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.0f} s"


def tick_words(value: float, unit_s: bool) -> str:
    return f"{value:g}" if unit_s else f"{1e3 * value:g}"
