"""The page and the report in a real browser: what an operator reads there, by mouse and by keyboard."""

from __future__ import annotations

import json
import subprocess

import pytest
from browsing import COMMAND, CONTRASTS, NARROW, WIDE, Requests, log_in, served, text_of, token_of, wait
from dashboard_records import T0, audits, node_name, small_run

LOST, SPARE = node_name(1), node_name(4)
EVIL = '<img src=x onerror="window.evil=1">'


@pytest.fixture
def folder(tmp_path):
    """With a node whose name is HTML, and a log that is."""
    found = small_run(tmp_path / "a run")
    log = found / "events.jsonl"
    log.write_text(json.dumps({"t": T0, "what": "joined", "node": EVIL, "spare": True}) + "\n" + log.read_text())
    (found / "logs" / f"{SPARE}.0.log").write_text(f"{EVIL}\nloaded version 99\n")
    return found


def test_page_of_a_finished_job(browser, folder, picture):
    page = browser.new_page(viewport=WIDE, color_scheme="dark")
    seen = Requests(page)
    with served(folder) as address:
        page.goto(address)
        page.fill("#token", "not the token")
        page.click("#login button")
        wait(page, "document.getElementById('login-error').textContent.includes('not the token')")
        assert not page.is_visible("#main")
        log_in(page, address, token_of(folder))
        page.wait_for_selector(".fault")
        assert page.url == address  # the token is in no address

        assert text_of(page, "#state-text").lower() == "completed"
        assert text_of(page, "#figure-goodput .value") == "98.93 %"
        assert text_of(page, "#legend").replace("\n", " ") == "2 lost 10 ended"
        assert "link to node gpu-0001 lost" in text_of(page, '.fault[data-cause="fault-1"]')

        assert "least per useful hour" in text_of(page, "#plan-text") and "from 1 fault in" in text_of(
            page, "#plan-about"
        )
        assert page.locator("#plan-spares canvas, #plan-interval canvas").count() == 2

        _walk_by_keyboard(page)
        for theme in ("dark", "light"):
            result = page.evaluate(CONTRASTS)
            assert result["count"] > 60 and result["bad"] == [], theme
            picture(page, f"finished-{theme}", kept=False, full_page=True)
            page.click("#theme")
        assert page.evaluate("window.evil") is None
        assert seen.elsewhere(address) == [] and len(seen.urls) > 8
        assert [each for each in seen.errors if "401" not in each] == []


def test_audits_and_errors_on_the_page(browser, folder, picture):
    log = folder / "events.jsonl"
    log.write_text(log.read_text() + "".join(json.dumps(each) + "\n" for each in audits(T0 + 30, 40, 60)))
    page = browser.new_page(viewport=WIDE, color_scheme="dark")
    seen = Requests(page)
    with served(folder) as address:
        log_in(page, address, token_of(folder))
        page.wait_for_selector("#audits li")
        assert text_of(page, "#audits-line") == "1 audit found all ranks alike, 1 error found"
        rows = page.eval_on_selector_all("#audits li", "found => found.map(each => each.dataset.verdict)")
        assert rows == ["named", "alike"], "the newest first"
        assert f"Node {LOST} has erred" in text_of(page, "#audits li.erred")
        for theme in ("dark", "light"):
            assert page.evaluate(CONTRASTS)["bad"] == [], theme
            picture(page, f"audits-{theme}", kept=False)
            page.click("#theme")
        assert seen.errors == []


def _walk_by_keyboard(page) -> None:
    """From the search field to the map, from rank to rank, to the fault and into its details."""
    page.focus("#find")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "map"
    page.keyboard.press("End")
    last = text_of(page, "#cell")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert text_of(page, "#cell").startswith(f"{EVIL}: ") and last.startswith(f"{SPARE}, rack rack-2, rank 3: ended")
    page.fill("#find", LOST)
    assert text_of(page, "#cell").startswith(f"{LOST}, rack rack-0: lost. It held ranks 2 to 3")
    page.focus(".fault")
    page.keyboard.press("Enter")
    page.wait_for_selector('#detail [data-phase="redo"]')
    assert page.evaluate("document.activeElement.id") == "detail"
    phases = page.eval_on_selector_all("#detail [data-phase]", "found => found.map(each => each.dataset.phase)")
    assert phases == ["detect", "unwind", "plan", "prepare", "connect", "redo"]
    assert "1.21 s" in text_of(page, "#detail .facts") and page.locator("#detail [data-rank]").count() == 8
    assert "loaded version 99" in text_of(page, "#detail pre") and EVIL in text_of(page, "#detail pre")


@pytest.mark.thorough
def test_report_opened_from_a_file(browser, tmp_path, picture):
    folder, out = small_run(tmp_path / "llm-7b"), tmp_path / "report.html"
    (folder / "logs" / f"{SPARE}.0.log").write_text("rank 2 loaded version 99 from gpu-0002\n")
    words = [*COMMAND, "show", "report", str(folder), "--out", str(out)]
    subprocess.run(words, check=True, timeout=300, capture_output=True)
    for size, scheme, name in ((WIDE, "dark", "report"), (NARROW, "light", "report-narrow")):
        page = browser.new_page(viewport=size, color_scheme=scheme)
        seen = Requests(page)
        page.goto(out.as_uri())
        page.click(".fault")
        page.wait_for_selector('#detail [data-phase="redo"]')
        assert "loaded version 99" in text_of(page, "#detail pre")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]  # nothing is cut off
        wait(page, "performance.getEntriesByName('map-painted').length > 0")
        page.evaluate("scrollTo(0, 0)")
        picture(page, name, full_page=size is WIDE)
        page.click("#settings summary")
        assert "2.13.0" in text_of(page, "#settings-list")
        assert seen.elsewhere(out.as_uri()) == [] and seen.errors == []
