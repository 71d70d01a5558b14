"""The live page is read by those who have the token, and by nobody else; nothing of the job is told without it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys

import pytest
from dashboard_records import SEATS_OF_SMALL_RUN, T0, small_run, status
from waiting import LIMIT_S

from deadpool.errors import ConfigError
from deadpool.views.dashboard.feed import Feed
from deadpool.views.dashboard.run_files import RunFiles
from deadpool.views.dashboard.server import ASSETS, DashboardServer, asset, page_with
from deadpool.views.dashboard.words import access_token

aiohttp = pytest.importorskip("aiohttp")
TOKEN = access_token(b"secret of a job")
COMMAND = [sys.executable, "-m", "deadpool.cli.main"]


def serving(folder, check, ask=None):
    """Runs `check(session, address)` while the page of this folder is served."""

    async def run():
        server = DashboardServer(Feed(RunFiles(folder), ask), TOKEN)
        address = await server.start("127.0.0.1", 0)
        try:
            async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession() as session:
                return await check(session, address)
        finally:
            await server.close()

    return asyncio.run(run())


def authorized(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def parts_of(session, address: str, wanted: set[str]) -> dict[str, dict]:
    """The first of each part."""
    found: dict[str, dict] = {}
    async with session.get(f"{address}api/stream", headers=authorized()) as answer:
        assert answer.status == 200
        async for line in answer.content:
            if line.startswith(b"event: "):
                name = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                found.setdefault(name, json.loads(line[6:]))
            if wanted <= set(found):
                return found
    return found


@pytest.mark.parametrize("path", ["api/stream", "api/fault/fault-1", "api/anything"])
@pytest.mark.parametrize("headers", [{}, authorized("0" * 64), {"Authorization": TOKEN}, {"Cookie": f"token={TOKEN}"}])
def test_nothing_is_told_without_the_token(tmp_path, path, headers):
    async def check(session, address):
        async with session.get(address + path, headers=headers) as answer:
            return answer.status, await answer.text()

    code, text = serving(small_run(tmp_path / "run"), check)
    assert code == 401 and "fault" not in text


def test_token_in_the_address_opens_nothing(tmp_path):
    async def check(session, address):
        async with session.get(f"{address}api/stream?token={TOKEN}") as answer:
            return answer.status

    assert serving(small_run(tmp_path / "run"), check) == 401


def test_every_answer_forbids_scripts_and_requests_from_elsewhere(tmp_path):
    async def check(session, address):
        answers = {}
        for path in ("", "assets/page.js", "assets/../server.py", "assets/secret", "api/stream", "nowhere"):
            headers = authorized() if path == "api/stream" else {}
            async with session.get(address + path, headers=headers) as answer:
                answers[path] = (answer.status, answer.headers)
        async with session.post(address, headers=authorized()) as answer:
            answers["POST"] = (answer.status, answer.headers)
        return answers

    answers = serving(small_run(tmp_path / "run"), check)
    assert {path: code for path, (code, _) in answers.items()} == {
        "": 200, "assets/page.js": 200, "assets/../server.py": 404, "assets/secret": 404, "api/stream": 200,
        "nowhere": 404, "POST": 405,
    }  # fmt: skip
    for _, headers in answers.values():
        assert "default-src 'none'; script-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Frame-Options"] == "DENY" and headers["Cache-Control"] == "no-store"
        assert "Set-Cookie" not in headers


def test_stream_tells_all_parts_and_a_fault_can_be_asked_for(tmp_path):
    async def check(session, address):
        parts = await parts_of(session, address, {"head", "nodes", "cells", "faults", "curves", "copies", "events"})
        async with session.get(f"{address}api/fault/fault-1", headers=authorized()) as answer:
            detail = await answer.json()
        async with session.get(f"{address}api/fault/fault-7", headers=authorized()) as answer:
            assert answer.status == 404
        return parts, detail

    parts, detail = serving(small_run(tmp_path / "run"), check)
    assert parts["head"]["text"] == "completed"
    assert [each["cause"] for each in parts["faults"]] == ["fault-1"]
    assert detail["row_count"] == 8


def test_page_goes_on_from_the_folder_while_no_coordinator_answers(tmp_path):
    """And it uses the answers again as soon as there are any: the coordinator has moved."""
    folder = small_run(tmp_path / "run")
    lines = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join(lines[:-1]))  # it still runs
    asked = []

    async def ask():
        asked.append(None)
        if len(asked) == 1:
            raise ConfigError("no coordinator answers")
        return status(SEATS_OF_SMALL_RUN, [], 2, 250)

    async def check(session, address):
        seen = []
        async with session.get(f"{address}api/stream", headers=authorized()) as answer:
            async for line in answer.content:
                if line.startswith(b'data: {"name"'):
                    seen.append(json.loads(line[6:])["answers"])
                if seen and seen[-1]:
                    break
        return seen

    assert serving(folder, check, ask) == [False, True]


def test_nobody_looks_and_the_coordinator_is_left_alone(tmp_path):
    asked = []

    async def ask():
        asked.append(None)
        return status(SEATS_OF_SMALL_RUN, [], 2, 250)

    async def check(session, address):
        await asyncio.sleep(0.5)  # nothing is to happen, so there is nothing to wait for
        return len(asked)

    assert serving(small_run(tmp_path / "run"), check, ask) == 0


def test_secret_cannot_be_read_from_the_token():
    assert re.fullmatch("[0-9a-f]{64}", TOKEN)
    assert access_token(b"another secret") != TOKEN


def test_page_loads_nothing_from_elsewhere():
    for name in (*ASSETS, "index.html"):
        text = asset(name).replace("https://github.com/leeoniya/uPlot", "").replace("http://www.w3.org/", "")
        assert not re.search(r"https?://|@import|eval\(|innerHTML|insertAdjacentHTML|document\.write", text), name


def test_report_holds_everything_and_runs_nothing_from_nodes(tmp_path):
    folder = small_run(tmp_path / "run of <script>alert(1)<")
    evil = "</script><script>alert(1)</script>"
    log = folder / "events.jsonl"
    log.write_text(json.dumps({"t": T0, "what": "joined", "node": evil, "spare": True}) + "\n" + log.read_text())
    out = tmp_path / "out" / "report.html"
    done = subprocess.run(
        [*COMMAND, "show", "report", str(folder), "--out", str(out)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert "<script>alert" not in text and "fault-1" in text and "2.13.0" in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    assert re.search(r"default-src 'none'; script-src 'sha256-[\w+/=]+'; style-src 'sha256-", text)


def test_report_of_no_job_is_refused(tmp_path):
    done = subprocess.run([*COMMAND, "show", "report", str(tmp_path)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2 and "give the run folder of a job" in done.stderr


def test_data_cannot_leave_its_element():
    page = page_with({"job": {"name": "</script>&"}}, title="<title>")
    assert "\\u003c/script\\u003e\\u0026" in page and "<title>&lt;title&gt;" in page


def test_command_keeps_the_token_out_of_its_output(tmp_path):
    """What is not a terminal may be a log."""
    folder = small_run(tmp_path / "a run")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DEADPOOL_")}
    words = [*COMMAND, "show", "dashboard", str(folder)]
    token = subprocess.run(
        [*words, "--token"], capture_output=True, text=True, timeout=LIMIT_S, env=environment
    ).stdout.strip()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as server:
        lines = [server.stdout.readline(), server.stdout.readline()]
        host, port = re.search(r"http://([\d.]+):(\d+)/", lines[0]).groups()
        socket.create_connection((host, int(port)), timeout=LIMIT_S).close()
        server.send_signal(signal.SIGTERM)
        assert server.wait(LIMIT_S) == 0
    assert host == "127.0.0.1" and len(token) == 64 and token not in "".join(lines)


def test_port_that_is_taken_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("deadpool.views.dashboard.server._PORT_WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def start():
            await DashboardServer(Feed(RunFiles(tmp_path), None), TOKEN).start("127.0.0.1", port)

        with pytest.raises(ConfigError, match=f"port={port} at 127.0.0.1 is in use"):
            asyncio.run(start())
