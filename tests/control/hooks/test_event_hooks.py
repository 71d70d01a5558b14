"""Commands and webhooks for events, with real processes and a real HTTP server: also those that fail and hang."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path

import pytest
from http_receiver import Receiver
from waiting import LIMIT_S, wait_until

from deadpool.config.orders import ON_EVENT, WEBHOOK, parse_rule
from deadpool.control.hooks import event_hooks
from deadpool.control.hooks.calls import Command, Webhook
from deadpool.control.hooks.event_hooks import AT_MOST, WITHIN_S, CallLimit, EventHooks, Hook
from deadpool.events.types import BY_NAME

NO_SPARE = {"t": 5.0, "what": "no_spare", "cause": "fault-1", "generation": "1.2", "reason": "no spare is left"}


@contextlib.contextmanager
def hooks(folder: Path, *texts: str, kind: str = ON_EVENT, last_s: float = LIMIT_S):
    """At the end each has `last_s` for what it has not delivered yet."""
    told: list[dict] = []
    running = EventHooks(
        [parse_rule(kind, text) for text in texts], run_dir=folder, tell=lambda event: told.append(event.record())
    )
    running.start()
    try:
        yield running, told
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(event_hooks, "LAST_S", last_s)
            running.close()


def test_command_gets_the_event_as_json_and_in_its_environment(tmp_path):
    folder = tmp_path / "a run's folder"
    folder.mkdir()
    command = f"no_spare=cat > {tmp_path}/given; env > {tmp_path}/env"
    with hooks(folder, command) as (running, told):
        running.offer(NO_SPARE)
        running.offer({**NO_SPARE, "what": "go"})
    given = json.loads((tmp_path / "given").read_text())
    assert given.items() >= {**NO_SPARE, "event": "no_spare", "left_out": 0, "run_dir": str(folder)}.items()
    assert given["text"].startswith("NO SPARE: no spare is left")
    variables = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert variables["DEADPOOL_EVENT"] == "no_spare" and variables["DEADPOOL_EVENT_CAUSE"] == "fault-1"
    assert variables["DEADPOOL_EVENT_REASON"] == "no spare is left" and variables["DEADPOOL_RUN_DIR"] == str(folder)
    assert told == []


def test_command_does_not_get_the_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("DEADPOOL_SECRET", "0123456789abcdef")
    with hooks(tmp_path, f"failed=env > {tmp_path}/env") as (running, _):
        running.offer({"t": 1.0, "what": "failed", "reason": "x"})
    assert "0123456789abcdef" not in (tmp_path / "env").read_text()


def test_command_that_fails_is_told_once_until_it_has_worked(tmp_path):
    command = f"no_spare=test -e {tmp_path}/good || {{ echo no such mailer >&2; exit 3; }}"
    with hooks(tmp_path, command) as (running, told):
        for _ in range(3):
            running.offer(NO_SPARE)
        wait_until(lambda: running._hooks[0]._waiting.empty() and told, "the failure")
        (tmp_path / "good").touch()
        running.offer(NO_SPARE)
    assert [(each["what"], each["reason"]) for each in told] == [
        ("hook_failed", "it ended with code 3: no such mailer"),
    ]


def test_command_that_hangs_holds_up_nobody_and_ends_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setitem(Command.__init__.__kwdefaults__, "timeout_s", 3600.0)  # whoever waits for it waits too long
    slow = f"no_spare=sleep 1000 & echo $! > {tmp_path}/child; wait"
    with hooks(tmp_path, slow, f"no_spare=touch {tmp_path}/other", last_s=0.5) as (running, _):
        for _ in range(500):  # more than can wait
            running.offer(NO_SPARE)
        wait_until((tmp_path / "other").exists, "the other command")
        wait_until((tmp_path / "child").exists, "the child")
        wait_until(lambda: (tmp_path / "child").read_text().strip(), "the child's number")
        child = int((tmp_path / "child").read_text())
    wait_until(lambda: _has_ended(child), "the end of the child")


def _has_ended(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_command_has_a_time_limit():
    record = {**NO_SPARE, "event": "no_spare", "text": "", "run_dir": ""}
    assert Command("sleep 1000", timeout_s=0.2).call(record) == "it had not ended after 0.2 s, and was killed"
    assert Command("yes", timeout_s=0.2).call(record) == "it had not ended after 0.2 s, and was killed"


def test_webhook_posts_a_sentence_and_the_event(tmp_path):
    with Receiver().running() as receiver:
        with hooks(tmp_path, f"recovered={receiver.url()}", kind=WEBHOOK) as (running, told):
            running.offer({"t": 9.0, "what": "go", "cause": "fault-2", "generation": "1.3"})
        (body,) = receiver.posted
        assert body["text"] == "DeadPool: recovered from fault-2: training runs in generation 1.3"
        assert body["event"]["cause"] == "fault-2" and body["event"]["event"] == "recovered"
        assert told == []


def test_webhook_is_tried_again_while_the_server_is_busy():
    with Receiver().running() as receiver:
        receiver.codes = [503, 503]
        webhook = Webhook(parse_rule(WEBHOOK, f"failed={receiver.url()}"), pauses_s=(0.01, 0.01))
        assert webhook.call({"text": "x"}) is None
        receiver.codes = [503] * 3
        assert webhook.call({"text": "x"}) == "the server answered 503 Service Unavailable"
        assert len(receiver.posted) == 1


@pytest.mark.parametrize("listens", [True, False], ids=["does not answer", "is not there"])
def test_webhook_host_that_is_dead_is_told_without_the_url(listens):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not listens:
            silent.close()
        rule = parse_rule(WEBHOOK, f"failed=http://127.0.0.1:{port}/SECRET")
        told: list = []
        hook = Hook(rule, Webhook(rule, timeout_s=0.2, pauses_s=()), told.append)
        hook.start()
        for _ in range(3):
            hook.offer({"what": "failed", "text": "x"}, now=0.0)
        hook.close(time.monotonic() + LIMIT_S)
    (event,) = told
    assert event.what == "hook_failed" and "SECRET" not in json.dumps(event.detail)
    assert event.detail["hook"] == "webhook 127.0.0.1"


def test_rate_is_limited_and_what_was_left_out_is_counted():
    limit = CallLimit()
    assert [limit.admits("no_spare", now=float(n)) for n in range(AT_MOST + 3)] == [True] * AT_MOST + [False] * 3
    assert limit.admits("failed", now=20.0)  # the end is always told
    assert limit.take_left_out() == 3 and limit.take_left_out() == 0
    assert limit.admits("no_spare", now=WITHIN_S + 20.0)


def test_no_event_has_a_field_that_hooks_and_structured_lines_add():
    added = {"event", "text", "run_dir", "left_out", "process"}
    assert [each.name for each in BY_NAME.values() if added & each.fields.keys()] == []


def test_failure_of_a_hook_calls_no_hook(tmp_path):
    with hooks(tmp_path, f"hook_failed=touch {tmp_path}/called") as (running, _):
        running.offer({"t": 1.0, "what": "hook_failed", "hook": "command x", "reason": "y"})
    assert not (tmp_path / "called").exists()


def test_descriptors_of_the_coordinator_are_not_inherited(tmp_path):
    held = os.open("/dev/null", os.O_RDONLY)
    try:
        with hooks(tmp_path, f"no_spare=ls -l /proc/self/fd > {tmp_path}/fds") as (running, _):
            running.offer(NO_SPARE)
        assert f" {held} -> " not in (tmp_path / "fds").read_text()
    finally:
        os.close(held)
