"""What can be written after --on-event and --webhook."""

from __future__ import annotations

import pytest

from deadpool.config.job_config import JobConfig
from deadpool.config.orders import ON_EVENT, WEBHOOK, parse_rule
from deadpool.errors import ConfigError

GO = {"t": 1.0, "what": "go", "generation": "1.2"}


def test_events_and_a_command_with_signs_of_its_own():
    rule = parse_rule(ON_EVENT, "recovered, no_spare,failed=A=1 logger -t x=y '$DEADPOOL_EVENT'")
    assert rule.events == {"recovered", "no_spare", "failed"}
    assert rule.target == "A=1 logger -t x=y '$DEADPOOL_EVENT'"


def test_recovered_is_the_go_after_a_fault_or_a_drain():
    rule = parse_rule(ON_EVENT, "recovered=true")
    assert rule.name_for(GO | {"cause": "fault-3"}) == rule.name_for(GO | {"cause": "drain-1"}) == "recovered"
    assert rule.name_for(GO | {"cause": "start"}) is None
    assert parse_rule(ON_EVENT, "go=true").name_for(GO | {"cause": "start"}) == "go"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ON_EVENT, "failed"),
        (ON_EVENT, "=true"),
        (ON_EVENT, "failed="),
        (ON_EVENT, "recoverd=true"),
        (WEBHOOK, "failed=ftp://h/x"),
        (WEBHOOK, "failed=file:///etc/passwd"),
        (WEBHOOK, "failed=http://"),
        (WEBHOOK, "failed=http://[::1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_can(kind, text):
    with pytest.raises(ConfigError, match="give"):
        JobConfig(holders=0, **{kind: (text,)}).checked()


def test_url_that_is_a_secret_is_read_from_a_file_and_told_to_nobody(tmp_path):
    (tmp_path / "a url").write_text("https://h.example/services/T0/SECRET\n")
    rule = parse_rule(WEBHOOK, f"failed=@{tmp_path / 'a url'}")
    assert rule.url() == "https://h.example/services/T0/SECRET"
    assert "SECRET" not in rule.label
    assert parse_rule(WEBHOOK, "failed=https://h.example/SECRET").label == "webhook h.example"
    (tmp_path / "a url").write_text("SECRET")
    with pytest.raises(ConfigError) as refused:
        rule.url()
    assert "SECRET" not in str(refused.value)


def test_file_without_a_url_is_refused_at_the_start(tmp_path):
    config = JobConfig(holders=0, webhook=(f"failed=@{tmp_path / 'missing'}",)).checked()
    with pytest.raises(ConfigError, match="cannot be read"):
        config.check_webhooks()
