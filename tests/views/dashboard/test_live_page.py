"""A real job runs, nodes are killed and so is the coordinator, and the page says what happened."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import COMMAND, NARROW, WIDE, Requests, log_in, text_of, token_of, wait
from ports import reserved_port
from waiting import LIMIT_S, wait_until

SCRIPT = Path(__file__).with_name("dashboard_script.py")
pytestmark = [pytest.mark.thorough, pytest.mark.e2e, pytest.mark.timeout(1200)]


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


@pytest.fixture
def job(tmp_path, port):
    """Three nodes of two ranks and a spare, with the page; its run folder."""
    folder, output = tmp_path / "a run", tmp_path / "output"
    topology = tmp_path / "topology.toml"
    topology.write_text('[racks]\nr0 = ["n0", "n1"]\nr1 = ["n2", "n3"]\n')
    words = ["run", "--dashboard", f"--dashboard-at=127.0.0.1:{port}", f"--run-dir={folder}", "--nodes=3"]
    words += ["--spares=1", "--nproc-per-node=2", f"--topology={topology}", str(SCRIPT)]
    with output.open("wb") as file, subprocess.Popen([*COMMAND, *words], stdout=file, stderr=file) as process:
        yield folder, output
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()


def state_is(state: str) -> str:
    return f"document.getElementById('state').dataset.state === '{state}'"


def deadpool(*words: object) -> None:
    subprocess.run([*COMMAND, *map(str, words)], check=True, timeout=LIMIT_S, capture_output=True)


def test_nodes_and_the_coordinator_die_and_the_page_says_so(browser, job, picture):
    folder, output = job
    wait_until(lambda: b"live page: " in output.read_bytes(), "the page")
    address = re.search(r"live page: (\S+)", output.read_text()).group(1)
    token = token_of(folder)
    assert token not in output.read_text()
    page = browser.new_page(viewport=WIDE, color_scheme="dark")
    seen = Requests(page)
    log_in(page, address, token)
    wait(page, "Number(document.querySelector('#figure-step .value').textContent) > 20")
    assert text_of(page, "#state-text").lower() == "running"
    wait(page, "document.querySelector('#legend').textContent.includes('spare, parked')")

    deadpool("node", "kill", folder, "--node", "n1")
    wait(page, "/\\d s$|ms$/.test(document.querySelector('.fault .cost')?.textContent || '')")
    assert "link to node n1 lost" in text_of(page, '.fault[data-cause="fault-1"]')
    wait(page, "document.querySelector('#actions').textContent.includes('No spare is left')")
    page.fill("#find", "n1")
    assert text_of(page, "#cell").startswith("n1, rack r0: lost. It held ranks 2 to 3")
    page.fill("#find", "n3")
    assert re.match(r"n3, rack r1, rank 2: (training|recovering)", text_of(page, "#cell"))
    page.click('.fault[data-cause="fault-1"]')
    page.wait_for_selector('#detail [data-phase="redo"]')
    assert page.locator("#detail [data-rank]").count() == 6
    assert "rank 2 step" in text_of(page, "#detail pre >> nth=0")  # what the lost trainer printed last
    wait(page, "document.querySelectorAll('#copies tbody tr').length === 3")
    _pictures_of(page, browser, address, token, picture)

    deadpool("node", "kill", folder, "--node", "n2")
    wait(page, state_is("waiting"))
    assert text_of(page, "#state-text").lower() == "waiting for a spare"
    assert "--spare" in text_of(page, "#actions")
    picture(page, "waiting")
    with _spare(folder):
        wait(page, state_is("running"))
        wait(page, "document.querySelectorAll('.fault').length === 2")

        _note_links(page)
        _kill_coordinator(folder)
        wait(page, "window.notedLinks.some(each => each !== 'live')")
        wait(page, "document.getElementById('link').textContent === 'live'")
        wait(page, "[...document.querySelectorAll('#events li')].some(each => each.dataset.what === 'took_over')")
        before = int(text_of(page, "#figure-step .value").replace(",", ""))
        wait(page, f"Number(document.querySelector('#figure-step .value').textContent.replace(',', '')) > {before}")
        assert seen.elsewhere(address) == []


def _note_links(page) -> None:
    """Keeps what the page says of its link: between two looks of ours it may be away and back."""
    page.evaluate("""() => {
        const link = document.getElementById('link');
        window.notedLinks = [];
        new MutationObserver(() => window.notedLinks.push(link.textContent))
            .observe(link, {childList: true, characterData: true, subtree: true});
    }""")


def _pictures_of(page, browser, address, token, picture) -> None:
    picture(page, "live", full_page=True)
    small = browser.new_page(viewport=NARROW, color_scheme="light")
    log_in(small, address, token)
    small.wait_for_selector(".fault")
    small.wait_for_selector("#loss canvas")
    assert small.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    picture(small, "live-narrow")
    small.close()


@contextlib.contextmanager
def _spare(folder: Path) -> Iterator[None]:
    """As the page says."""
    place = json.loads((folder / "job.json").read_text())
    words = ["agent", f"--join={place['host']}:{place['port']}", "--spare", "--name=n9", f"--logs={folder / 'logs'}"]
    environment = {**os.environ, "DEADPOOL_SECRET_FILE": str(folder / "secret")}
    with subprocess.Popen([*COMMAND, *words, "--", str(SCRIPT)], env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)  # it ends without asking to be drained
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _kill_coordinator(folder: Path) -> None:
    os.kill(json.loads((folder / "job.json").read_text())["pid"], signal.SIGKILL)
