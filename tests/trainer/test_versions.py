"""Which torch survivors are trusted with."""

from __future__ import annotations

import pytest
import torch

from deadpool.trainer.adapters.versions import is_known, recovers_in_place, warning


def test_the_torch_of_these_tests_is_known():
    assert is_known() and warning("auto") is None, torch.__version__


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0+cu130", "2.12.1", "2.13.0+cpu", "2.13.0a0+git1234"])
def test_known_versions_recover_in_place(version):
    assert recovers_in_place("auto", version)
    assert warning("auto", version) is None


@pytest.mark.parametrize("version", ["2.10.1", "2.14.0", "2.14.0.dev20260701+cpu", "3.0.0", "1.13.0", "2", "parrot"])
def test_unknown_versions_restart_and_are_warned_of(version):
    assert not recovers_in_place("auto", version)
    text = warning("auto", version)
    assert text is not None and version in text and "2.11 to 2.13" in text and "restart their processes" in text


def test_the_setting_decides_where_it_is_given():
    assert recovers_in_place("always", "2.14.0") and not recovers_in_place("never", "2.13.0")
    assert "keep their processes all the same" in str(warning("always", "2.14.0"))
