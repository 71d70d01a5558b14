"""The page of a job: served live, or written as one HTML file that holds a whole finished job, with data and assets
inside.

The server only reads: there is no request that changes anything. The page itself is the same for every job and is given
to anybody. What it shows needs the token, in a header: a URL is written into logs and histories, and a cookie goes to
every port of the same host, so that other servers there get it.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import html
import json
import re
import time
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from deadpool.errors import ConfigError
from deadpool.protocol.identity import LAST_PORT
from deadpool.views.dashboard.feed import Feed
from deadpool.views.dashboard.history import interruptions
from deadpool.views.dashboard.run_files import RunFiles
from deadpool.views.dashboard.view import view
from deadpool.views.dashboard.words import is_allowed

if TYPE_CHECKING:
    from aiohttp import web

ASSETS = {
    "style.css": "text/css",
    "uplot.css": "text/css",
    "uplot.js": "text/javascript",
    "words.js": "text/javascript",
    "source.js": "text/javascript",
    "node_map.js": "text/javascript",
    "charts.js": "text/javascript",
    "plan.js": "text/javascript",
    "fault.js": "text/javascript",
    "page.js": "text/javascript",
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MOST_STREAMS = 32
_PORT_WAIT_S = 3.0

_DETAILED = 100
"""Faults that are told phase by phase; of the others the table has cost and cause."""


def asset(name: str) -> str:
    return (resources.files("deadpool.views.dashboard") / "assets" / name).read_text(encoding="utf-8")


class DashboardServer:
    def __init__(self, feed: Feed, token: str) -> None:
        self._feed, self._token = feed, token
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> str:
        """Returns the address of the page."""
        web = _aiohttp_web()

        @web.middleware  # type: ignore[untyped-decorator]
        async def with_headers(request: Any, handler: Any) -> Any:
            return await self._guard(request, handler)

        app = web.Application(middlewares=[with_headers])
        app.router.add_get("/", self._page)
        app.router.add_get("/assets/{name}", self._asset)
        app.router.add_get("/api/stream", self._stream)
        app.router.add_get("/api/fault/{cause}", self._fault)
        # Streams do not end by themselves, so none is waited for.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        try:
            await self._listen(host, port)
        except (OSError, OverflowError) as error:
            await self._runner.cleanup()
            raise ConfigError(f"port={port} at {host} {_why_not(error)}") from error
        own_host, own_port = self._runner.addresses[0][:2]
        return f"http://{own_host}:{own_port}/"

    async def close(self) -> None:
        await self._feed.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _listen(self, host: str, port: int) -> None:
        """The page of a coordinator that was started again needs its old port, which the last one may still have."""
        deadline = time.monotonic() + _PORT_WAIT_S
        while True:
            try:
                await _aiohttp_web().TCPSite(self._runner, host, port).start()
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def _guard(self, request: Any, handler: Any) -> Any:
        """What is told of the job needs the token, and every answer has the headers."""
        web = _aiohttp_web()
        try:
            if request.path.startswith("/api/") and not is_allowed(
                request.headers.get("Authorization", ""), self._token
            ):
                raise web.HTTPUnauthorized(text="the token of this job is needed")
            response = await handler(request)
        except web.HTTPException as refused:
            refused.headers.update(HEADERS)
            raise
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    async def _page(self, request: Any) -> Any:
        return _aiohttp_web().Response(text=asset("index.html"), content_type="text/html")

    async def _asset(self, request: Any) -> Any:
        web, name = _aiohttp_web(), request.match_info["name"]
        if name not in ASSETS:
            raise web.HTTPNotFound
        return web.Response(text=asset(name), content_type=ASSETS[name])

    async def _fault(self, request: Any) -> Any:
        web = _aiohttp_web()
        found = await self._feed.fault(request.match_info["cause"])
        if found is None:
            raise web.HTTPNotFound(text="no such fault")
        return web.json_response(found)

    async def _stream(self, request: Any) -> Any:
        """Server-sent events: one per part that has changed."""
        web = _aiohttp_web()
        if self._feed.readers >= _MOST_STREAMS:
            raise web.HTTPServiceUnavailable(text="too many pages are open")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        async for name, text in self._feed.changes():
            line = f"event: {name}\ndata: {text}\n\n" if name else ": still here\n\n"
            try:
                await response.write(line.encode())
            except ConnectionError:
                break
        return response


def _why_not(error: OSError | OverflowError) -> str:
    if isinstance(error, OverflowError):
        return f"cannot be used: give another one of at most {LAST_PORT}, or 0 for any free one"
    if error.errno == errno.EADDRINUSE:
        return "is in use: give another one, or 0 for any free one"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "is only for the superuser: give one of at least 1024, or 0 for any free one"
    return f"cannot be used ({error.strerror or error}): give an address of this machine as --host"


def _aiohttp_web() -> Any:
    try:
        from aiohttp import web
    except ImportError as error:
        raise ConfigError("the live page needs aiohttp: pip install 'torch-deadpool[dashboard]'") from error
    return web


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
