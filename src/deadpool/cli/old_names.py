"""Names that commands had before they were put into groups. They work for one release, and `--help` lists none."""

from __future__ import annotations

import sys
from typing import Any

from typer.core import TyperGroup

NEW_NAMES = {
    "story": "show story",
    "top": "show top",
    "logs": "show logs",
    "journal": "show journal",
    "dashboard": "show dashboard",
    "report": "show report",
    "picture": "show picture",
    "trace": "show trace",
    "drain": "node drain",
    "replace": "node replace",
    "kill": "node kill",
    "protect": "job protect",
    "audit": "job audit",
    "salvage": "durable salvage",
    "sim": "lab sim",
    "chaos": "lab chaos",
}
"""The commands that have moved, by the old name."""


class CommandsByOldNames(TyperGroup):
    """Takes an old name as the new one, so that all that follows is read and told as under the new one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (new := NEW_NAMES.get(args[0])) is not None:
            print(f"deadpool {args[0]} is now: deadpool {new}", file=sys.stderr)
            args = [*new.split(), *args[1:]]
        return super().resolve_command(ctx, args)
