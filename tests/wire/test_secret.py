from __future__ import annotations

import pytest

from deadpool.config.environment import SECRET_FILE_VARIABLE, SECRET_VARIABLE
from deadpool.errors import ConfigError
from deadpool.wire.credentials import Credentials, read_credentials, read_secret

SECRET = "0123456789abcdef"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in (SECRET_VARIABLE, SECRET_FILE_VARIABLE, "DEADPOOL_TLS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    return path


def test_environment_beats_the_file_it_names_beats_the_run_folder(monkeypatch, file, tmp_path):
    assert read_secret(file) == SECRET.encode(), "without the line break at its end"
    other = tmp_path / "other"
    other.write_text("f" * 16)
    other.chmod(0o600)
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(other))
    assert read_secret(file) == b"f" * 16
    monkeypatch.setenv(SECRET_VARIABLE, "e" * 16)
    assert read_secret(file) == b"e" * 16


def test_file_that_every_user_can_read_is_refused(file):
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="open to every user: chmod 600"):
        read_secret(file)


def test_short_absent_or_unknown_secret_is_refused(file, tmp_path):
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="too short"):
        read_secret(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret(tmp_path / "absent")
    with pytest.raises(ConfigError, match=f"set {SECRET_FILE_VARIABLE}"):
        read_secret()


def test_secret_is_not_shown_where_credentials_are_printed(file):
    assert SECRET not in repr(read_credentials(default_secret=file))
    assert SECRET not in repr(Credentials(SECRET.encode()))
