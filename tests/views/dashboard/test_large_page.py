"""The page of 4,096 nodes with 8 ranks each. It prints how long until it is there, and what it takes of a core."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from browsing import WIDE, Requests, log_in, text_of, wait
from serve_large import SECRET

from deadpool.views.dashboard.words import access_token

NODES = 4096
OBSERVED_S = 10.0
PAINTED = "performance.getEntriesByName('map-painted')"


@pytest.fixture
def address(tmp_path):
    words = [sys.executable, str(Path(__file__).with_name("serve_large.py")), str(tmp_path / "run"), str(NODES)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        yield server.stdout.readline().strip()
        server.kill()


def browser_cpu_s() -> float:
    """Of all processes of the browser: the page's own, and the one that draws."""
    found = [each for each in psutil.Process().children(recursive=True) if "chrom" in each.name()]
    return sum(sum(each.cpu_times()[:2]) for each in found)


@pytest.mark.thorough
def test_4096_nodes(browser, address, picture):
    page = browser.new_page(viewport=WIDE, color_scheme="dark")
    seen = Requests(page)
    log_in(page, address, access_token(SECRET))  # the server reads the log when the first page is opened
    wait(page, f"{PAINTED}.length > 0")
    loads = []
    for _ in range(3):
        page.reload()
        wait(page, f"{PAINTED}.length > 0")
        loads.append(page.evaluate(f"{PAINTED}[0].startTime") / 1000)
    page.wait_for_selector('#legend [data-state="l"]')

    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    before, cpu, began = _task_s(session), browser_cpu_s(), time.monotonic()
    painted = page.evaluate(f"{PAINTED}.length")
    page.wait_for_timeout(1000 * OBSERVED_S)
    wait(page, f"{PAINTED}.length >= {painted} + 2")
    wall = time.monotonic() - began
    main, whole = (_task_s(session) - before) / wall, (browser_cpu_s() - cpu) / wall
    updates = page.evaluate(f"{PAINTED}.length") - painted
    print(f"\n{NODES} nodes: drawn {', '.join(f'{each:.2f}' for each in loads)} s after the page was asked for; "
          f"then {updates} updates in {wall:.0f} s take {100 * main:.0f} % of a core in the page, "
          f"{100 * whole:.0f} % in all processes of the browser")  # fmt: skip
    page.fill("#find", "rank 4007")
    assert text_of(page, "#cell").startswith("gpu-4098, rack rack-128, rank 4007: ")
    picture(page, "4096-nodes")
    assert "32,7" in text_of(page, '#legend [data-state="t"]') and seen.errors == []


def _task_s(session) -> float:
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])
