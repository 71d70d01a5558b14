"""Which torch survivors are trusted with, and that every page and file names the same versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from deadpool.backend import torch_versions
from deadpool.backend.torch_versions import TESTED, is_tested
from deadpool.trainer.adapters.wrappers import recovers_in_place, warning

ROOT = Path(__file__).parents[2]
NEXT = f"2.{int(TESTED[-1].partition('.')[2]) + 1}"


def test_the_torch_of_these_tests_is_tested():
    assert is_tested() and warning("auto") is None, torch.__version__


@pytest.mark.parametrize("version", [*(f"{each}.0" for each in TESTED), "2.11.0+cu130", "2.13.0+cpu", "2.15.0a0+git12"])
def test_tested_versions_recover_in_place(version):
    assert recovers_in_place("auto", version)
    assert warning("auto", version) is None


@pytest.mark.parametrize(
    "version", ["2.10.1", f"{NEXT}.0", f"{NEXT}.0.dev20260701+cpu", "2.1", "3.0.0", "1.13.0", "2", "parrot"]
)
def test_other_versions_restart_and_are_warned_of(version):
    assert not recovers_in_place("auto", version)
    text = warning("auto", version)
    assert (
        text is not None
        and version in text
        and torch_versions.tested_range() in text
        and "restart their processes" in text
    )


def test_the_setting_decides_where_it_is_given():
    assert recovers_in_place("always", f"{NEXT}.0") and not recovers_in_place("never", "2.13.0")
    assert "keep their processes all the same" in str(warning("always", f"{NEXT}.0"))


def test_there_is_no_gap_between_the_tested_versions():
    assert tuple(f"2.{minor}" for minor in range(int(TESTED[0][2:]), int(TESTED[-1][2:]) + 1)) == TESTED


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("pyproject.toml", rf'"torch>={re.escape(TESTED[0])}"'),
        ("README.md", rf"torch {re.escape(TESTED[0])} or later"),
        ("README.md", rf"rests on adapters for torch {torch_versions.tested_range()}\."),
        ("docs/howto/layouts.md", rf"insides of torch {torch_versions.tested_range()}\."),
    ],
)
def test_pages_name_the_tested_versions(page, sentence):
    assert re.search(sentence, (ROOT / page).read_text()), f"{page} does not say: {sentence}"
