"""`deadpool show top`: a running job on the whole terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deadpool.cli.run_argument import for_a_job

if TYPE_CHECKING:
    from deadpool.views.top.model import Model, Sources

_REDRAW_S = 0.25


@for_a_job()
def top(
    run: Path | None,
) -> None:
    """Show a running job on the whole terminal: state, nodes, last fault, step time. Keys: d drains the node under the
    cursor, s shows the last recovery, q quits."""
    import sys

    from deadpool.cli.job_client import ask, find_run_dir
    from deadpool.errors import ConfigError
    from deadpool.views.top.model import Model, Sources

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("deadpool show top needs a terminal: use deadpool status --json in scripts")
    folder = find_run_dir(run)
    folder.coordinator()  # refuses a folder that is none of a job

    def request(what: str, **arguments: Any) -> dict[str, Any]:
        return ask(folder, what, **arguments)

    sources = Sources(request, folder.events)
    sources.start()
    try:
        _show(Model(), sources)
    except KeyboardInterrupt:
        pass
    finally:
        sources.close()


def _show(model: Model, sources: Sources) -> None:
    import os

    from rich.console import Console
    from rich.live import Live

    from deadpool.views.top.view import Keyboard, draw

    # A shell may have exported the size that its window had once.
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    console = Console(_environ=variables)
    with Keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        while not model.is_over:
            _refresh(model, sources)
            size = console.size
            live.update(draw(model, size.width, size.height), refresh=True)
            for key in keyboard.read(_REDRAW_S):
                if (node := model.press(key)) is not None:
                    sources.drain(node)


def _refresh(model: Model, sources: Sources) -> None:
    if (status := sources.take_status()) is not None:
        model.update(status)
    model.failure, model.fold, model.story = sources.failure, sources.fold, sources.story
    if sources.message:
        model.message, sources.message = sources.message, ""
