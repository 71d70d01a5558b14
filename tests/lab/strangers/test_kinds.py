"""Kinds of scripts: each is written whole, is drawn by seeds, and runs without DeadPool."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from deadpool.errors import ConfigError
from deadpool_lab.strangers.generate import generate
from deadpool_lab.strangers.kind import Kind
from deadpool_lab.strangers.kinds import KINDS
from deadpool_lab.strangers.protected import draw_injections
from deadpool_lab.strangers.records import RankRecord

_ALONE = Path(__file__).with_name("run_alone.py")
_DOCUMENTATION = Path(__file__).parents[3] / "docs" / "chaos.md"
_LIMIT_S = 500
TABLE = {
    *("flatgrad", "held", "graphlike", "flatopt"),
    *("emaswap_copy", "emaswap_rebind", "moco", "v2p", "dataassign", "datasub", "numpywrite", "flatparam"),
    *("vqema", "headreset", "prune", "newopt", "grow", "unfreeze"),
    *("dropoutp", "bnmomentum", "optattr", "modstate", "rl", "inbackward"),
    *("prevcur", "databuffer", "expanded", "resizebuf", "qat", "sparsebuf"),
    *("zip1", "nextsteps", "zip2", "plainloader", "accum3", "asynchandle"),
    *("forkexit", "cleandir", "openw", "bgthread", "asyncsave", "ownstore", "osexit", "asym", "nohome"),
    *("odd", "embeddingbag", "orthogonal", "many"),
    *("gonecwd", "inthread", "asynctask", "pooled"),
    *("paramattr", "paramkeys", "hookstate", "gradhook", "listattr", "queueattr", "numpyattr"),
    *("contextvar", "threadlocal", "environ", "classattr", "lazyrows"),
    *("lookahead", "optcount", "optbyname", "sam", "gan", "tensorlr", "evolution"),
    *("todouble", "defaultdtype", "numpybits", "lategroup", "briefgroup", "latebuffer", "untie", "tie"),
    *("chdirlate", "inferencebuf"),
    *("closurestats", "itercounters", "replaylist", "avgcount", "torchfunc", "hiddenattr"),
}
"""The kinds that strangers' scripts were found to have."""

by_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def test_all_kinds_of_the_table_are_there():
    names = Counter(kind.name for kind in KINDS)
    assert set(names) >= TABLE
    assert max(names.values()) == 1


@by_kind
def test_kind_is_whole_and_the_same_again(kind):
    for number in range(12):
        script = generate(4, number, kind.name)
        compile(script.text, script.title, "exec")
        assert script == generate(4, number, kind.name)
        assert script.tags[0].startswith(f"{kind.name}: ")


def test_three_seeds_of_a_hundred_draw_every_kind():
    scripts = [generate(seed, number) for seed in (7, 8, 9) for number in range(100)]
    drawn = Counter(script.kind.name for script in scripts if script.kind)
    assert set(drawn) == {kind.name for kind in KINDS}
    assert drawn.total() == 3 * 34


def test_the_command_gives_the_script_again():
    """Whatever kinds are added later."""
    script = generate(7, 9)
    assert script.kind and f"--kind {script.kind.name} --seed 7 --only 9" in script.command
    assert generate(7, 9, script.kind.name) == script


def test_all_goes_through_the_kinds_in_turn():
    assert [generate(1, number, "all").kind for number in range(len(KINDS))] == list(KINDS)


def test_the_documentation_lists_all_and_says_which_may_be_named():
    text = _DOCUMENTATION.read_text()
    table = text[text.index("| kinds | about |") : text.index("| result | |")]
    listed = set(re.findall(r"\b([a-z0-9_]+)(\*?)(?=[,| ])", table))
    assert {(kind.name, "*" if kind.expected == "named" else "") for kind in KINDS} <= listed


def test_unknown_kind():
    with pytest.raises(ConfigError, match="kind='flatgard' cannot be used: give all or one of flatgrad, held"):
        generate(1, 0, "flatgard")


@by_kind
def test_faults_come_where_the_kind_says(kind):
    for number in range(40):
        script = generate(4, number, kind.name)
        first, *later = draw_injections(script)
        assert [each.stops for each in (first, *later)].count(True) <= kind.stops
        later = [each for each in later if not each.stops]
        assert 6 <= first.step <= script.steps - 4 and len(later) <= 1
        for injection in (first, *later):
            assert injection.at in kind.moments
            assert _may_be_hit(kind, injection.rank, injection.position)


def _may_be_hit(kind: Kind, rank: int, position: int) -> bool:
    return {"any": True, "rank 0": rank == 0, "other nodes": position > 0}[kind.victims]


# --- without DeadPool -------------------------------------------------------------------------------------------------


def _run_alone(folder: Path, kinds: list[Kind]) -> None:
    for kind in kinds:
        text = generate(4, 1, kind.name).text
        (folder / f"{kind.name}.py").write_text(re.sub(r"^STEPS = \d+$", "STEPS = 5", text, flags=re.MULTILINE))
    paths = sorted(map(str, folder.glob("*.py")))
    ran = subprocess.run(
        [sys.executable, str(_ALONE), *paths],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=_LIMIT_S,
        check=True,
    )
    ended = {end["script"]: end["code"] for end in map(json.loads, ran.stdout.splitlines())}
    for kind in kinds:
        assert ended[kind.name] == 0, (folder / kind.name / "console.log").read_text()
        record = RankRecord.read(folder / kind.name / "rank0.jsonl")
        assert sorted(record.steps) == list(range(5)) and record.digest, kind.name


def test_some_kinds_run_without_deadpool(tmp_path):
    _run_alone(tmp_path, list(KINDS[::5]))


@pytest.mark.thorough
def test_every_kind_runs_without_deadpool(tmp_path):
    _run_alone(tmp_path, list(KINDS))
