"""Scripts of strangers under real kills: a few that cover much, and what the judge has to find."""

from __future__ import annotations

import dataclasses
from itertools import count
from pathlib import Path

import pytest

from deadpool.cli.job_client import ask
from deadpool_lab.strangers.features.refused import REFUSED
from deadpool_lab.strangers.generate import Script, generate
from deadpool_lab.strangers.trial import ScriptResult, ScriptTrial

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SEED = 3
COVERING = (478, 350, 23, 308)
"""Small ones that have much in them. Another feature shifts what a seed draws: then others have to be chosen."""
LEAST_FEATURES = 45


def judged(script: Script, folder: Path, shared) -> ScriptResult:
    return ScriptTrial(script, folder / "trial", shared, ask).run()


@pytest.mark.parametrize(
    "number",
    [*(pytest.param(number, marks=pytest.mark.thorough) for number in COVERING[:3]), *COVERING[3:]],
)
def test_stranger(number, tmp_path, shared):
    verdict = judged(generate(SEED, number), tmp_path, shared)
    assert verdict.result == "exact", verdict.problems
    assert verdict.hit


@pytest.mark.thorough
@pytest.mark.parametrize("feature", REFUSED, ids=lambda feature: feature.name.removeprefix("REFUSED: "))
def test_what_is_refused_is_refused_in_its_words(feature, tmp_path, shared):
    """A refusal that is worded anew leaves the words of its script behind."""
    script = next(each for each in (generate(1, number) for number in count()) if feature.name in each.tags)
    verdict = judged(script, tmp_path, shared)
    assert verdict.result == "refused", verdict.problems


def test_these_cover_much():
    scripts = [generate(SEED, number) for number in COVERING]
    assert len({tag for script in scripts for tag in script.tags}) >= LEAST_FEATURES
    assert not any(script.refused for script in scripts)


@pytest.mark.thorough
def test_state_that_nobody_protects_is_found(tmp_path, shared):
    """The judge's own test: a counter in a variable of the script is not what it was in a newcomer."""
    script = generate(SEED, COVERING[2])
    careless = dataclasses.replace(script, text=_with_counter(script.text))
    verdict = judged(careless, tmp_path, shared)
    assert verdict.result == "differs"
    assert any("draws of step" in problem and problem.startswith("hit") for problem in verdict.problems)


def _with_counter(text: str) -> str:
    lines = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if line.lstrip().startswith("for step in job.steps"):
            lines.append(f"{indent}careless = []")
        if line.lstrip().startswith("draws = ["):
            lines.append(f"{indent}careless.append(step.number)")
            line = line.replace("draws = [", "draws = [len(careless), ")
        lines.append(line)
    return "\n".join(lines) + "\n"


def test_what_is_refused_says_why(tmp_path, shared):
    number = next(number for number in range(100) if generate(SEED, number).refused)
    verdict = judged(generate(SEED, number), tmp_path, shared)
    assert verdict.result == "refused", verdict.problems
