"""Prints the results of a benchmark, and writes them to a file if one is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def give_out(summary: dict[str, Any], path: Path | None) -> None:
    print(json.dumps(summary, indent=2))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(summary, indent=2) + "\n")
