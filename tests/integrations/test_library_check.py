"""What happens with a library that is not as an integration expects it: refused in words, or accepted with a note."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deadpool.errors import ConfigError
from deadpool.integrations import library_check
from deadpool.integrations.library_check import Library, Uses, importing, is_protected_job, require_suitable
from deadpool.trainer import current


class Loop:
    """As the integration expects it. Those below differ from it in one thing."""

    limit = 3

    def __init__(self):
        self.position = 0

    def run(self):
        while self.position < self.limit:
            self.advance(self.position, batch=None)

    def advance(self, number, batch, *, is_last=False):
        self.position = number + 1

    def save(self, path, overwrite=True):
        pass


class MethodRenamed(Loop):
    advance = None

    def run(self):
        self.advance_once(0, None)

    def advance_once(self, number, batch):
        pass


class ParameterRenamed(Loop):
    def advance(self, index, batch, *, is_last=False):
        pass


class KeywordRenamed(Loop):
    def save(self, path, force=True):
        pass


class ParameterAdded(Loop):
    def save(self, path, layout, overwrite=True):
        pass


class OptionAddedToOverride(Loop):
    def advance(self, number, batch, *, is_last=False, closure=None):
        pass


class AttributeRemoved:
    """No subclass: the code of its base would still set the attribute."""

    limit = 3

    def __init__(self):
        self.progress = 0

    def run(self):
        self.advance(0, None)

    def advance(self, number, batch, *, is_last=False):
        pass

    def save(self, path, overwrite=True):
        pass


class NotCalled:
    """No subclass either, because of the base's `run`."""

    limit, position = 3, 0

    def run(self):
        self.position = self.limit

    advance, save = AttributeRemoved.advance, AttributeRemoved.save


def library(kind="Loop", **settings):
    uses = Uses(
        f"{__name__}:{kind}",
        has=("limit", "position"),
        calls={"save": "path, *, overwrite"},
        overrides={"advance": "number, batch, *, is_last"},
    )
    return Library(**{"package": "loops", "tested": ("1.0", "1.1"), "relies_on": (uses,), **settings})


class Told:
    def __init__(self, rank=0):
        self.rank, self.events = rank, []

    def emit(self, what, **detail):
        self.events.append((what, detail))


@pytest.fixture
def begin(monkeypatch):
    """Installs version `found` of every library, in a process of a job."""

    def begin(found, *, rank=0, is_live=True):
        session = Told(rank)
        monkeypatch.setattr(library_check, "version", lambda package: found)
        monkeypatch.setattr(current, "session", session)
        monkeypatch.setattr(current, "default_group", SimpleNamespace(is_live=lambda: is_live))
        return session

    return begin


DIFFERENT = {
    "MethodRenamed": "MethodRenamed.advance is gone",
    "ParameterRenamed": r"ParameterRenamed.advance does not begin with \(number, batch\)",
    "KeywordRenamed": "KeywordRenamed.save has no parameter overwrite",
    "ParameterAdded": "ParameterAdded.save has a further parameter layout",
    "OptionAddedToOverride": "OptionAddedToOverride.advance has a further parameter closure",
    "AttributeRemoved": "AttributeRemoved has no position",
    "NotCalled": "NotCalled.advance is not called any more",
    "ClassRemoved": "there is no test_library_check.ClassRemoved",
}


@pytest.mark.parametrize("version", ["1.0.4", "1.2.0"])
@pytest.mark.parametrize("kind", DIFFERENT)
def test_difference_is_refused_in_words(begin, kind, version):
    session = begin(version)
    with pytest.raises(ConfigError, match=DIFFERENT[kind]) as refused:
        require_suitable([library(kind)], force=False)
    text = str(refused.value)
    assert f"loops {version} cannot be used" in text and "use loops 1.0 or 1.1" in text and "\n" not in text
    assert session.events == []


@pytest.mark.parametrize("kind", DIFFERENT)
def test_force_accepts_it_and_says_so(begin, capsys, kind):
    session = begin("1.0.4")
    require_suitable([library(kind)], force=True)
    [(what, detail)] = session.events
    assert what == "unknown_library" and "force=True goes on in spite of it" in detail["reason"]
    assert detail["reason"] in capsys.readouterr().err


@pytest.mark.parametrize("version", ["1.0.0", "1.1.3+local", "1.1.0rc1"])
def test_tested_version_is_accepted_in_silence(begin, capsys, version):
    session = begin(version)
    assert is_protected_job([library()], force=False)
    assert (session.events, capsys.readouterr().err) == ([], "")


def decorated(function):
    """Does not say what it wraps, and is in its own closure."""

    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) if function is not wrapper else None

    return wrapper


class Decorated(Loop):
    run, advance, save = decorated(Loop.run), decorated(Loop.advance), decorated(Loop.save)


class DecoratedAndRenamed(Loop):
    advance = decorated(ParameterRenamed.advance)


def test_what_a_decorator_wraps_is_looked_at(begin):
    begin("1.0.0")
    require_suitable([library("Decorated")], force=False)
    with pytest.raises(ConfigError, match=r"DecoratedAndRenamed.advance does not begin with \(number, batch\)"):
        require_suitable([library("DecoratedAndRenamed")], force=False)


@pytest.mark.parametrize("version", ["1.2.0", "1.10.0", "2.0", "0.9.1"])
def test_unknown_version_that_has_everything_is_accepted_with_a_note_and_an_event(begin, capsys, version):
    session = begin(version)
    assert is_protected_job([library()], force=False)
    [(what, detail)] = session.events
    assert what == "unknown_library"
    assert f"never tested with loops {version} (tested: 1.0, 1.1); what it relies on is there" in detail["reason"]
    assert "Compare the losses once" in detail["reason"]
    assert capsys.readouterr().err == f"deadpool: {detail['reason']}\n"


@pytest.mark.parametrize("process", [{"rank": 1}, {"is_live": False}])
def test_only_the_first_process_of_rank_0_tells(begin, capsys, process):
    session = begin("1.2.0", **process)
    assert is_protected_job([library()], force=False)
    assert (session.events, capsys.readouterr().err) == ([], "")


@pytest.mark.parametrize(("entry", "version"), [("1.2", "1.2.7"), ("1.1.3", "1.1.3")])
def test_version_that_is_known_to_fail_is_refused_with_the_reason(begin, entry, version):
    begin(version)
    failing = library(known_to_fail={entry: "its loop skips the last batch"})
    with pytest.raises(ConfigError, match=rf"loops {version} cannot be used .*: its loop skips the last batch"):
        require_suitable([failing], force=False)
    begin("1.1.4")
    require_suitable([failing], force=False)


def test_without_deadpool_nothing_is_looked_up(monkeypatch, capsys):
    monkeypatch.setattr(current, "session", None)
    assert not is_protected_job([library("ClassRemoved", package="not installed")], force=False)
    assert "not protected" in capsys.readouterr().err


def test_import_that_fails_for_a_changed_library_says_what_is_missing(begin):
    begin("1.2.0")
    with (
        pytest.raises(ConfigError, match=r"loops 1.2.0 cannot be used .*: there is no test_library_check.ClassRemoved"),
        importing([library("ClassRemoved")]),
    ):
        from test_library_check import ClassRemoved  # noqa: F401


def test_import_that_fails_for_another_reason_stays_as_it_is():
    with pytest.raises(ImportError, match="no such package"), importing([library(package="no-such-package")]):
        raise ImportError("no such package")
