"""One HTML file that holds a whole finished job: the same page as the live one, with its data and assets inside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from collections.abc import Sequence
from typing import Any

from deadpool.views.dashboard.interruptions import interruptions
from deadpool.views.dashboard.run_files import RunFiles
from deadpool.views.dashboard.server import ASSETS, asset
from deadpool.views.dashboard.view import view

_DETAILED = 100
"""Faults that are told phase by phase; of the others the table has cost and cause."""


def write_report(files: RunFiles, lacks: Sequence[str] = ()) -> str:
    """Everything that the page shows, at the time of the last event. `lacks` says what the log has not."""
    files.refresh()
    history = files.history
    shown = view(history, files.losses, files.job(), None, now=history.last_t, lacks=lacks)
    causes = [each.cause for each in interruptions(history)][-_DETAILED:]
    shown["details"] = {cause: files.fault(cause) for cause in causes}
    return page_with(shown, title=shown["job"]["name"])


def page_with(data: dict[str, Any], *, title: str) -> str:
    """The page of the live view with everything inside it, and a policy that lets it load nothing else."""
    style = "\n".join(asset(name) for name in ASSETS if name.endswith(".css"))
    script = "\n".join(asset(name) for name in ASSETS if name.endswith(".js"))
    page = re.sub(r"\s*<link rel=\"stylesheet\"[^>]*>|\s*<script [^>]*></script>", "", asset("index.html"))
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{style}</style>\n"
        f'<script type="application/json" id="data">{_in_script(data)}</script>\n'
    )
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(data["job"].get("ended") or data["job"].get("began") or 0))
    page = re.sub(r"<title>.*?</title>", lambda _: f"<title>{html.escape(title)}, {made}</title>", page)
    page = page.replace("</head>", f"{head}</head>", 1)
    return page.replace("</body>", f"<script>{script}</script>\n</body>", 1)


def _in_script(data: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in, whatever names and log lines hold."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
