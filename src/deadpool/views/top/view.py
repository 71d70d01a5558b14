"""The terminal: what it shows and which keys it reads.

`draw` draws the model with rich: five lines, a table that fills the screen, a line of keys.

`Keyboard` reads single keys from a terminal, and gives the terminal back as it was.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from deadpool.events.story import unwritten
from deadpool.views.top.model import STORY, Model, state_of

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text


MIN_COLUMNS, MIN_ROWS = 60, 12
_HEAD_ROWS, _TITLE_ROWS, _FOOT_ROWS = 5, 1, 1
_STYLES = {"quarantined": "red", "slow": "yellow", "leaving": "magenta", "spare": "cyan", "training": "green"}
_WIDE = 120


def draw(model: Model, columns: int, rows: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    if columns < MIN_COLUMNS or rows < MIN_ROWS:
        return Group(Text(f"this terminal has {columns}x{rows}: {MIN_COLUMNS}x{MIN_ROWS} are needed; q ends"))
    body_rows = rows - _HEAD_ROWS - _FOOT_ROWS
    head = [_cut(line, columns) for line in _head(model)]
    if model.screen == STORY:
        shown = (model.story or ["no recovery yet"])[:body_rows]
        body: Any = Group(*(_cut(line, columns) for line in shown))
        used = len(shown)
    else:
        model.page_rows = max(1, body_rows - _TITLE_ROWS)
        body, used = _node_table(model, columns), len(model.page) + _TITLE_ROWS
    blank = [Text("")] * (body_rows - used)
    return Group(*head, body, *blank, _cut(_keys(model), columns, style="reverse"))


def _cut(line: str, columns: int, style: str = "") -> Text:
    """Cuts a line and never wraps it: a second row would push others off the screen."""
    from rich.text import Text

    text = Text(line, style=style, no_wrap=True)
    text.truncate(columns, overflow="ellipsis", pad=bool(style))
    return text


def _head(model: Model) -> list[str]:
    """Returns the head, which has as many lines as _HEAD_ROWS."""
    status = model.status
    if status is None:
        return [model.failure or "asking the coordinator ...", "", "", "", ""]
    fold = model.fold
    share = fold.goodput()
    goodput = f"  goodput {100 * share:.1f} %" if share is not None else ""
    recoveries = f"  recoveries {sum(fold.recoveries.recoveries.values())}" if fold.newest is not None else ""
    ended = fold.phase if fold.phase in ("completed", "failed") else ""
    first = (
        f"{(ended or status['phase']).upper()}  step {status['step']}{goodput}  spares {status['spares']}{recoveries}"
    )
    return [first, _protection(status), _speed(model), f"last fault: {status['last_fault'] or 'none'}", _news(model)]


def _protection(status: dict[str, Any]) -> str:
    lag, overhead = status["lag_steps"], status["overhead"]
    if lag is None:
        return "NOT PROTECTED YET: a loss now starts the script at its first line"
    cost = f", costs {100 * overhead['share']:.2f} % ± {100 * overhead['error']:.2f} %" if overhead else ""
    word = "protected" if status["protected"] else "copies are on their way"
    return f"{word}: a loss now repeats {lag} steps; a snapshot every {status['interval']['every']}{cost}"


def _speed(model: Model) -> str:
    assert model.status is not None
    own = [(s, node["node"]) for node in model.nodes for s in node["own_s"].values()]
    mean = f"{model.fold.mean_step_s:.4g} s on average" if model.fold.step_times.count else "not known yet"
    longest = f"; longest work {max(own)[0]:.4g} s, on {max(own)[1]}" if own else ""
    return f"step time {mean}{longest}"


def _news(model: Model) -> str:
    """What is most important: an answer to a key, then what somebody has to do."""
    assert model.status is not None
    if model.confirming:
        return f"Drain node {model.confirming}? A spare takes its ranks. y: yes, any other key: no"
    if model.message or model.failure:
        return model.message or model.failure
    if lacks := unwritten(model.status):
        return lacks[0]
    drain = model.status["drain"]
    if drain is not None:
        return f"node {drain['node']} is being drained ({drain['stage']}), its ranks go to {drain['successor']}"
    bad = [node["node"] for node in model.nodes if node["quarantined"]]
    if bad:
        return f"QUARANTINED: {', '.join(bad)}: check the machine, then drain it"
    if not model.status["spares"]:
        then = "shrinks or waits" if model.status["size"]["may_shrink"] else "waits"
        return f"NO SPARE: after a loss the job {then}; add one: deadpool agent --spare --join HOST:PORT SCRIPT"
    return ""


def _keys(model: Model) -> str:
    if model.screen == STORY:
        return " s nodes   q quit"
    count, page = len(model.nodes), model.page
    shown = f"{page.start + 1 if count else 0}-{page.stop} of {count}"
    return f" {shown}   up/down PgUp/PgDn g/G move   d drain   s story   q quit"


def _node_table(model: Model, columns: int) -> Table:
    from rich.table import Table

    assert model.status is not None or not model.nodes
    shown = _columns(columns, any(node["rack"] for node in model.nodes))
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold underline")
    for name, _ in shown:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for index in model.page:
        node = model.nodes[index]
        state = state_of(node, model.status or {})
        style = "reverse" if index == model.selected else _STYLES.get(state, "")
        mark = ">" if index == model.selected else " "
        cells = [cell(node, state) for _, cell in shown]
        table.add_row(f"{mark}{cells[0]}", *cells[1:], style=style)
    return table


Cell = Callable[[dict[str, Any], str], str]


def _columns(columns: int, with_racks: bool) -> list[tuple[str, Cell]]:
    narrow: list[tuple[str, Cell]] = [
        (" node", lambda node, _: str(node["node"])),
        ("state", lambda _, state: state),
        ("ranks", lambda node, _: _ranks(node["ranks"])),
        ("step", lambda node, _: _step(node)),
        ("work s", lambda node, _: f"{max(node['own_s'].values()):.4g}" if node["own_s"] else ""),
        ("memory", lambda node, _: f"{node.get('arena_bytes', 0) / 1e9:.2f} GB"),
    ]
    if with_racks:
        narrow.insert(1, ("rack", lambda node, _: str(node["rack"] or "-")))
    if columns < _WIDE:
        return narrow
    return [
        *narrow,
        ("sent", lambda node, _: f"{node.get('bytes_pushed', 0) / 1e9:.2f} GB"),
        ("GB/s", lambda node, _: f"{node['push_gbps']:.2f}" if node.get("push_gbps") else ""),
        ("copies at", lambda node, _: ",".join(node["holders"])),
        ("trainers", lambda node, _: ",".join(sorted({str(each["state"]) for each in node["trainers"]}))),
    ]


def _ranks(ranks: list[int]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 2 else ",".join(map(str, ranks))


def _step(node: dict[str, Any]) -> str:
    known = [step for step in node["steps"].values() if step is not None]
    return str(min(known)) if known else ""


_SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b": "escape",
}


def keys_in(text: str) -> list[str]:
    """What was typed, key by key. Sequences that are not known are left out."""
    found: list[str] = []
    while text:
        known = max((each for each in _SEQUENCES if text.startswith(each)), key=len, default="")
        if known == "\x1b" and text[1:2] in ("[", "O"):
            known, text = "", text[3:]
            continue
        found.append(_SEQUENCES.get(known, text[0]))
        text = text[len(known) or 1 :]
    return found


class Keyboard:
    def __enter__(self) -> Keyboard:
        self._descriptor = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._descriptor)
        tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def read(self, timeout_s: float) -> list[str]:
        """An empty list after the timeout. The terminal is gone: the key that ends."""
        if not select.select([self._descriptor], [], [], timeout_s)[0]:
            return []
        data = os.read(self._descriptor, 1024)
        return keys_in(data.decode(errors="replace")) if data else ["q"]
