"""Writes plain SVG. Colours are CSS classes, so that one file looks right on light and on dark pages."""

from __future__ import annotations

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
